"""One of each part that dslaunch can be extended with."""
