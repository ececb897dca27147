"""The topology of GPUs and NICs of a machine, and what to set for it.

`answers.read` parses the answers of a node as a `Topology`; `comparison.compare` returns the nodes
that differ; `advice.advise` returns settings, with the source of each rule. Nothing here queries a
node or changes anything.
"""
