"""`python -m rdpgraph.native`: build all compiled code of this machine, and say where it is."""

from rdpgraph.native.building import UNITS
from rdpgraph.native.loading import Library

for unit in UNITS:
    print(f"{unit.name}: {Library(unit, lambda _: None).status}")
