"""Jobs of SLURM: submitted, followed, explained, canceled; and the scripts that others wrote."""
