"""Dependency trees: every word has a head, another word or the root."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.structure import Match
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import as_states, checked_log_values, settle, taken
from rdpgraph.structures.chain.parts import flat_lengths, held, inside
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.draws import checked_best
from rdpgraph.structures.structure_potential import recognised_factor, structure_graph
from rdpgraph.structures.summed_scores import ForbidsStates


@dataclass(frozen=True, eq=False)
class KBestDependencies:
    """The dependency trees of largest score, best first.

    Attributes:
        heads: (k, *batch, n); -1 beyond the length, and throughout where there are fewer.
        scores: (k, *batch) nats, unnormalised; -inf where there are fewer.
    """

    heads: Tensor
    scores: Tensor


@dataclass(frozen=True, eq=False)
class Dependencies(ForbidsStates):
    """Trees over the words of a sequence, with a root outside of it, scored by their arcs.

    Sites are words, and their states are heads: 0 is the root, h the h-th word, counted from 1. A
    word is not its own head. A sequence of no words has the empty tree, log Z 0. Items without a
    possible tree have log Z -inf, and marginals, gradients and entropy zero.

    Args:
        unary: (*batch, n, n + 1) log-potential (nats) of each head of each word, [word, head];
            -inf forbids an arc. See `from_arcs` for scores as [head, dependent].
        multiroot: whether more than one word may have the root as its head.
        lengths: (*batch,) integers in 0..n; default: all n.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a length out of range.
    """

    multiroot: bool = field(default=False, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            unary: ArrayLike,
            *,
            multiroot: bool = False,
            lengths: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        name = type(self).__name__
        settle(self, "unary", whole=("lengths",))
        require_fields(self)
        checked_log_values(f"{name}'s unary", self.unary)
        shape = tuple(self.unary.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] + 1:
            raise ModelError(
                f"{name} needs unary potentials (*batch, n, n + 1), [word, head], head 0 the root; "
                f"got {shape}. Scores [head, dependent] are taken by {name}.from_arcs."
            )
        settle_lengths(self, lengths=shape[-2])

    @classmethod
    def from_arcs(
        cls, arc_scores: ArrayLike, *, multiroot: bool = False, lengths: ArrayLike | None = None
    ) -> Self:
        """Trees from scores of arcs [head, dependent].

        Args:
            arc_scores: (*batch, n + 1, n + 1), [head, dependent], 0 the root; arcs into the root
                are ignored.
            multiroot: whether more than one word may have the root as its head.
            lengths: (*batch,) words, the root not counted.

        Raises:
            ModelError: shapes that do not fit.
        """
        given = taken(f"{cls.__name__}'s scores", arc_scores)
        shape = tuple(given.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] or not shape[-1]:
            raise ModelError(
                f"{cls.__name__}.from_arcs needs scores (*batch, n + 1, n + 1), [head, dependent]; "
                f"got {shape}."
            )
        return cls(given.mT[..., 1:, :], multiroot=multiroot, lengths=lengths)

    @classmethod
    def from_labelled_arcs(
        cls, scores: Tensor, *, multiroot: bool = False, lengths: Tensor | None = None
    ) -> Self:
        """Trees whose arcs have labels, summed over those.

        The probability of an arc with a label is the gradient of log Z in its score.

        Args:
            scores: (*batch, n + 1, n + 1, labels), [head, dependent, label].
            multiroot: as for `from_arcs`.
            lengths: (*batch,).

        Raises:
            ModelError: shapes that do not fit, NaN or +inf.
        """
        scores = in_full_precision(taken(f"{cls.__name__}'s scores", scores))
        checked_log_values(f"{cls.__name__}'s scores", scores)
        if scores.ndim < 3 or not scores.shape[-1]:
            raise ModelError(
                f"{cls.__name__}.from_labelled_arcs needs scores (*batch, n + 1, n + 1, labels), "
                f"labels >= 1; got {tuple(scores.shape)}."
            )
        return cls.from_arcs(soft_sum(scores, -1), multiroot=multiroot, lengths=lengths)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[:-2])

    def k_best(self, k: int) -> KBestDependencies:
        """The k most probable trees of each item, best first; the scores are differentiable.

        O(k n^3) for each item; projective trees by lazy lists of spans.

        Raises:
            ModelError: k below 1.
        """
        k = checked_best(type(self).__name__, k, self.states_shape)
        unary, lengths = self._parts()
        trees = self._k_best(unary.detach(), lengths, k)
        some = (trees >= 0).any(-1)
        some[0] |= lengths == 0  # of no words there is one tree
        heads = self._shaped(trees, (k,), lengths)
        some = some.reshape(k, *self.batch_shape)
        heads = torch.where(some.unsqueeze(-1), heads, -1)
        scores = torch.where(some, self.score(heads.clamp(min=0)), -math.inf)
        # Sort again: scores may differ by rounding from the order found.
        order = torch.sort(scores.detach(), dim=0, descending=True, stable=True).indices
        heads = heads.take_along_dim(order.unsqueeze(-1), 0)
        return KBestDependencies(heads, scores.gather(0, order))

    @abstractmethod
    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        """(k, B, n) heads, -1 throughout where there are fewer."""

    def _require_alike(self, other: Any) -> None:
        """Require trees that these can be compared with."""
        if not isinstance(other, Dependencies):
            raise ModelError(
                "Dependency trees can be compared with dependency trees only; got "
                f"{type(other).__name__}."
            )
        alike = type(self) is type(other) and self.multiroot == other.multiroot
        lengths = self._parts()[1], other._parts()[1]
        if not alike or self.unary.shape != other.unary.shape or not torch.equal(*lengths):
            raise ModelError(
                "Dependency trees can be compared only if their kind, multiroot, shapes and "
                f"lengths agree; got {type(self).__name__} {tuple(self.unary.shape)} and "
                f"{type(other).__name__} {tuple(other.unary.shape)}."
            )

    def score(self, heads: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials of the arcs of trees (*lead, *batch, n).

        -inf for what is not a tree: a cycle, a word without a head (-1) or with one beyond the
        length, too many roots, or crossing arcs in projective trees. Entries beyond the length are
        ignored.

        Raises:
            EvidenceError: another shape, or a head out of range.
        """
        shape = tuple(self.unary.shape[:-1])
        heads = as_states("Heads", heads)
        if heads.dtype != torch.int64 or tuple(heads.shape[-len(shape) :]) != shape:
            raise EvidenceError(
                f"{type(self).__name__} needs heads as int64 (*lead, *{shape}); got {heads.dtype} "
                f"of shape {tuple(heads.shape)}."
            )
        unary, lengths = self._parts()
        lead = heads.shape[: heads.ndim - len(shape)]
        flat = heads.reshape(math.prod(lead), *unary.shape[:2])
        inside = torch.arange(unary.shape[1], device=unary.device) < lengths.unsqueeze(1)
        flat = torch.where(inside, flat, 0)
        if flat.numel() and not bool(((flat >= -1) & (flat <= unary.shape[1])).all()):
            raise EvidenceError(
                f"Heads must be from 0, the root, to the number of words, {unary.shape[1]}, or -1 "
                f"for none; got {int(flat.min())} to {int(flat.max())}."
            )
        headed = ((flat >= 0) & (flat <= lengths.unsqueeze(1))).all(2)
        flat = torch.where(headed.unsqueeze(2), flat, 0)
        values = unary.expand(len(flat), -1, -1, -1).gather(3, flat.unsqueeze(3)).squeeze(3)
        total = torch.where(inside, values, 0.0).sum(2)
        total = torch.where(headed & self._is_tree(flat, inside), total, -math.inf)
        return total.reshape(heads.shape[:-1])

    def _is_tree(self, heads: Tensor, inside: Tensor) -> Tensor:
        """(R, B) whether heads (R, B, n) reach the root from every word."""
        above = heads
        for _ in range(heads.shape[2]):
            above = torch.where(above > 0, heads.gather(2, (above - 1).clamp(min=0)), 0)
        fits = (above == 0).all(2)
        if not self.multiroot:
            fits &= ((heads == 0) & inside).sum(2) == inside.any(1).long()
        return fits

    def with_unary(self, unary: Tensor) -> Self:
        """The same trees with other potentials, of further batch dims in front or none."""
        lengths = None if self.lengths is None else self.lengths.expand(unary.shape[:-2])
        return replace(self, unary=unary, lengths=lengths)

    def _site_potentials(self) -> Tensor:
        return self._parts()[0].reshape(self.unary.shape)

    def factor_graph(self) -> FactorGraph:
        """Heads as variables, with a factor each, and one factor over all: that they form a tree.

        Words beyond the length have the root as their head.
        """
        unary = self.unary
        if self.lengths is not None:
            root = torch.arange(unary.shape[-1], device=unary.device) == 0
            within = inside(self.lengths, unary.shape[-2]).unsqueeze(-1)
            unary = torch.where(within, unary, torch.where(root, 0.0, -math.inf).to(unary))
        return structure_graph(self, unary)

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        return [((head - 1,), word) for word, head in used.items() if head]

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """Trees as `factor_graph` writes them, in any order; other factors are over one head."""
        match = recognised_factor(cls, graph)
        if match is None:
            return None
        trees, unary, numbers = match
        if trees.lengths is not None:
            beyond = unary[~inside(trees.lengths, unary.shape[-2])]
            root = torch.arange(unary.shape[-1], device=unary.device) == 0
            if not bool((beyond == torch.where(root, 0.0, -math.inf)).all()):
                return None
        return Match(trees.with_unary(trees.unary + unary), numbers)

    def variable_values(self, values: Tensor, *, best: bool) -> Tensor:
        """Values of the heads; the root is the only one of words beyond the length."""
        return values if self.lengths is None else held(values, self.lengths, best=best)

    def work(self) -> float:
        return math.prod(self.batch_shape) * float(self.unary.shape[-1]) ** 3

    def _parts(self) -> tuple[Tensor, Tensor]:
        """(B, n, n + 1) log-potentials, -inf where there is no arc, and lengths (B,)."""
        total, count = self.unary.shape[-2], math.prod(self.batch_shape)
        unary = self.unary.reshape(count, total, total + 1)
        lengths = flat_lengths(self.lengths, self.unary.shape[:-1], unary)
        word = torch.arange(total, device=unary.device).unsqueeze(1)
        head = torch.arange(total + 1, device=unary.device)
        last = lengths.reshape(-1, 1, 1)
        allowed = (head != word + 1) & (head <= last) & (word < last)
        return torch.where(allowed, unary, -math.inf), lengths

    def _shaped(self, heads: Tensor, lead: tuple[int, ...], lengths: Tensor) -> Tensor:
        place = torch.arange(heads.shape[-1], device=heads.device)
        heads = heads.reshape(*lead, len(lengths), heads.shape[-1])
        heads = torch.where(place < lengths.unsqueeze(1), heads, -1)
        return heads.reshape([*lead, *self.batch_shape, heads.shape[-1]])
