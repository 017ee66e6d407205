"""Modules of `torch.nn` that stand on the structures."""

from rdpgraph.nn.crf import CRF

__all__ = ["CRF"]
