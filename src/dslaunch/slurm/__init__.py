"""Jobs of SLURM: submitted, followed, explained, cancelled; and the scripts that others wrote."""
