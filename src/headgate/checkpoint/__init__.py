"""What survives a crash: storage, the commit log, and the state store of a run on Spark.

Everything rests on one promise of ``storage``: an exclusive create.  ``log`` writes one record per step with
it, ``position`` is the fold of those records (cursors, queues, state files, admitted offsets),
``state_store`` keeps operators' state by version, and ``upgrade`` decides what a changed pipeline may
keep.  What no record names does not exist.
"""
