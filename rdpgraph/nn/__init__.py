"""Modules of `torch.nn` whose answers are those of structures.

Layers with parameters for padded batches: `CRF` in place of pytorch-crf's, with constraints on its
tags, `SemiCRF` for segments, `HMM` and `MarkovField` as language models, `StructuredVAE`,
`FeatureMap`, and `Pattern` with `ConstrainedHMM`, which constrain language models.
"""

from rdpgraph.model.potentials.patterns import Pattern
from rdpgraph.nn.crf import CRF, Constraints, bio_constraints, bioes_constraints
from rdpgraph.nn.field import MarkovField
from rdpgraph.nn.hmm import HMM
from rdpgraph.nn.semicrf import SemiCRF
from rdpgraph.nn.vae import (
    Decoder,
    ImportanceEstimate,
    Joint,
    LSTMDecoder,
    Objective,
    StructuredVAE,
)
from rdpgraph.nn.words import FeatureMap, exchange_clusters
from rdpgraph.structures.chain.constrained import ConstrainedHMM, Prefix

__all__ = [
    "CRF", "HMM", "ConstrainedHMM", "Constraints", "Decoder", "FeatureMap", "ImportanceEstimate",
    "Joint", "LSTMDecoder", "MarkovField", "Objective", "Pattern", "Prefix", "SemiCRF",
    "StructuredVAE", "bio_constraints", "bioes_constraints",
    "exchange_clusters",
]  # fmt: skip
