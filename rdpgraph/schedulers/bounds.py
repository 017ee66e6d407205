"""Bounds of a network, within the memory and by the compiled functions of this machine."""

from rdpgraph._core import effort, tuning
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.trws.bounding import Bounding


def bounding_of(network: Network, memory: float) -> Bounding:
    """Bounds of a network, with so many bytes at most."""
    memory = max(min(memory, effort.BOUNDS_BYTES), tuning.SMALL_BYTES)
    return Bounding(network, memory)
