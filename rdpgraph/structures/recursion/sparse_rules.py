"""Listed rules, for grammars of many symbols and few rules, and joins by them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.cache import current_property
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.potentials.table import as_whole, checked_log_values, settle
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.recursion.rules import Rules, items_of, within_budget
from rdpgraph.structures.recursion.step import Child, Reader, Step, child, less_value, soft
from rdpgraph.structures.recursion.values import View

_MOST_STATES = 2**20  # three states fit an integer of 64 bits


@dataclass(frozen=True, eq=False)
class SparseRules(Rules):
    """A log-weight for each of M rules; there are no others.

    Charts cost O(T^3 M), and memory O(T^2 (N + M)) with the gradient, in logs at any range.
    `DenseRules` are faster if more than one in 500 of all triples is a rule.

    Args:
        triples: (M, 3) int64, [parent, left, right]; each once.
        log_weights: (*batch, M) nats; -inf forbids a rule.
        parents: N, the number of parents' states.
        children: C, that of parts; None: N.

    Raises:
        ModelError: other shapes, no rules, a state out of range, a rule listed twice, NaN or +inf.
    """

    triples: Tensor
    log_weights: Tensor
    parents: int = field(kw_only=True)
    children: int | None = field(default=None, kw_only=True)

    own_dims = 1

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            triples: ArrayLike,
            log_weights: ArrayLike,
            *,
            parents: int,
            children: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_weights", whole=("triples",))
        checked_log_values("SparseRules", self.log_weights)
        triples = as_whole("SparseRules' triples", self.triples).long()
        object.__setattr__(self, "triples", triples.to(self.log_weights.device))
        shape, weights = tuple(self.triples.shape), tuple(self.log_weights.shape)
        if len(shape) != 2 or shape[1] != 3 or not shape[0] or weights[-1:] != shape[:1]:
            raise ModelError(
                "SparseRules needs triples (M, 3), [parent, left, right], and log_weights "
                f"(*batch, M), M >= 1; got {shape} and {weights}."
            )
        parents, children = self.shape
        if not 0 < parents <= children <= _MOST_STATES:
            raise ModelError(
                f"SparseRules needs 0 < parents <= children <= {_MOST_STATES:,}; got {parents:,} "
                f"and {children:,}."
            )
        most = self.triples.new_tensor([parents, children, children])
        wrong = ((self.triples < 0) | (self.triples >= most)).any(1)
        if bool(wrong.any()):
            listed = tuple(self.triples[wrong][0].tolist())
            raise ModelError(
                f"SparseRules of {parents:,} parents and {children:,} children got the rule "
                f"{listed}, [parent, left, right]."
            )
        again = self._sorted[0].diff() == 0
        if bool(again.any()):
            row = self._sorted[1][1:][again][0]
            listed = tuple(self.triples[row].tolist())
            raise ModelError(f"SparseRules got the rule {listed} twice.")

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.log_weights,)

    def with_parts(self, parts: Sequence[Tensor]) -> "SparseRules":
        return replace(self, log_weights=parts[0])

    @property
    def shape(self) -> tuple[int, int]:
        return self.parents, self.parents if self.children is None else self.children

    @property
    def count(self) -> int:
        """M, the number of rules."""
        return len(self.triples)

    @current_property("triples")
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """(M,) the rules as numbers, ascending, and their rows."""
        numbers = self._numbers(*self.triples.unbind(1))
        ascending, rows = numbers.sort()
        return ascending, rows

    def _numbers(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        children = self.shape[1]
        return (parents * children + left) * children + right

    @current_property("triples")
    def by_parent(self) -> tuple[Tensor, Tensor]:
        """(N, F) the rows of each parent's rules, and whether each exists."""
        rows = self._sorted[1]
        counts = torch.bincount(self.triples[:, 0], minlength=self.parents)
        place = torch.arange(int(counts.amax()), device=rows.device)
        first = (counts.cumsum(0) - counts).unsqueeze(1)
        return rows[(first + place).clamp(max=len(rows) - 1)], place < counts.unsqueeze(1)

    def table(self, parents: int, children: int) -> Tensor:
        within_budget(self, math.prod(self.batch_shape) * parents * children**2)
        like = self.log_weights
        empty = like.new_full((*self.batch_shape, parents * children**2), -math.inf)
        places = self._numbers(*self.triples.unbind(1))
        return empty.index_copy(-1, places, like).reshape(
            *self.batch_shape, parents, children, children
        )

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        known, rows = self._sorted
        grid = parents[..., :, None, None], left[..., None, :, None], right[..., None, None, :]
        wanted = self._numbers(*grid).contiguous()
        at = torch.searchsorted(known, wanted).clamp(max=self.count - 1)
        item = items_of(self.log_weights, wanted)
        place = (item * self.count + rows[at]).expand(wanted.shape)
        weights = self.log_weights.flatten().index_select(0, place.flatten()).reshape(wanted.shape)
        return torch.where(known[at] == wanted, weights, -math.inf)

    def scaled(self, factor: float) -> "SparseRules":
        return self.with_parts([self.log_weights * factor])

    def is_like(self, other: "SparseRules") -> bool:
        """Return whether another list has the same rules in the same order."""
        return self.shape == other.shape and torch.equal(self.triples, other.triples)


@dataclass(frozen=True, eq=False)
class Listed(Step):
    """The sum over splits and listed rules: (B, P, K), recomputed for the gradient.

    The splits of a span are summed for each rule, then the rules for each parent. The alternatives
    of a node are its rules, each with all M splits.
    """

    left: View  # (B, M, P, C)
    right: View  # (B, M, P, C)
    rules: SparseRules  # flat
    width: int  # K, the labels of parents and others, which are -inf

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        rows, known = self.rules.by_parent
        _, first, second = self.rules.triples[rows].unbind(2)
        left, right = reader.together((self.left, self.right))
        terms = left[..., first] + right[..., second]
        if scores:
            terms = terms + self.rules.log_weights[:, rows][:, None, None]
        terms = torch.where(known, terms, -math.inf)
        return self._wider(terms.movedim(-1, -4).flatten(-4, -3))

    def up(self, reader: Reader, temperature: float) -> Tensor:
        if not torch.is_grad_enabled():
            return self._sums(reader, temperature)
        # Checkpoint a copy of the values, so that pools and later values can be freed.
        total: Tensor = checkpoint(  # pyright: ignore
            lambda values: self._sums(Reader(values), temperature),  # pyright: ignore
            list(reader.values), use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        return total

    def _sums(self, reader: Reader, temperature: float) -> Tensor:
        left, right = reader.read(self.left), reader.read(self.right)
        size = tuning.per_block(left[..., 0].numel(), tuning.BLOCK)
        sums = [
            soft(left.index_select(3, first) + right.index_select(3, second), 1, temperature)
            for _, first, second in (part.unbind(1) for part in self.rules.triples.split(size))
        ]
        each = torch.cat(sums, 2) + self.rules.log_weights.unsqueeze(1)
        rows, parent = each.movedim(-1, 0), self.rules.triples[:, 0]
        total = soft_scatter(rows, parent, self.rules.parents, temperature)
        return self._wider(total.movedim(0, -1))

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        terms, weights, _ = self._of_nodes(reader, item, place, label)
        return (terms + weights.unsqueeze(1)).mT.flatten(1)

    def chosen(
        self, reader: Reader, pick: Pick, item: Tensor, place: Tensor, label: Tensor
    ) -> Tensor:
        """(Q,) alternatives: first the rule is chosen, then the split."""
        terms, weights, at = self._of_nodes(reader, item, place, label)
        rule = pick(soft(terms, 1, reader.temperature) + weights)
        return rule * self.left.ways + pick(terms[at, :, rule])

    def _of_nodes(
        self, reader: Reader, item: Tensor, place: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, M, F) scores of the parts, (Q, F) weights of the nodes' rules, and (Q,) a range."""
        rows, known = (part[label] for part in self.rules.by_parent)
        _, first, second = self.rules.triples[rows].unbind(2)
        shape = (-1, self.left.ways, -1)
        left, right = (reader.at(view, item, place) for view in (self.left, self.right))
        terms = left.gather(2, first.unsqueeze(1).expand(shape))
        terms = terms + right.gather(2, second.unsqueeze(1).expand(shape))
        source = item if len(self.rules.log_weights) > 1 else torch.zeros_like(item)
        weights = self.rules.log_weights[source.unsqueeze(1), rows].masked_fill(~known, -math.inf)
        return terms, weights, torch.arange(len(item), device=item.device)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        rule, split = chosen // self.left.ways, chosen % self.left.ways
        _, first, second = self.rules.triples[self.rules.by_parent[0][label, rule]].unbind(1)
        yield child(self.left, None, split, item, place, first)
        yield child(self.right, None, split, item, place, second)

    def passed_down(
        self, reader: Reader, value: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        left, right = reader.read(self.left), reader.read(self.right)
        ahead, triples = less_value(value, above), self.rules.triples
        weights = self.rules.log_weights if scores else torch.zeros_like(self.rules.log_weights)
        size = tuning.per_block(left[..., 0].numel(), tuning.BLOCK)
        sides = torch.full_like(left, -math.inf), torch.full_like(right, -math.inf)
        for some, said in zip(triples.split(size), weights.split(size, 1), strict=True):
            parent, first, second = some.unbind(1)
            top = (ahead.index_select(2, parent) + said.unsqueeze(1)).unsqueeze(1)
            for side, to, terms in (
                (sides[0], first, top + right.index_select(3, second)),
                (sides[1], second, top + left.index_select(3, first)),
            ):
                side.scatter_reduce_(3, to.expand(terms.shape), terms, "amax")
        yield self.left, left + sides[0]
        yield self.right, right + sides[1]

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ((self.left, self.right),)

    @property
    def alternatives(self) -> int:
        return self.rules.by_parent[0].shape[1] * self.left.ways

    @property
    def work(self) -> float:
        return float(self.left.ways * self.left.places * self.rules.count)

    def _wider(self, values: Tensor) -> Tensor:
        return pad(values, (0, self.width - self.rules.parents), value=-math.inf)
