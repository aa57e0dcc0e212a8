"""Aurora's experiments: batching, traversals and QoS, figure by figure."""
