"""What the fields of a semi-Markov chain must be; errors in one line."""

from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import checked_log_values
from rdpgraph.structures.chain.checks import checked_transition


def checked_fields(segments: Tensor, transition: Tensor | Potential) -> None:
    """Check segments (*batch, T, D, N) and their transition."""
    checked_log_values("SemiMarkov's segments", segments)
    if segments.ndim < 3 or min(segments.shape[-2:]) < 1:
        raise ModelError(
            "SemiMarkov needs segments (*batch, T, D, N) with D and N >= 1; got "
            f"{tuple(segments.shape)}."
        )
    checked_transition(transition, segments[..., 0, :], owner="SemiMarkov")
    if isinstance(transition, LowRank) and len(transition.shape) > 2:
        raise ModelError(
            f"SemiMarkov takes a LowRank transition for all positions, {transition.shape[-2:]}; "
            f"got {transition.shape}: give its table(2)."
        )
    if segments.dtype != transition.dtype:
        raise ModelError(
            "SemiMarkov needs segments and transition of one type; got "
            f"{segments.dtype} and {transition.dtype}."
        )
