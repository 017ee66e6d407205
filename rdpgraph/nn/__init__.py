"""Modules of `torch.nn` whose answers are those of structures.

Here belong layers that hold parameters and take padded batches: `CRF` instead of
pytorch-crf's, with constraints on its tags, `HMM` as a language model, `StructuredVAE`, and
`FeatureMap`.
"""

from rdpgraph.nn.constraints import Constraints, bio_constraints, bioes_constraints
from rdpgraph.nn.crf import CRF
from rdpgraph.nn.decoder import Decoder, Joint, LSTMDecoder
from rdpgraph.nn.features import FeatureMap
from rdpgraph.nn.hmm import HMM
from rdpgraph.nn.vae import ImportanceEstimate, Objective, StructuredVAE

__all__ = [
    "CRF",
    "HMM",
    "Constraints",
    "Decoder",
    "FeatureMap",
    "ImportanceEstimate",
    "Joint",
    "LSTMDecoder",
    "Objective",
    "StructuredVAE",
    "bio_constraints",
    "bioes_constraints",
]
