"""What survives a crash: storage, the commit log, and the state store of a run on Spark.

Everything rests on one promise of ``storage``: an exclusive create, in a folder (``local_folder``) or in an
object store (``object_store``).  ``owner`` says which run has a checkpoint.  ``log`` writes one record per
step, ``position`` is the fold of those records (cursors, queues, state files, admitted offsets),
``state_store`` keeps operators' state by version, and ``upgrade`` decides what a changed pipeline may
keep.  What no record names does not exist.
"""
