"""Trees over the words of sequences, as the states of their spans."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import EvidenceError

Span = tuple[int, int, int]
"""First and last word of a constituent, both counted from 0, and its state."""


@dataclass(frozen=True, eq=False)
class Trees:
    """Binary trees: the states of the spans that are constituents.

    Attributes:
        states: (*lead, T, T) int64, [first, last]: the state of each constituent, single words
            included; -1 for other spans, and throughout for an absent tree.

    Example:
        >>> states = torch.full((2, 2), -1)
        >>> states[0, 1], states[0, 0], states[1, 1] = 0, 1, 2
        >>> Trees(states).bracketed(["dogs", "bark"], ["S", "NP", "VP"])
        '(S (NP dogs) (VP bark))'
    """

    states: Tensor

    def __post_init__(self) -> None:
        require_fields(self)
        shape = tuple(self.states.shape)
        if self.states.dtype != torch.int64 or len(shape) < 2 or shape[-1] != shape[-2]:
            raise EvidenceError(
                "Trees needs int64 states of shape (*lead, T, T), [first, last]; got "
                f"{self.states.dtype} of shape {shape}."
            )

    @property
    def lead(self) -> tuple[int, ...]:
        """The dims in front: one tree has none."""
        return tuple(self.states.shape[:-2])

    def __getitem__(self, index: int) -> "Trees":
        """One of the trees along the first dim."""
        if not self.lead:
            raise EvidenceError("This is one tree, without dims to index.")
        return Trees(self.states[index])

    def spans(self) -> list[Span]:
        """The constituents of one tree, parents before parts and from left to right.

        Raises:
            EvidenceError: there are dims in front.
        """
        if self.lead:
            raise EvidenceError(
                f"spans() needs a single tree; got trees of shape {self.lead}: index them, as in "
                "trees[0]."
            )
        places = (self.states >= 0).nonzero().tolist()
        values = self.states[self.states >= 0].tolist()
        triples = [(i, j, state) for (i, j), state in zip(places, values, strict=True)]
        return sorted(triples, key=lambda span: (span[0], -span[1]))

    def bracketed(self, words: Sequence[str], names: Sequence[str] | None = None) -> str:
        """One tree in brackets, as nltk reads it: ``(S (NP the dog) ...)``, words in their states.

        Args:
            words: those of the sentence.
            names: of the states; default: their numbers.

        Raises:
            EvidenceError: there are dims in front, too few words or names, or this is not a tree.
        """
        spans = self.spans()
        if not spans:
            return "()"
        most = max(state for _, _, state in spans)
        if names is not None and most >= len(names):
            raise EvidenceError(f"bracketed needs a name for state {most}; got {len(names)} names.")
        last = spans[0][1]
        if last >= len(words):
            raise EvidenceError(f"bracketed needs {last + 1} words; got {len(words)}.")
        text: list[str] = []
        waiting = [(0, last, "")]  # spans to come, the next one last, and the brackets they close
        for here, (first, end, state) in enumerate(spans):
            if not waiting:
                break
            *expected, closing = waiting.pop()
            if expected != [first, end]:
                raise EvidenceError(_not_a_tree(*expected))
            name = _escaped(str(state) if names is None else names[state])
            if first == end:
                text.append(f"({name} {_escaped(words[first])}){closing}")
                continue
            part = spans[here + 1] if here + 1 < len(spans) else None
            if part is None or part[0] != first:
                raise EvidenceError(f"These states are not a tree: span {first, end} has no parts.")
            text.append(f"({name}")
            waiting += [(part[1] + 1, end, f"){closing}"), (first, part[1], "")]
        if waiting:
            raise EvidenceError(_not_a_tree(*waiting[-1][:2]))
        return " ".join(text)


@dataclass(frozen=True, eq=False)
class KBestTrees:
    """The trees of largest score, best first.

    Attributes:
        trees: (k, *batch) trees; absent where there are fewer.
        scores: (k, *batch) nats, unnormalised; -inf where there are fewer.
    """

    trees: Trees
    scores: Tensor


def parts_of(used: Iterable[tuple[int, ...]]) -> list[tuple[Any, Any]]:
    """Pairs of the smallest box around another, (first, last, first, last, ...), and that box."""
    boxes, pairs = list(used), list[tuple[Any, Any]]()
    for box in boxes:
        around = [
            other for other in boxes
            if other != box and all(a <= b for a, b in zip(other[::2], box[::2], strict=True))
            and all(a >= b for a, b in zip(other[1::2], box[1::2], strict=True))
        ]  # fmt: skip
        if around:
            least = min(around, key=lambda one: sum(one[1::2]) - sum(one[::2]))
            pairs.append((least, box))
    return pairs


def branches(states: Tensor) -> tuple[Tensor, ...]:
    """(R, B, T - 1) the inner nodes of trees (R, B, T, T): real, first and last word, three states.

    The states are those of a node and of its left and right part.
    """
    total = states.shape[-1]
    place = torch.arange(total, device=states.device)
    among = states >= 0
    wide = (among & (place.unsqueeze(1) < place)).flatten(2)
    # The left part of (i, j) is the widest constituent from i that ends before j.
    ends = torch.where(among, place, -1).cummax(3).values
    before = pad(ends[..., :-1], (1, 0), value=-1)
    nodes = wide.int().argsort(dim=2, descending=True, stable=True)[..., : max(total - 1, 0)]
    i, j = nodes // max(total, 1), nodes % max(total, 1)
    middle = torch.maximum(before.flatten(2).gather(2, nodes), i)
    flat = states.flatten(2)
    parts = i * total + middle, (middle + 1).clamp(max=total - 1) * total + j
    return wide.gather(2, nodes), i, j, flat.gather(2, nodes), *(flat.gather(2, p) for p in parts)


def crossed(values: Tensor) -> Tensor:
    """(*lead, T, T) for each span the largest value of those that cross it, -inf if none does.

    A tree without a span has a constituent that crosses it: binary trees have the most
    constituents that do not cross. Values (*lead, T, T), [first, last].
    """
    spans = torch.ones_like(values, dtype=torch.bool).triu()
    values = values.masked_fill(~spans, -math.inf)
    # Spans that start before it and end within it, and the other way round.
    before = _largest_before(_largest_before(values, -2).masked_fill(~spans, -math.inf), -1)
    after = _largest_before(values.flip(-1), -1).flip(-1).masked_fill(~spans, -math.inf)
    return torch.maximum(before, _largest_before(after.flip(-2), -2).flip(-2))


def _largest_before(values: Tensor, dim: int) -> Tensor:
    """The maxima over the preceding entries, -inf for the first."""
    values = values.cummax(dim).values.roll(1, dim)
    first = torch.arange(values.shape[dim], device=values.device) == 0
    return values.masked_fill(first if dim == -1 else first.unsqueeze(-1), -math.inf)


def _escaped(text: str) -> str:
    """Escape brackets within a word as treebanks do."""
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def _not_a_tree(first: int, last: int) -> str:
    return f"These states are not a tree: words {first} to {last} are not a constituent."
