"""``python -m headgate``: the command line."""

from headgate.cli import main

main()
