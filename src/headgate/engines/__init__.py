"""Where a pipeline runs: threads, simulated (and Spark).

An engine owns time, waiting and execution.  What they share lives here: admission gives tuples their
serials, inboxes are the queues before boxes, the runtime moves packets between them and tells the policy,
and the report says what happened.  Each engine's folder holds only what is its own: its clock and how its
workers run.
"""
