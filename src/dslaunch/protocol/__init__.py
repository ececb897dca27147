"""The one boundary for nodes: what they send becomes typed, bounded values, or the node failed."""
