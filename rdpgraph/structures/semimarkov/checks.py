"""What the fields of a semi-Markov chain must be; errors in one line."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import checked_log_values
from rdpgraph.structures.semimarkov.transitions import checked_transition


def checked_fields(
    segments: Tensor, transition: Tensor | Potential, lengths: Tensor | Sequence[int] | None
) -> Tensor | None:
    """Check segments (*batch, T, D, N), their transition and lengths (*batch,); the lengths."""
    checked_log_values("SemiMarkov's segments", segments)
    if isinstance(transition, Tensor):
        checked_log_values("SemiMarkov's transition", transition)
    shape = tuple(segments.shape)
    if len(shape) < 3 or min(shape[-2:]) < 1:
        raise ModelError(
            f"SemiMarkov needs segments (*batch, T, D, N) with D and N >= 1; got {shape}."
        )
    checked_transition(transition, segments)
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=segments.device)
    whole = not (lengths.is_floating_point() or lengths.dtype == torch.bool)
    if not whole or tuple(lengths.shape) != shape[:-3]:
        raise ModelError(
            f"SemiMarkov of batch shape {shape[:-3]} needs integer lengths of that shape; got "
            f"{lengths.dtype} of shape {tuple(lengths.shape)}."
        )
    if not bool(((lengths >= 0) & (lengths <= shape[-3])).all()):
        raise ModelError(
            f"SemiMarkov of {shape[-3]} positions needs lengths from 0 to {shape[-3]}; got "
            f"{int(lengths.min())} to {int(lengths.max())}."
        )
    return lengths
