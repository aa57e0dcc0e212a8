"""Many queries on one Spark session, against Structured Streaming; each side in a process of its own."""
