"""What exists, and which part of it a run uses."""
