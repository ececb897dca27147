"""Is a cluster fit to train on: ask all nodes, judge, compare. Reports and acts on nothing."""
