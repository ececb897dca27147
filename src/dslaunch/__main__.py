"""`python -m dslaunch`."""

from dslaunch.cli.start import start

start()
