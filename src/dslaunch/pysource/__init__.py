"""What a Python program says in its source: read, never run. Pure."""
