"""Streaming DataFrames of PySpark as streams: their analysed plan becomes boxes.

``catalyst`` reads the plan that Spark's analyser made, ``taking`` turns its nodes into boxes, ``joining`` its
joins, ``sources`` its relations, and ``adopting`` takes over a whole ``writeStream``.  Nothing runs in Spark
on the way; where the boxes run is the engine's business.
"""
