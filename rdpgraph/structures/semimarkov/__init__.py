"""Semi-Markov chains: a sequence cut into labelled segments of limited duration."""

from rdpgraph.structures.semimarkov.model import SemiMarkov
from rdpgraph.structures.semimarkov.segmentation import Segmentation

__all__ = ["Segmentation", "SemiMarkov"]
