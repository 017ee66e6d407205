"""Alignments: distributions over the monotone paths through two sequences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import remembered
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.portable import in_full_precision
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import (
    as_values,
    as_whole,
    broadcast_values,
    checked_log_table,
    checked_log_values,
    settle,
)
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.recursion.inputs import tensor_of
from rdpgraph.structures.recursion.layouts import PREPARED, emptied, uncollected
from rdpgraph.structures.recursion.program import Program, lowered
from rdpgraph.structures.recursion.repeats import continued
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View
from rdpgraph.structures.recursions import Recursion

Move = tuple[int, int]
MATCH, DELETION, INSERTION = (1, 1), (1, 0), (0, 1)  # moves along both sequences
STAY, NEXT, SKIP = (1, 0), (1, 1), (1, 2)  # moves along frames and labels
_KEPT_CELLS = 2**15
"""Cells of a grid whose program is kept."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of an alignment in an order that every move follows: rows, columns or diagonals."""

    sweep: Move  # the weights of both coordinates in the number of a line
    cells: Sequence[Tensor]  # the numbers of the cells of each line, row by row
    sizes: Sequence[int]  # how many these are
    firsts: Sequence[int]  # the first one's row, in rows its column
    device: torch.device
    known: dict[tuple[int, ...], Tensor] = field(
        default_factory=dict[tuple[int, ...], Tensor], init=False, repr=False
    )

    @classmethod
    def of(cls, shape: Sequence[int], moves: Sequence[Move], device: torch.device) -> "Grid":
        """Order cells by rows or columns if every move leaves these, else by diagonals."""
        rows, columns = shape
        numbers = torch.arange(rows * columns, device=device).reshape(rows, columns)
        if all(move[0] for move in moves):
            return cls((1, 0), numbers.unbind(), [columns] * rows, [0] * rows, device)
        if all(move[1] for move in moves):
            return cls((0, 1), numbers.mT.unbind(), [rows] * columns, [0] * columns, device)
        turned, lines = numbers.flip(1), range(rows + columns - 1)
        firsts = [max(0, line - columns + 1) for line in lines]
        sizes = [min(line, rows - 1) + 1 - firsts[line] for line in lines]
        cells = [turned.diagonal(columns - 1 - line) for line in lines]
        return cls((1, 1), cells, sizes, firsts, device)

    def before(self, line: int, move: Move) -> tuple[int, Tensor]:
        """The line, from 1, that a move to each cell of a line starts from, and the place there.

        (1, cells), the size of that line: the move starts outside; line 0 is none, of size 1.
        """
        source = line - self.sweep[0] * move[0] - self.sweep[1] * move[1]
        if source < 0:
            return 0, torch.ones_like(self.cells[line]).unsqueeze(0)
        key = move if self.sweep != (1, 1) else (line, *move)
        if key not in self.known:
            start = self.firsts[line] - self.firsts[source] - move[self.sweep == (1, 0)]
            places = np.arange(start, start + self.sizes[line]).reshape(1, -1)
            places[(places < 0) | (places >= self.sizes[source])] = self.sizes[source]
            self.known[key] = torch.as_tensor(places, device=self.device)
        return source + 1, self.known[key]


def checked_alignment(
    unary: Tensor, moves: Sequence[Move], transition: Tensor | Potential | None
) -> None:
    """Check the fields of an `Alignment`."""
    checked_log_values("Alignment", unary)
    shape = tuple(unary.shape)
    if len(shape) < 3 or 0 in shape[-3:] or len(moves) != shape[-1]:
        raise ModelError(
            "Alignment needs unary (*batch, S + 1, T + 1, N), and a move of each of the N states; "
            f"got {shape} and {len(moves)} moves."
        )
    if isinstance(transition, Tensor):
        checked_log_table("Alignment's transition", transition)
    if any(min(move) < 0 or max(move) < 1 for move in moves):
        raise ModelError(f"Alignment needs moves that advance in a sequence; got {tuple(moves)}.")
    if transition is not None and tuple(transition.shape[-2:]) != (shape[-1],) * 2:
        raise ModelError(
            f"Alignment of {shape[-1]} states needs a transition [from, to] of that size; got "
            f"{tuple(transition.shape)}."
        )


def pairwise_unary(match: Tensor, deletion: Tensor, insertion: Tensor) -> Tensor:
    """(*batch, S + 1, T + 1, 3) from scores of pairs and gaps, for `Alignment.pairwise`."""
    match = in_full_precision(as_values("Alignment.pairwise's match", match))
    if match.ndim < 2:
        raise ModelError(
            f"Alignment.pairwise needs match (*batch, S, T); got {tuple(match.shape)}."
        )
    *batch, first, second = match.shape
    shapes = ((first, second), (first, second + 1), (first + 1, second))
    given = {"match": match, "deletion": deletion, "insertion": insertion}
    parts: list[Tensor] = []
    for (name, part), shape in zip(given.items(), shapes, strict=True):
        before = (second + 1 - shape[1], 0, first + 1 - shape[0], 0)
        wide = broadcast_values(f"Alignment.pairwise's {name}", part, (*batch, *shape), match)
        parts.append(pad(wide, before, value=-math.inf))
    return torch.stack(parts, -1)


def ctc_unary(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, T + 2, 2 U + 3, 3) of `Alignment.ctc`, and the lengths of both sequences."""
    log_probs = as_values("Alignment.ctc's log_probs", log_probs)
    targets, input_lengths, target_lengths = (
        as_whole(f"Alignment.ctc's {name}", part)
        for name, part in (
            ("targets", targets),
            ("input_lengths", input_lengths),
            ("target_lengths", target_lengths),
        )
    )
    checked_log_values("Alignment.ctc", log_probs)
    if log_probs.ndim != 3 or not is_whole(blank, 0) or blank >= log_probs.shape[2]:
        raise ModelError(
            "Alignment.ctc needs log_probs (T, batch, classes) and a blank among the classes; got "
            f"{tuple(log_probs.shape)} and {blank!r:.40}."
        )
    frames, batch, classes = log_probs.shape
    device = log_probs.device
    spans, sizes = (part.to(device, torch.long) for part in (input_lengths, target_lengths))
    if spans.shape != (batch,) or sizes.shape != (batch,):
        raise ModelError(
            f"Alignment.ctc needs input_lengths and target_lengths of shape ({batch},); got "
            f"{tuple(spans.shape)} and {tuple(sizes.shape)}."
        )
    targets = targets.to(device, torch.long)
    flat = targets.ndim == 1 and bool((sizes >= 0).all()) and int(sizes.sum()) == len(targets)
    if not flat and (targets.ndim != 2 or len(targets) != batch):
        raise ModelError(
            f"Alignment.ctc of {batch} items needs targets ({batch}, labels), or (labels,) of all "
            f"in turn, as many as their lengths say; got {tuple(targets.shape)}."
        )
    if flat:
        parts = list(torch.split(targets, sizes.tolist()))
        targets = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    most = targets.shape[1]
    limits = ((spans, frames), (sizes, most))
    if any(bool(((lengths < 0) | (lengths > limit)).any()) for lengths, limit in limits):
        raise ModelError(f"Alignment.ctc needs lengths up to {frames} frames and {most} labels.")
    inside = torch.arange(most, device=device) < sizes.unsqueeze(1)
    if targets.numel() and bool(((targets < 0) | (targets >= classes))[inside].any()):
        raise ModelError(f"Alignment.ctc of {classes} classes needs targets 0 to {classes - 1}.")
    spelt_blank = ((targets == blank) & inside).nonzero()
    if len(spelt_blank):
        item, place = spelt_blank[0].tolist()
        raise ModelError(
            f"Alignment.ctc needs targets of labels other than the blank, {blank}; item {item} has "
            f"it at {place}. Leave it out, or give another class as blank=."
        )
    # Blanks around the labels: (batch, 2 U + 1).
    spelt = targets.new_full((batch, 2 * most + 1), blank)
    spelt[:, 1::2] = torch.where(inside, targets, blank)
    index = spelt.expand(frames, *spelt.shape)
    heard = log_probs.gather(2, index).transpose(0, 1)
    cells = pad(heard, (1, 1, 1, 1), value=-math.inf)
    # One end after the frames and the labels of each item.
    place = torch.arange(frames + 2, device=device).unsqueeze(1)
    stand = torch.arange(2 * most + 3, device=device)
    ends = spans + 1, 2 * sizes + 2
    beyond = (place >= ends[0].reshape(-1, 1, 1)) | (stand >= ends[1].reshape(-1, 1, 1))
    cells = cells.masked_fill_(beyond, -math.inf)
    cells[torch.arange(batch, device=device), *ends] = 0.0
    # A blank is skipped before a label that differs from the last, and before the end.
    skips = torch.zeros_like(cells[:, 0], dtype=torch.bool)
    last_but_one = pad(spelt, (2, 0), value=-1)[:, :-2]
    skips[:, 1:-1] = (spelt != blank) & (spelt != last_but_one)
    skips = skips | (stand == ends[1].unsqueeze(1))
    moves = cells.new_zeros(batch, 1, 2 * most + 3, 3)
    moves[..., 2].masked_fill_(~skips.unsqueeze(1), -math.inf)
    unary = cells.unsqueeze(-1) + moves
    return unary, *ends


_grid = remembered(8, where=lambda shape, moves, device: shape[0] * shape[1] <= 2**15)(Grid.of)  # noqa: ARG005


@dataclass(frozen=True, eq=False)
class Alignment(Recursion):
    """Monotone paths through the grid of two sequences of S and T positions.

    A path moves from cell (0, 0), before both, to cell (S, T), after both; cell (i, j) is reached
    after i and j positions. Each of the N states has a move: the positions of the first and of the
    second sequence it takes. The score of a path is the sum of `unary` over the cells it reaches,
    each in the state of the move, and of `transition` between consecutive states. Sites are cells:
    those off the path have state -1, and marginals are the expected alignment.

    O(S T N) time, O(S T N^2) with a transition, in S + T steps over diagonals; in S steps over rows
    if every move takes a position of the first sequence, or T if every one takes of the second.

    Args:
        unary: (*batch, S + 1, T + 1, N) log-potentials (nats); -inf forbids. Cell (0, 0) is
            ignored.
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

    why_no_graph = (
        "its cells are joined by moves, and no small factors say which of them form a path"
    )
    site_dims = 2

    def __post_init__(self) -> None:
        settle(self, "unary", "transition", whole=("first_lengths", "second_lengths"))
        require_fields(self)
        checked_alignment(self.unary, self.moves, self.transition)
        first, second = self.unary.shape[-3:-1]
        settle_lengths(self, first_lengths=first - 1, second_lengths=second - 1)

    @classmethod
    def pairwise(
        cls, match: Tensor, deletion: Tensor, insertion: Tensor, **rest: Any
    ) -> "Alignment":
        """Alignments by scores of pairs and gaps: `match` (*batch, S, T) and what broadcasts to it.

        `deletion` (*batch, S, T + 1) scores a position of the first sequence after some number of
        the second; `insertion` (*batch, S + 1, T) likewise. The rest are other fields: for affine
        gaps, a transition between matches, deletions and insertions.
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
        frame t, with blanks before and after it, and one end after each sequence. The states stay,
        go on, and skip a blank.

        Raises:
            ModelError: shapes that do not fit, a class or a length out of range, or a target that
                has the blank among its labels; beyond its length it may hold anything.
        """
        unary, frames, ends = ctc_unary(log_probs, targets, input_lengths, target_lengths, blank)
        return cls(unary, (STAY, NEXT, SKIP), first_lengths=frames, second_lengths=ends)

    def pair_marginals(self) -> Tensor:
        """(*batch, S, T) the probability that a pair of positions is matched; differentiable."""
        matches = [state for state, move in enumerate(self.moves) if move == MATCH]
        return self.marginals()[..., 1:, 1:, matches].sum(-1)

    def recursion(self, tape: Tape) -> Value:
        grid, moves = (
            _grid(tape.site_shape, tuple(self.moves), tape.device),
            sorted(set(self.moves)),
        )
        kinds = torch.tensor([moves.index(move) for move in self.moves], device=tape.device)
        # Line 0 is empty.
        starts, states, reached = [tape.nothing], [tape.nothing], [tape.nothing]
        for line, cells in enumerate(grid.cells):
            site, came = tape.sites.leaf(cells), [grid.before(line, move) for move in moves]
            if self.transition is None:
                past = (View((reached[source],), index) for source, index in came)
                states.append(
                    tape.total((site, tape.pick(tape.concatenate(*past), kinds, to=site)))
                )
            else:
                ways: list[tuple[Value, ...]] = [(site, tape.nothing)]
                for kind, (source, index) in enumerate(came):
                    if source:
                        cell = site, tape.lookup(torch.where(kinds == kind, 0.0, -torch.inf), site)
                        earlier = tape.total(View((states[source],), index))
                        ways.append((*cell, tape.link(earlier, self.transition, to=site)))
                        ways.append((*cell, tape.total(View((starts[source],), index))))
                states.append(tape.total(*ways))
            reached.append(tape.sum(states[-1]))
            if self.local or not line or self.transition is not None:
                starts.append(tape.allowed(((cells == 0) | self.local).unsqueeze(0)))
            if self.local or not line:
                reached[-1] = tape.total(starts[-1], reached[-1])
        cells = torch.cat(list(grid.cells))
        sizes = zip((self.first_lengths, self.second_lengths), tape.site_shape, strict=True)
        ends = [tape.lengths(given, size - 1) for given, size in sizes]
        if not self.local:
            number = cells.argsort().reshape(tape.site_shape)
            return tape.choose(reached[1:], number[tuple(ends)])
        first, second = cells // tape.site_shape[1], cells % tape.site_shape[1]
        inside = (first <= ends[0].unsqueeze(1)) & (second <= ends[1].unsqueeze(1))
        inside = tape.allowed(inside)
        every = torch.arange(len(cells), device=tape.device).unsqueeze(1)
        stops = tape.view([tape.sum(value) for value in states[1:]], every)
        return tape.total(tape.one, (stops, tape.view(inside, every)))


def _prepared(tape: Tape, model: Alignment) -> tuple[Program, Sequence[Tensor]] | None:
    """The program without a transition; of many lines continued from that of few."""
    moves, shape = tuple(model.moves), tape.site_shape
    if model.local or model.transition is not None:
        return None
    sizes = zip((model.first_lengths, model.second_lengths), shape, strict=True)
    ends = [tape.lengths(given, size - 1) for given, size in sizes]
    along = [axis for axis in (0, 1) if all(move[axis] for move in moves)]
    axis = along[0] if along else int(shape[1] > shape[0])
    places, reach = shape[1 - axis], (move[axis] if along else sum(move) for move in moves)
    after = 0 if along else places - 1  # the shorter diagonals at either end
    few = max(reach) + 2 + after
    if not along and places * min(few + 1, shape[axis]) > _KEPT_CELLS:
        return None
    if shape[axis] > few:
        some = [(lines, places) if axis == 0 else (places, lines) for lines in (few, few + 1)]
        (first, _), (second, constants) = (_laid_out(moves, each) for each in some)
        cells = after * places // 2
        program = continued(first, second, shape[axis] - few, after, cells)
    else:
        program, constants = _laid_out(moves, shape)
    if along:
        goal = ends[axis] * places + ends[1 - axis]
    else:
        number = torch.cat(list(_grid(shape, moves, tape.device).cells)).argsort().reshape(shape)
        goal = number[tuple(ends)]
    return program, [*[part.to(tape.dtype) for part in constants], goal.reshape(-1, 1, 1)]


PREPARED[Alignment] = _prepared


@remembered(64, where=lambda moves, shape: math.prod(shape) <= _KEPT_CELLS)  # noqa: ARG005
def _laid_out(moves: tuple[Move, ...], shape: tuple[int, ...]) -> tuple[Program, list[Tensor]]:
    """The program of a grid, and the constants among its tensors, which are all but the last."""
    unary = torch.zeros(*shape, len(moves), dtype=torch.float64, device="cpu")
    tape = Tape(unary, 2, dtype=unary.dtype)
    with uncollected():
        tape.finish(Alignment(unary, moves).recursion(tape))
        program = lowered(tape.steps, math.prod(shape), len(moves))
    return emptied(program), [tensor_of(slot, torch.float64) for slot in program.slots[:-1]]
