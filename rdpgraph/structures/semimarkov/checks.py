"""What the fields of a semi-Markov chain must be; errors in one line."""

from torch import Tensor

from rdpgraph._shapes import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import checked_log_values


def checked_fields(segments: Tensor, transition: Tensor | Potential) -> None:
    """Check segments (*batch, T, D, N) and their transition."""
    checked_log_values("SemiMarkov's segments", segments)
    if isinstance(transition, Tensor):
        checked_log_values("SemiMarkov's transition", transition)
    if segments.ndim < 3 or min(segments.shape[-2:]) < 1:
        raise ModelError(
            "SemiMarkov needs segments (*batch, T, D, N) with D and N >= 1; got "
            f"{tuple(segments.shape)}."
        )
    *batch, steps, _, labels = segments.shape
    shape, each = tuple(transition.shape), (max(steps - 1, 0), labels, labels)
    if shape != each[1:] and (shape[-3:] != each or not broadcasts(shape[:-3], batch)):
        raise ModelError(
            f"SemiMarkov of {steps} positions and {labels} labels, batch {tuple(batch)}, needs a "
            f"transition of shape {each[1:]} or (*batch, *{each}), [from, to]; got {shape}."
        )
    if isinstance(transition, LowRank) and len(shape) > 2:
        raise ModelError(
            f"SemiMarkov takes a LowRank transition for all positions, {each[1:]}; got {shape}: "
            "give its table(2)."
        )
    for what, own, theirs in (
        ("type", segments.dtype, transition.dtype),
        ("device", segments.device, transition.device),
    ):
        if own != theirs:
            raise ModelError(
                f"SemiMarkov needs segments and transition of one {what}; got {own} and {theirs}."
            )
