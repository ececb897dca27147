"""What will happen, as values: jobs, commands, plans."""
