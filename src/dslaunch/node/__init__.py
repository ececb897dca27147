"""The program that runs on the nodes.

It uses only the standard library and runs on Python 3.8 and newer: the modules are sent to a node
and run by its Python. They import nothing of dslaunch but each other.
"""
