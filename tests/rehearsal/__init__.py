"""Training jobs that are broken as in public bug reports, and jobs that are sound."""
