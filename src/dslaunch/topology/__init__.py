"""How the GPUs and network cards of a machine are wired, what follows from it, and for which jobs.

`answers.read` makes a `Topology` of a node's answers; `comparison.compare` names the odd one of
many nodes; `advice.advise` says what to set, why, and who says so. Nothing here asks a node or
changes anything.
"""
