"""A run, from its start to nothing left."""
