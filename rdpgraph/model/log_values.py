"""Tensors of log-values: their types, and what is refused in them."""

import math

import torch
from torch import Tensor

from rdpgraph.errors import ModelError

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def checked_log_values(name: str, log_values: Tensor) -> float:
    """The largest of log-values; refuses what cannot be such: not a floating tensor, NaN, +inf.

    Inside `torch.compile` the values themselves are not looked at: that would break the graph.
    """
    if not isinstance(log_values, Tensor):
        raise ModelError(f"{name} needs a floating tensor of log-values; got {log_values!r:.80}.")
    if log_values.dtype not in FLOATING:
        raise ModelError(f"{name} needs floating log-values; got a tensor of {log_values.dtype}.")
    if torch.compiler.is_compiling():
        return -math.inf
    refuse_hollow(name, log_values)
    highest = log_values.detach().amax().item() if log_values.numel() else -math.inf
    if not highest < math.inf:
        kind = "NaN" if bool(log_values.isnan().any()) else "+inf"
        raise ModelError(f"{name} needs log-values below +inf (-inf is a hard zero); got {kind}.")
    return highest


def refuse_hollow(name: str, values: Tensor) -> None:
    """Refuse a tensor without values (meta), or without all of them (sparse, or on many ranks)."""
    if type(values).__name__ == "DTensor":  # imported by those alone who have one
        raise ModelError(
            f"{name} needs values that are all here; got a DTensor: take its full_tensor(), or "
            "declare the model in rdpgraph.distributed."
        )
    if values.is_meta and not torch.compiler.is_compiling():
        raise ModelError(f"{name} needs values; got a tensor on the device meta, which holds none.")
    if values.layout != torch.strided:
        raise ModelError(f"{name} needs a dense tensor; got {values.layout}: use to_dense().")
