"""``python -m rdpgraph``: the command line."""

from rdpgraph.cli import main

if __name__ == "__main__":
    main()
