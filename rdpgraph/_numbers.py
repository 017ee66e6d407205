"""Numbers as arguments: those of Python and of NumPy, and tensors of one number."""

from numbers import Integral, Real

from torch import Tensor


def is_whole(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number, at least so large; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_real(value: object) -> bool:
    """Whether a value is a number, or a tensor of one; True and False are none."""
    if isinstance(value, Tensor):
        return value.ndim == 0
    return isinstance(value, Real) and not isinstance(value, bool)
