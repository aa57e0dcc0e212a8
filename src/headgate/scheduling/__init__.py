"""What runs next: policies, and what they know.

A policy is a state machine: events in, decisions out, deterministic for a given seed and sequence of
events.  This layer knows no thread, no clock, no file, no Arrow and no Spark; an engine owns time,
waiting and execution, and tells a policy everything through events.  The catalog is the fold of those
events: topology, measured cost, selectivity, call overhead, and the state of every queue.
"""
