"""Alignments: distributions over the monotone paths through two sequences."""

import math
from dataclasses import dataclass, field
from typing import Any

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
from rdpgraph.recurrences.declaration import Declared, Input, Lengths
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.recurrence import Recurrence

Move = tuple[int, int]
MATCH, DELETION, INSERTION = (1, 1), (1, 0), (0, 1)  # moves along both sequences
STAY, NEXT, SKIP = (1, 0), (1, 1), (1, 2)  # moves along frames and labels


def ctc_unary(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the unary potentials of `Alignment.ctc`, and the lengths of both sequences.

    The potentials are (batch, T + 2, 2 U + 3, 3), over frames, labels with blanks between them, and
    moves.
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


@remembered(64)
def write_rules(moves: tuple[Move, ...], *, linked: bool, local: bool) -> tuple[Declared, str]:
    """The inputs and the rules of alignments.

    Args:
        moves: of each state.
        linked: whether there is a transition.
        local: whether a path may start and end at any cell.
    """
    states = range(len(moves))
    declared: dict[str, Input | Lengths] = {"unary": Input(f"I+1 J+1 {len(moves)}")}
    if linked:
        declared["transition"] = Input(f"{len(moves)} {len(moves)}")
    declared |= {"first_lengths": Lengths("I"), "second_lengths": Lengths("J")}
    # Paths by the cell that they have reached, in tables by their last states where these matter.
    tables = [f"a{state}" for state in states] if linked else ["a"]
    rules: list[str] = []
    for state, (down, across) in enumerate(moves):
        table, before = tables[state if linked else 0], f"[i - {down}, j - {across}]"
        links = [f" * transition[{k}, {state}]" if linked else "" for k, _ in enumerate(tables)]
        earlier = [f"{one}{before}{link}" for one, link in zip(tables, links, strict=True)]
        rules.append(f"{table}[i, j] += unary[i, j, {state}] * ({' + '.join(earlier)})")
        if local:
            rules.append(f"{table}[i, j] += unary[i, j, {state}] if i >= {down} and j >= {across}")
        elif linked:
            rules.append(f"{table}[i, j] += unary[i, j, {state}] if i == {down} and j == {across}")
    ends, last = " + ".join(f"{table}[i, j]" for table in tables), "first_lengths, second_lengths"
    if local:  # all paths that end before both ends, and the empty one
        rules.append("row[0, 0] += 1")
        rules.append(f"row[i, j] += row[i, j - 1] + {ends} if i <= I and j <= J")
        rules.append("all[i, j] += all[i - 1, j] + row[i, j] if i <= I and j <= J")
        rules.append(f"goal += all[{last}]")
    elif linked:
        rules += ["ended[0, 0] += 1", f"ended[i, j] += {ends}", f"goal += ended[{last}]"]
    else:
        rules += ["a[0, 0] += 1", f"goal += a[{last}]"]
    return tuple(declared.items()), "\n".join(rules)


@dataclass(frozen=True, eq=False)
class Alignment(Recurrence):
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

    def __post_init__(self) -> None:
        settle(self, "unary", "transition", whole=("first_lengths", "second_lengths"))
        require_fields(self)
        unary, moves, transition = self.unary, self.moves, self.transition
        checked_log_values("Alignment", unary)
        shape = tuple(unary.shape)
        if len(shape) < 3 or 0 in shape[-3:] or len(moves) != shape[-1]:
            raise ModelError(
                "Alignment needs unary (*batch, S + 1, T + 1, N), and a move of each of the N "
                f"states; got {shape} and {len(moves)} moves."
            )
        if isinstance(transition, Tensor):
            checked_log_table("Alignment's transition", transition)
        if any(min(move) < 0 or max(move) < 1 for move in moves):
            raise ModelError(
                f"Alignment needs moves that advance in a sequence; got {tuple(moves)}."
            )
        if transition is not None and tuple(transition.shape[-2:]) != (shape[-1],) * 2:
            raise ModelError(
                f"Alignment of {shape[-1]} states needs a transition [from, to] of that size; got "
                f"{tuple(transition.shape)}."
            )
        first, second = shape[-3:-1]
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
        return cls(torch.stack(parts, -1), **rest)

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

    def written(self) -> tuple[Declared, str]:
        moves = tuple(self.moves)
        return write_rules(moves, linked=self.transition is not None, local=self.local)
