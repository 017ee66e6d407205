"""The command line."""

from rdpgraph.cli.app import main

__all__ = ["main"]
