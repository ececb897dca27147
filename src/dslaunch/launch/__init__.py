"""Jobs, commands and plans as values."""
