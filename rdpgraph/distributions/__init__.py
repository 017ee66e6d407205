"""Distributions with the interface of `torch.distributions`, answered by structures.

Here belong classes that take the place of a `torch.distributions.Distribution`: `log_prob`,
`sample`, `entropy` and KL divergences over sequences of states.
"""

from rdpgraph.distributions.hmm import HMM
from rdpgraph.distributions.linear_chain import LinearChain, StateSequences

__all__ = ["HMM", "LinearChain", "StateSequences"]
