"""The Bobox scheduler (DATESO 2011) and its baseline: immediate and deferred tasks, per memory node."""
