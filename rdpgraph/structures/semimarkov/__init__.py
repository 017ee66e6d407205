"""Semi-Markov chains: a sequence cut into labelled segments of limited duration."""

from rdpgraph.structures.semimarkov.model import SemiMarkov
from rdpgraph.structures.semimarkov.scoring import KBestSegmentations, Segmentation

__all__ = ["KBestSegmentations", "Segmentation", "SemiMarkov"]
