"""The grid of an alignment: its lines, and potentials of its cells from scores of other kinds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import (
    as_values,
    as_whole,
    broadcast_values,
    checked_log_values,
)

Move = tuple[int, int]
MATCH, DELETION, INSERTION = (1, 1), (1, 0), (0, 1)
STAY, NEXT, SKIP = (1, 0), (1, 1), (1, 2)


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells in an order that every move follows: rows, columns, or diagonals.

    Attributes:
        sweep: what a line is the number of: first, second, or the sum of both.
        lines: the cells of each, (cells,) twice.
    """

    sweep: Move
    lines: Sequence[tuple[Tensor, Tensor]]
    known: dict[tuple[int, ...], Tensor] = field(
        default_factory=dict[tuple[int, ...], Tensor], init=False, repr=False
    )

    @classmethod
    def of(cls, shape: Sequence[int], moves: Sequence[Move], device: torch.device) -> "Grid":
        """The grid of some cells: rows or columns where all moves leave these, else diagonals."""
        rows, columns = (torch.arange(size, device=device) for size in shape)
        if all(move[0] for move in moves):
            return cls(
                (1, 0), [(torch.full_like(columns, line), columns) for line in rows.tolist()]
            )
        if all(move[1] for move in moves):
            return cls((0, 1), [(rows, torch.full_like(rows, line)) for line in columns.tolist()])
        lines = [
            (own := rows[max(0, line - shape[1] + 1) : line + 1], line - own)
            for line in range(shape[0] + shape[1] - 1)
        ]
        return cls((1, 1), lines)

    def before(self, line: int, move: Move) -> tuple[int, Tensor]:
        """The line that a move to each cell of a line comes from, and where there; -1: nowhere.

        Lines count from 1; 0 is none.
        """
        source = line - self.sweep[0] * move[0] - self.sweep[1] * move[1]
        if source < 0:
            return 0, torch.full_like(self.lines[line][0], -1)
        key = move if self.sweep != (1, 1) else (line, *move)
        if key not in self.known:
            self.known[key] = self._index(line, source, move)
        return source + 1, self.known[key]

    def _index(self, line: int, source: int, move: Move) -> Tensor:
        came = [cell - step for cell, step in zip(self.lines[line], move, strict=True)]
        axis = 1 if self.sweep == (1, 0) else 0
        index = came[axis] - self.lines[source][axis][0]
        return torch.where((came[0] >= 0) & (came[1] >= 0), index, -1)


def checked_alignment(
    unary: Tensor, moves: Sequence[Move], transition: Tensor | Potential | None
) -> None:
    """The fields of an `Alignment`."""
    checked_log_values("Alignment", unary)
    shape = tuple(unary.shape)
    if len(shape) < 3 or 0 in shape[-3:] or len(moves) != shape[-1]:
        raise ModelError(
            "Alignment needs unary (*batch, S + 1, T + 1, N), and a move of each of the N states; "
            f"got {shape} and {len(moves)} moves."
        )
    if any(min(move) < 0 or max(move) < 1 for move in moves):
        raise ModelError(f"Alignment needs moves that take something; got {tuple(moves)}.")
    if transition is not None and tuple(transition.shape[-2:]) != (shape[-1],) * 2:
        raise ModelError(
            f"Alignment of {shape[-1]} states needs a transition [from, to] of that size; got "
            f"{tuple(transition.shape)}."
        )


def pairwise_unary(match: Tensor, deletion: Tensor, insertion: Tensor) -> Tensor:
    """(*batch, S + 1, T + 1, 3) from scores of pairs and gaps, for `Alignment.pairwise`."""
    match = as_values("Alignment.pairwise's match", match)
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
    """(batch, T + 2, 2 U + 3, 3) of `Alignment.ctc`, and the lengths of both sequences.

    Raises:
        ModelError: shapes that do not fit, a class or a length out of range.
    """
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
    if log_probs.ndim != 3 or not 0 <= blank < log_probs.shape[2]:
        raise ModelError(
            "Alignment.ctc needs log_probs (T, batch, classes) and a blank among the classes; got "
            f"{tuple(log_probs.shape)} and {blank}."
        )
    frames, batch, classes = log_probs.shape
    device = log_probs.device
    spans, sizes = (part.to(device, torch.long) for part in (input_lengths, target_lengths))
    if spans.shape != (batch,) or sizes.shape != (batch,):
        raise ModelError(f"Alignment.ctc of {batch} items needs a length of each, twice.")
    targets = targets.to(device, torch.long)
    if targets.ndim == 1:
        parts = list(torch.split(targets, sizes.tolist()))
        targets = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    most = targets.shape[1]
    limits = ((spans, frames), (sizes, most))
    if any(bool(((own < 0) | (own > limit)).any()) for own, limit in limits):
        raise ModelError(f"Alignment.ctc needs lengths up to {frames} frames and {most} labels.")
    inside = torch.arange(most, device=device) < sizes.unsqueeze(1)
    if targets.numel() and bool(((targets < 0) | (targets >= classes))[inside].any()):
        raise ModelError(f"Alignment.ctc of {classes} classes needs targets 0 to {classes - 1}.")
    # Blanks around the labels: (batch, 2 U + 1).
    spelt = targets.new_full((batch, 2 * most + 1), blank)
    spelt[:, 1::2] = torch.where(inside, targets, blank)
    index = spelt.expand(frames, *spelt.shape)
    heard = log_probs.gather(2, index).transpose(0, 1)
    heard = pad(heard, (1, 1, 1, 1), value=-math.inf)
    # One end after the frames and the labels of each item.
    place = torch.arange(frames + 2, device=device).unsqueeze(1)
    stand = torch.arange(2 * most + 3, device=device)
    after = (place == (spans + 1).reshape(-1, 1, 1)) & (stand == (2 * sizes + 2).reshape(-1, 1, 1))
    beyond = (place > spans.reshape(-1, 1, 1)) | (stand > (2 * sizes + 1).reshape(-1, 1, 1))
    cells = torch.where(after, 0.0, torch.where(beyond, -math.inf, heard))
    # A blank is skipped before a label that differs from the last, and before the end.
    skips = torch.zeros_like(cells[:, 0], dtype=torch.bool)
    last_but_one = pad(spelt, (2, 0), value=-1)[:, :-2]
    skips[:, 1:-1] = (spelt != blank) & (spelt != last_but_one)
    skips = skips | (stand == (2 * sizes + 2).unsqueeze(1))
    allowed = torch.stack([torch.ones_like(skips), torch.ones_like(skips), skips], -1)
    unary = torch.where(allowed.unsqueeze(1), cells.unsqueeze(-1), -math.inf)
    return unary, spans + 1, 2 * sizes + 2
