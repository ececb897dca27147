"""Analyze the source of Python programs without running them. Pure."""
