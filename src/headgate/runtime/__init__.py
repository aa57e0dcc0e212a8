"""What an engine does, without time and without threads.

Admission gives tuples their serials, queues hold packets before boxes, the network moves packets and knows
how far every arrow has come, the lifecycle starts and stops queries, and the policy driver tells the policy
what happened and passes on what it decides.  Every method takes the time; the engine owns the clock, the
waiting and the execution.
"""
