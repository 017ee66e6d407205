"""Best sequences and draws of chains whose states lie on several ranks.

What leads to every state is on every rank, (T, B, N); the column of the state after it is on one,
which decides the state before and tells the others: one number an item and step. The noise of draws
is that of all states on every rank, so that they do not depend on how many ranks there are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.shapes import broadcast_shapes
from rdpgraph.distributed import logs, scaled
from rdpgraph.distributed.wire import Split
from rdpgraph.logspace.logmatrix import finite, log_products
from rdpgraph.model.potentials.lowrank import rows_of
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.structures.chain.factors import inside, masked, step_of
from rdpgraph.structures.chain.steps import advance
from rdpgraph.structures.chain.tensors import ChainTensors, RankTensors
from rdpgraph.structures.draws import gumbel

_CELLS = 2**22  # sums that are formed at a time


@dataclass(frozen=True, eq=False)
class Columns(Potential):
    """A transition of which each rank holds some columns; every value goes to every rank.

    Attributes:
        local: (*lead, N, n) the columns here.
        split: of the states.
    """

    local: Tensor
    split: Split

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.local.shape[:-1], self.split.total)

    @property
    def dtype(self) -> torch.dtype:
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        return self.local.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        here, places = self.split.owned(states[1])
        if self.split.local:
            values = Table.from_logs(self.local).evaluate([states[0], places])
            values = torch.where(here.unsqueeze(-2), values, 0.0)
        else:
            lead = broadcast_shapes(
                self.local.shape[:-2], states[0].shape[:-1], states[1].shape[:-1]
            )
            values = self.local.new_zeros(*lead, states[0].shape[-1], states[1].shape[-1])
        return self.split.wire.summed(values)


@dataclass(frozen=True, eq=False)
class RankRows(Potential):
    """A `LowRank` transition whose rows lie on several ranks; those asked for go to every rank.

    Attributes:
        left: (*lead, n, r) the log-factors of the states here, as those before.
        right: (*lead, n, r) as those after.
        split: of the states.
    """

    left: Tensor
    right: Tensor
    split: Split

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table with the columns of all ranks."""
        lead = broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*lead, self.split.total, self.split.total)

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    @property
    def device(self) -> torch.device:
        return self.left.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, from the rows of both sides."""
        return log_products(
            rows_from(self.left, states[0], self.split),
            rows_from(self.right, states[1], self.split),
        )


def rows_from(local: Tensor, states: Tensor, split: Split) -> Tensor:
    """(*lead, m, r) the rows of some states, from the ranks that have them."""
    here, places = split.owned(states)
    if split.local:
        rows = torch.where(here.unsqueeze(-1), rows_of(local, places), 0.0)
    else:
        lead = broadcast_shapes(local.shape[:-2], states.shape[:-1])
        rows = local.new_zeros(*lead, states.shape[-1], local.shape[-1])
    return split.wire.summed(rows)


@torch.no_grad()
def viterbi(parts: ChainTensors, split: Split) -> Tensor:
    """(B, T) best states, -1 beyond the length and where nothing is possible; as `decode`."""
    unary = masked(parts.unary, parts.lengths)
    peaks = split.wire.largest(_highest(unary))
    unary = unary - finite(peaks).unsqueeze(2)
    messages = list[Tensor]()
    for step, local in enumerate(unary.unbind(1)):
        if step:
            matrix = step_of(parts.transition, step - 1)
            best = _maxima(messages[-1], matrix)
            top = finite(split.wire.largest(_highest(best))).unsqueeze(1)
            linked = (step < parts.lengths).unsqueeze(1)
            local = local + torch.where(linked, best - top, 0.0)
        messages.append(split.gathered(local))
    return _traced(messages, parts, split, count=1, noise=None)[0]


@torch.no_grad()
def draw(
    parts: ChainTensors, split: Split, count: int, generator: torch.Generator | None
) -> Tensor:
    """(count, B, T) exact draws, those of `sampling.draw`."""
    unary, transition, lengths = parts
    messages = list[Tensor]()
    if unary.shape[1]:
        _, states, _, _, doubtful = scaled.forward(unary, transition, lengths, split)
        logs_of = states.log()
        if bool(doubtful.any()):
            logs_of = _in_logs(parts, split)
        messages = list(logs_of.unbind(1))
    shape = (count, len(unary), split.total)
    return _traced(
        messages, parts, split, count=count, noise=lambda: gumbel(shape, unary, generator)
    )


def _in_logs(parts: ChainTensors, split: Split) -> Tensor:
    """(B, T, N) log-states of any range."""
    unary = masked(parts.unary, parts.lengths)
    forward = list[Tensor]()
    for step, local in enumerate(unary.unbind(1)):
        if step:
            local = advance(forward[-1], step_of(parts.transition, step - 1)) + local
        whole = split.gathered(local)
        forward.append(whole - finite(whole.amax(1)).unsqueeze(1))
    within = inside(parts.lengths, unary.shape[1]).unsqueeze(2)
    return torch.where(within, torch.stack(forward, 1), -math.inf)


def _traced(
    messages: list[Tensor], parts: ChainTensors, split: Split, *, count: int,
    noise: Callable[[], Tensor] | None,
) -> Tensor:  # fmt: skip
    """(count, B, T) states from the last step backwards, as `structures.chain.paths.traceback`."""
    lengths, batch, device = parts.lengths, len(parts.unary), parts.unary.device
    decided, items = list[Tensor](), torch.arange(batch, device=device)
    for step in range(len(messages) - 1, -1, -1):
        shaken = None if noise is None else noise()
        logits = messages[step].expand(count, -1, -1)
        state = (logits if shaken is None else logits + shaken).argmax(-1)
        if decided:
            here, places = split.owned(decided[-1])
            matrix = step_of(parts.transition, step)
            told = torch.zeros_like(state)
            draws, rows = here.nonzero(as_tuple=True)
            if len(draws):
                chosen = places[draws, rows]
                local = (chosen,) if matrix.ndim == 2 else (items[rows] % len(matrix), chosen)
                logits = messages[step][rows] + matrix.mT[local]
                logits = logits if shaken is None else logits + shaken[draws, rows]
                told[draws, rows] = logits.argmax(-1)
            goes_on = (step + 1 < lengths).unsqueeze(0)
            state = torch.where(goes_on, split.wire.summed(told), state)
        decided.append(state)
    return _finished(decided, messages, lengths, count)


def _finished(decided: list[Tensor], messages: list[Tensor], lengths: Tensor, count: int) -> Tensor:
    total, batch = len(messages), len(lengths)
    if not total:
        return torch.empty(count, batch, 0, dtype=torch.long, device=lengths.device)
    alive = torch.stack([(message > -math.inf).any(1) for message in messages], 1)
    possible = alive.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1))
    states = torch.stack(decided[::-1], -1)
    return torch.where(inside(lengths, total) & possible, states, -1)


@torch.no_grad()
def draw_by_rank(
    parts: RankTensors, split: Split, count: int, generator: torch.Generator | None
) -> Tensor:
    """(count, B, T) exact draws by way of the ranks: r numbers a draw, item and step are told."""
    messages = list(logs.sweep(parts, split, logs.Shifts()))
    shape = (count, len(parts.unary), split.total)
    decided, alive = list[Tensor](), list[Tensor]()
    for step in range(len(messages) - 1, -1, -1):
        logits = messages[step].expand(count, -1, -1)
        if decided:
            side = step_of(parts.transition.right, step)
            # The rows of the states that follow, then all that leads to them.
            row = rows_from(side, decided[-1].mT, split)
            left = step_of(parts.transition.left, step)
            into = log_products(row, left).transpose(0, 1)
            goes_on = (step + 1 < parts.lengths).reshape(1, -1, 1)
            logits = logits + torch.where(goes_on, into, 0.0)
        local = logits + split.part(gumbel(shape, parts.unary, generator))
        decided.append(_chosen(local, split))
        alive.append(split.wire.largest(_highest(messages[step])).unsqueeze(1))
    return _finished(decided, alive[::-1], parts.lengths, count)


def _chosen(logits: Tensor, split: Split) -> Tensor:
    """(count, B) the state of the largest of (count, B, n), over the ranks; the first of ties."""
    best, places = _highest(logits), torch.zeros_like(logits[..., :0].sum(-1), dtype=torch.long)
    if logits.shape[-1]:
        places = logits.argmax(-1) + split.start
    # Both in one message: a number of states is exact in float64.
    pairs = split.wire.stacked(torch.stack([best.double(), places.double()]))
    winner = pairs[:, 0].argmax(0, keepdim=True)
    return pairs[:, 1].gather(0, winner)[0].long()


def columns(left: Tensor, right: Tensor, split: Split) -> Tensor:
    """(N, n), or (1 or B, T-1, N, n): the columns here of a transition of low rank."""
    flat = left.movedim(-2, -1).flatten(0, -2)
    whole = split.gathered(flat).reshape([*left.shape[:-2], left.shape[-1], split.total])
    return log_products(whole.movedim(-1, -2), right)


def _highest(logs: Tensor) -> Tensor:
    """The maxima of the last dim; -inf where there are no entries."""
    return logs.amax(-1) if logs.shape[-1] else logs.new_full(logs.shape[:-1], -math.inf)


def _maxima(state: Tensor, matrix: Tensor) -> Tensor:
    """``max_i(state_i + matrix_ij)``, (B, n), in blocks of rows."""
    best = state.new_full((len(state), matrix.shape[-1]), -math.inf)
    rows = max(1, _CELLS // max(1, best.numel()))
    for start in range(0, state.shape[1], rows):
        part = slice(start, start + rows)
        torch.maximum(best, (state[:, part, None] + matrix[..., part, :]).amax(1), out=best)
    return best
