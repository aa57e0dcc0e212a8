"""Aurora's policies (Carney et al., VLDB 2003): superboxes, traversals, QoS priorities, buckets, shedding."""
