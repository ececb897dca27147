"""A plan as texts that people and other tools read."""
