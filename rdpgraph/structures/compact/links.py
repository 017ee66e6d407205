"""Links between the words of two sentences."""

from torch import Tensor


def mutual(gains: Tensor) -> Tensor:
    """(*batch, p, q) bool: the pairs that are the best ones of both words.

    Args:
        gains: (*batch, p, q) of which the largest are best.
    """
    if not gains.numel():
        return gains > 0
    return (gains == gains.amax(-1, keepdim=True)) & (gains == gains.amax(-2, keepdim=True))
