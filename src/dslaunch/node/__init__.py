"""What runs on the nodes.

Only the standard library, Python 3.8 or newer: these modules are sent as text and run by
whatever Python a node has. They import nothing of dslaunch but each other.
"""
