"""The command line."""

from rdpgraph.cli.entry import main

__all__ = ["main"]
