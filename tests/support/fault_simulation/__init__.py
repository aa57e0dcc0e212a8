"""A whole machine in one thread: drivers, tasks, disk and sinks, under faults that a seed chooses.

``world``: processes and their threads as greenlets, virtual time, and the points at which a fault can strike.
``disk``: files as POSIX promises them, and no more.  ``edges``: puts both under Headgate's own code, which
runs unchanged: the engine's shell and its threads, core, planner, commit protocol, log, state store, tasks,
and what publishes a sink's files.  ``jobs``: Spark's part, which launches tasks, repeats and speculates.
``runs``: applications, what must hold at the end, and one run by its seed.  ``bugs``: what it must find.
"""
