"""Launch multi-node DeepSpeed and PyTorch training from one cluster file."""

__version__ = "0.1.0"
