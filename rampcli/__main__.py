"""Runs the command line: `python -m rampcli`."""

from rampcli.cli.main import main

main()
