"""A simulated cluster: one process with thousands of agents, which the real launcher reaches.

- `drawn` decides from a seed what every node and rank will do. It is pure.
- `job` is a program whose ranks do that on a real node.
- `agent` answers the protocol as `dslaunch.node.agent` does, and simulates such ranks.
- `server` listens for the launcher and runs the agents.
- `transport` is the launcher's way to them, a plugin.
- `cluster` starts and ends all of it.
"""
