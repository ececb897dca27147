"""The rules for batch scripts, a function each from what was read to what is to be said."""
