"""`python -m dslaunch`."""

from dslaunch.cli.main import main

main()
