"""The pipeline as data: packets, operators, expressions, and the network of boxes and arrows.

This layer knows no thread, no clock, no file and no Spark.  An operator is a pure function of packets
and of a state object that can be snapshotted to Arrow; the network is a loop-free graph of boxes with a
queue before each.  Everything above (scheduling, engines, app) rests on these types.
"""
