"""Sources and sinks: one module for each system that Headgate reads from or writes to.

A connector is a description that pickles: where rows come from, or where they go.  ``source`` and ``sink``
are the contracts.  ``open`` gives a reader or a writer of one run.  A reader is polled: it never waits and
never starts a thread, so one source serves the threads engine in real time and the simulated one in virtual
time.  How Spark's tasks read and write the same descriptions is in ``engines/spark``.
"""
