"""Distributions of `torch.distributions`' interface, answered by the structures."""

from rdpgraph.distributions.hmm import HMM
from rdpgraph.distributions.linear_chain import LinearChain, StateSequences

__all__ = ["HMM", "LinearChain", "StateSequences"]
