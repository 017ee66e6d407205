"""Tensors of what users give: tensors, NumPy arrays, numbers and nested lists of them."""

from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.log_values import FLOATING, WHOLE, refuse_hollow
from rdpgraph.model.potential import Potential


def as_values(name: str, given: Any) -> Tensor:
    """A floating tensor, itself if it is one already; gradients flow to tensors inside lists.

    Lists and NumPy arrays are copied; numbers that are not floating become torch's default type.

    Args:
        name: whose values, for the message.
        given: a floating tensor, a number, a NumPy array, or nested lists.

    Raises:
        ModelError: anything else, or a tensor that holds no values (meta) or not all (sparse).
    """
    values = given if isinstance(given, Tensor) else _converted(name, given, "floating values")
    if not isinstance(given, Tensor) and values.dtype in (*WHOLE, torch.bool):
        values = values.to(torch.get_default_dtype())
    if values.dtype not in FLOATING:
        raise ModelError(f"{name} needs floating values; got a tensor of {values.dtype}.")
    refuse_hollow(name, values)
    return values


def taken(name: str, given: Any) -> Any:
    """A potential or a tensor as it is; else what `as_values` makes of it."""
    return given if isinstance(given, Tensor | Potential) else as_values(name, given)


def spread(name: str, given: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """What `as_values` makes of something, broadcast; numbers become of another tensor's type.

    Raises:
        ModelError: no values, or such as do not broadcast to the shape.
    """
    values = as_values(name, given)
    if not isinstance(given, Tensor):
        values = values.to(like)
    try:
        return values.expand(shape)
    except RuntimeError:
        raise ModelError(
            f"{name} needs values that broadcast to {shape}; got {tuple(values.shape)}."
        ) from None


def settle(owner: Any, *fields: str, whole: tuple[str, ...] = ()) -> None:
    """Make tensors of array-likes among the fields of a frozen dataclass, as it is built.

    Args:
        owner: the dataclass.
        fields: those of floating values; a tensor, a `Potential` or None stays as it is.
        whole: those of integers.
    """
    for field in (*fields, *whole):
        given = getattr(owner, field)
        if given is None or isinstance(given, Tensor | Potential):
            continue
        name = f"{type(owner).__name__}'s {field}"
        made = as_whole(name, given) if field in whole else as_values(name, given)
        object.__setattr__(owner, field, made)


def as_whole(name: str, given: Any) -> Tensor:
    """An integer tensor, itself if it is one already, from what `as_values` takes.

    Raises:
        ModelError: other numbers than whole ones, or a tensor that holds no values.
    """
    values = given if isinstance(given, Tensor) else _converted(name, given, "integers")
    if not isinstance(given, Tensor) and not values.numel():
        values = values.long()
    if values.dtype not in WHOLE:
        raise ModelError(f"{name} needs integers; got a tensor of {values.dtype}.")
    refuse_hollow(name, values)
    return values


def as_states(name: str, given: Any) -> Tensor:
    """States to be scored: a tensor as it is, array-likes of whole numbers as int64.

    Raises:
        EvidenceError: anything else.
    """
    if isinstance(given, Tensor):
        return given
    try:
        return as_whole(name, given).long()
    except ModelError as error:
        raise EvidenceError(str(error)) from None


def is_array(value: object) -> bool:
    """Whether something is an array of another library than torch, as NumPy's are."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def array_of(value: Any) -> Any:
    """A NumPy array of its own, contiguous, in the machine's byte order."""
    import numpy

    array = numpy.array(value)
    return array.astype(array.dtype.newbyteorder("="))


def _converted(name: str, given: Any, wanted: str) -> Tensor:
    try:
        return _tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ModelError(
            f"{name} needs {wanted} as a tensor, an array or lists of one length in each dim; got "
            f"{_shown(given)}."
        ) from None


def _tensor(given: Any) -> Tensor:
    if isinstance(given, Tensor):
        return given
    if isinstance(given, list | tuple):
        if any(isinstance(part, Tensor | list | tuple) or is_array(part) for part in given):
            return torch.stack([_tensor(part) for part in given])
        return torch.tensor(given)
    if is_array(given):
        return torch.from_numpy(array_of(given))
    if not isinstance(given, int | float):
        raise TypeError
    return torch.tensor(given)


def _shown(given: object) -> str:
    text = " ".join(repr(given).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
