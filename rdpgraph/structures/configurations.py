"""Configurations that are answers of structures."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class KBestConfigurations:
    """The configurations of largest score, best first.

    Attributes:
        states: (k, *batch, *sites), -1 at unused sites, and throughout where there are fewer.
        scores: (k, *batch) nats, of the derivations, unnormalised; -inf where there are fewer.
    """

    states: Tensor
    scores: Tensor
