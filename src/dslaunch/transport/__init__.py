"""How a node is reached. The only place that opens connections.

One file per transport; a module that is not private or `base` holds `make(cluster)`, which
gives an object of the shape of `base.Transport`.
"""
