"""`python -m tests.testbed.vcluster`."""

from tests.testbed.vcluster.cli import main

if __name__ == "__main__":
    main()
