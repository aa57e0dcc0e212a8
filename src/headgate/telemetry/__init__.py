"""What other systems hear of a run: OpenTelemetry traces of steps and calls, OpenLineage events of queries.

Both look on as a recorder does (``runtime.observers``): they take a few numbers while the run goes on, and a
thread of their own tells them.  A system that does not answer never holds a run up; the report says so.
"""
