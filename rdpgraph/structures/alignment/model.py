"""Alignments: distributions over the monotone paths through two sequences."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import remembered
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import settle
from rdpgraph.structures.alignment.grid import (
    DELETION,
    INSERTION,
    MATCH,
    NEXT,
    SKIP,
    STAY,
    Grid,
    Move,
    checked_alignment,
    ctc_unary,
    pairwise_unary,
)
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.recursion.recursion import Recursion
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value


@remembered(8, where=lambda shape, moves, device: shape[0] * shape[1] <= 2**15)  # noqa: ARG005
def _grid(shape: tuple[int, ...], moves: tuple[Move, ...], device: torch.device) -> Grid:
    return Grid.of(shape, moves, device)


@dataclass(frozen=True, eq=False)
class Alignment(Recursion):
    """Monotone paths through the grid of two sequences of S and T positions.

    A path moves from cell (0, 0), before both, to cell (S, T), after both; a cell says how many
    positions of each are behind. Each of the N states has a move: how many positions of the first
    and of the second sequence it takes. The score of a path is the sum of `unary` over the cells
    it comes to, each in the state that led there, and of `transition` between states in turn.
    Sites are cells: those off the path have state -1, and marginals are the expected alignment.

    O(S T N) time, O(S T N^2) with a transition, in S + T steps over diagonals; in S steps over rows
    where every move takes a position of the first sequence, or T where every one of the second.

    Args:
        unary: (*batch, S + 1, T + 1, N) log-potentials (nats); -inf forbids. Those of cell (0, 0)
            are ignored.
        moves: of each state; default: a match, a deletion (of a position of the first sequence)
            and an insertion (of one of the second).
        transition: (N, N) log-potentials, [from, to], or a `Potential`; default: none.
        local: whether a path may start and end at any cell; the empty one has score 0.
        first_lengths: (*batch,) integers in 0..S; default: all S.
        second_lengths: (*batch,) integers in 0..T; default: all T.

    Raises:
        ModelError: shapes that do not fit, a move that takes nothing, a length out of range.

    Example:
        >>> Alignment(torch.zeros(3, 3, 3)).log_partition().exp()  # the Delannoy number of 2 and 2
        tensor(13.)
    """

    moves: tuple[Move, ...] = (MATCH, DELETION, INSERTION)
    transition: Tensor | Potential | None = None
    local: bool = field(default=False, kw_only=True)
    first_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})
    second_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 2

    def __post_init__(self) -> None:
        settle(self, "unary", "transition", whole=("first_lengths", "second_lengths"))
        checked_alignment(self.unary, self.moves, self.transition)
        first, second = self.unary.shape[-3:-1]
        settle_lengths(self, first_lengths=first - 1, second_lengths=second - 1)

    @classmethod
    def pairwise(
        cls, match: Tensor, deletion: Tensor, insertion: Tensor, **rest: Any
    ) -> "Alignment":
        """From scores of pairs and of gaps: `match` (*batch, S, T) and what broadcasts to it.

        `deletion` is that of a position of the first sequence after so many of the second,
        (*batch, S, T + 1); `insertion` likewise, (*batch, S + 1, T). The rest are other fields: for
        affine gaps a transition between matches, deletions and insertions, which opens them.
        """
        return cls(pairwise_unary(match, deletion, insertion), **rest)

    @classmethod
    def ctc(
        cls, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
        *, blank: int = 0,
    ) -> "Alignment":  # fmt: skip
        """Frames and the labels that they spell: log Z is minus `torch.nn.functional.ctc_loss`.

        Arguments as there: (T, batch, classes), (batch, U) or (sum of lengths,), (batch,) twice.
        Impossible items have log Z -inf, and gradients of zero. Cell (t + 1, 2 u + 2) is label u at
        frame t, and those beside it blanks; one end follows each sequence. The states stay, go on,
        and skip a blank.

        Raises:
            ModelError: shapes that do not fit, a class or a length out of range.
        """
        unary, frames, ends = ctc_unary(log_probs, targets, input_lengths, target_lengths, blank)
        return cls(unary, (STAY, NEXT, SKIP), first_lengths=frames, second_lengths=ends)

    def pair_marginals(self) -> Tensor:
        """(*batch, S, T) the probability that a pair of positions is matched; differentiable."""
        matches = [state for state, move in enumerate(self.moves) if move == MATCH]
        return self.marginals()[..., 1:, 1:, matches].sum(-1)

    def recursion(self, tape: Tape) -> Value:
        """Line by line; each cell from those that its states' moves come from."""
        grid, moves = (
            _grid(tape.site_shape, tuple(self.moves), tape.device),
            sorted(set(self.moves)),
        )
        kinds = torch.tensor([moves.index(move) for move in self.moves], device=tape.device)
        # In front of the first line there is one from which nothing comes.
        starts, states, reached = [tape.nothing], [tape.nothing], [tape.nothing]
        for line, cells in enumerate(grid.lines):
            site, came = tape.sites[cells], [grid.before(line, move) for move in moves]
            if self.transition is None:
                past = (tape.view(reached[source], index) for source, index in came)
                states.append(tape.total((site, tape.pick(tape.beside(*past), kinds, to=site))))
            else:
                ways: list[tuple[Value, ...]] = [(site, tape.nothing)]
                for kind, (source, index) in enumerate(came):
                    if source:
                        own = site, tape.lookup(torch.where(kinds == kind, 0.0, -torch.inf), site)
                        earlier = tape.total(tape.view(states[source], index))
                        ways.append((*own, tape.link(earlier, self.transition, to=site)))
                        ways.append((*own, tape.total(tape.view(starts[source], index))))
                states.append(tape.total(*ways))
            begin = (cells[0] == 0) & (cells[1] == 0)
            starts.append(tape.allowed((begin | self.local).unsqueeze(0)))
            summed = tape.sum(states[-1])
            reached.append(tape.total(starts[-1], summed) if self.local or not line else summed)
        first, second = (torch.cat(part) for part in zip(*grid.lines, strict=True))
        sizes = zip((self.first_lengths, self.second_lengths), tape.site_shape, strict=True)
        ends = [tape.lengths(given, size - 1).unsqueeze(1) for given, size in sizes]
        if not self.local:
            last = ((first == ends[0]) & (second == ends[1])).long().argmax(1)
            return tape.choose(reached[1:], last)
        inside = tape.allowed((first <= ends[0]) & (second <= ends[1]))
        every = torch.arange(len(first), device=tape.device).unsqueeze(1)
        stops = tape.view([tape.sum(value) for value in states[1:]], every)
        return tape.total(tape.one, (stops, tape.view(inside, every)))
