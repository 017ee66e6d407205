"""Masked arrays of NumPy and masked tensors of torch, some of whose entries are absent.

Both hold a number at an absent entry too, which plain conversions read. What takes numbers from
users asks `present`, which refuses absent entries, or `filled` where missing has a meaning.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError, RdpgraphError

_KINDS = {"MaskedArray": "numpy", "MaskedTensor": "torch"}


def is_masked(value: object) -> bool:
    """Test for a masked array or tensor, by name, to import nothing."""
    kind = type(value)
    if kind is Tensor or kind.__module__ == "builtins" or torch.compiler.is_compiling():
        return False
    return any(
        each.__module__.split(".")[0] == _KINDS.get(each.__name__, "-") for each in kind.__mro__
    )


def _parts(value: Any) -> tuple[Any, Any]:
    """The numbers of a masked array or tensor, and bools that are True where they are absent."""
    if isinstance(value, Tensor):
        masked: Any = value
        return masked.get_data(), ~masked.get_mask()
    import numpy as np

    return np.ma.getdata(value), np.ma.getmaskarray(value)


def present(name: str, value: Any, error: type[RdpgraphError] = ModelError) -> Any:
    """A masked array or tensor as a plain one, if none is masked out; other values as they are.

    Raises:
        RdpgraphError: of the type ``error``, where an entry is absent.
    """
    if not is_masked(value):
        return value
    numbers, absent = _parts(value)
    if bool(absent.any()):
        places = absent.nonzero()
        first = places[0].tolist() if isinstance(places, Tensor) else [int(p[0]) for p in places]
        at = f" at {tuple(first)}" if first else ""
        raise error(
            f"{name} cannot hold masked entries; got one{at}. Give a value for them, by "
            ".filled(value) of NumPy or .to_tensor(value) of torch."
        )
    return numbers


def filled(value: Any, missing: float | None) -> Any:
    """Return a masked array or tensor as a plain one, with ``missing`` at absent entries.

    Any other value comes back as it is.

    The type of the result follows from ``missing``: float64 for NaN, int64 for a whole number, and
    objects for None.
    """
    if not is_masked(value):
        return value
    numbers, absent = _parts(value)
    if missing is None:
        numbers = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
        result = numbers.astype(object)
        result[absent.cpu().numpy() if isinstance(absent, Tensor) else absent] = None
        return result
    whole = not math.isnan(missing)
    if isinstance(numbers, Tensor):
        numbers = numbers.long() if whole else numbers.to(torch.float64)
        return torch.where(absent, missing, numbers)
    import numpy as np

    return np.where(absent, missing, numbers.astype(np.int64 if whole else np.float64))
