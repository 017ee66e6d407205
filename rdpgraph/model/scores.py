"""Log-values of the factors of a graph at given configurations."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING


def log_values_at(
    states: Tensor, domain: Domain, blocks: Sequence[Block], observed: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Iterator[Tensor], tuple[int, ...]]:  # fmt: skip
    """Configurations (*lead, V) read off a graph, -1 where a variable has no state of its own.

    Returns:
        (..., V or 1) bool, where a state contradicts the evidence; for each block (..., F) the
        log-values of its factors, differentiable; the dims in front.

    Raises:
        EvidenceError: a variable has no state.
    """
    clash = torch.zeros(1, dtype=torch.bool, device=device)
    if observed is not None:
        seen, states = torch.broadcast_tensors(observed, states)
        clash = ((seen != MISSING) & (states != MISSING) & (seen != states)).to(device)
        states = torch.where(states == MISSING, seen, states)
    missing = states == MISSING
    lacking = (missing.flatten(0, -2).any(0) if missing.ndim > 1 else missing).nonzero()
    if len(lacking):
        name = domain.variable(int(lacking[0])).name
        raise EvidenceError(
            f"An assignment needs a state for every variable; {len(lacking)} have none, "
            f"such as {name!r}."
        )

    def values() -> Iterator[Tensor]:
        for block in blocks:
            chosen = states[..., block.scopes].to(device)
            slots = [chosen[..., slot].unsqueeze(-1) for slot in range(block.arity)]
            each = block.select().evaluate(slots)
            each = each.reshape(each.shape[: each.ndim - block.arity] or (1,))
            yield each.expand(*each.shape[:-1], block.count)

    return clash, values(), tuple(states.shape[:-1])
