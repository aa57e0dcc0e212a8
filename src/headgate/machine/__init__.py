"""Machines as data: topology, memory model and calibration, read from this host or from a description.

``topology`` says which cores share which caches and memory, ``host`` reads the topology of this machine,
``memory_model`` says what a byte costs from which place, and ``calibration`` what operators cost.  Policies
and the simulation see machines only through these descriptions.
"""
