"""The cluster file: parsing, validation, and the selection of nodes."""
