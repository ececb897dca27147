"""DeepSpeed's configuration and checkpoints."""
