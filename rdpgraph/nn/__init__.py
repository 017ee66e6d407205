"""Modules of `torch.nn` that stand on the structures."""

from rdpgraph.nn.constraints import Constraints, bio_constraints, bioes_constraints
from rdpgraph.nn.crf import CRF
from rdpgraph.nn.features import FeatureMap
from rdpgraph.nn.hmm import HMM

__all__ = ["CRF", "HMM", "Constraints", "FeatureMap", "bio_constraints", "bioes_constraints"]
