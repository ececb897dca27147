"""The boundary for data of nodes: it becomes typed, bounded values, or the node has failed."""
