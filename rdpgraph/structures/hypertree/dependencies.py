"""Dependency trees: every word has a head, another word or the root."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import NoReturn, Self

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError, UnsupportedError
from rdpgraph.model.semiring import soft_sum
from rdpgraph.model.structure import Structure
from rdpgraph.model.table import checked_log_values
from rdpgraph.structures.hypertree import arborescence, eisner
from rdpgraph.structures.hypertree.checks import checked_lengths, checked_temperature
from rdpgraph.structures.hypertree.descent import drawn, gumbel, largest


@dataclass(frozen=True, eq=False)
class Dependencies(Structure):
    """Trees over the words of a sequence, rooted outside of it, scored by their arcs.

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

    def __post_init__(self) -> None:
        name = type(self).__name__
        checked_log_values(f"{name}'s unary", self.unary)
        shape = tuple(self.unary.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] + 1:
            raise ModelError(
                f"{name} needs unary potentials (*batch, n, n + 1), [word, head], head 0 the root; "
                f"got {shape}. Scores [head, dependent] are taken by {name}.from_arcs."
            )
        if self.lengths is not None:
            lengths = checked_lengths(name, self.lengths, shape[:-2], shape[-2])
            object.__setattr__(self, "lengths", lengths.to(self.unary.device))

    @classmethod
    def from_arcs(
        cls, arc_scores: Tensor, *, multiroot: bool = False, lengths: Tensor | None = None
    ) -> Self:
        """The same from scores of arcs.

        Args:
            arc_scores: (*batch, n + 1, n + 1), [head, dependent], 0 the root; arcs into the root
                are ignored.
            multiroot: whether more than one word may have the root as its head.
            lengths: (*batch,) words, the root not counted.

        Raises:
            ModelError: shapes that do not fit.
        """
        shape = tuple(arc_scores.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] or not shape[-1]:
            raise ModelError(
                f"{cls.__name__}.from_arcs needs scores (*batch, n + 1, n + 1), [head, dependent]; "
                f"got {shape}."
            )
        return cls(arc_scores.mT[..., 1:, :], multiroot=multiroot, lengths=lengths)

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
        """
        return cls.from_arcs(soft_sum(scores, -1), multiroot=multiroot, lengths=lengths)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front."""
        return tuple(self.unary.shape[:-2])

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""

    @abstractmethod
    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, n, n + 1) relaxed one-hot heads, differentiable: a stochastic softmax.

        The marginals at a temperature of the model with Gumbel noise on every arc (Paulus et al.
        2020, arXiv:2006.08063).

        Raises:
            ModelError: a temperature that is not above 0.
        """
        checked_temperature(temperature)
        shape = (count, *self.unary.shape)
        unary = (self.unary + gumbel(shape, self.unary, generator)) / temperature
        lengths = None if self.lengths is None else self.lengths.expand(shape[:-2])
        return replace(self, unary=unary, lengths=lengths).marginals()

    def entropy(self) -> Tensor:
        """(*batch,) nats: log Z less the expected score; 0 where no tree is possible."""
        tracked = torch.is_grad_enabled() and self.unary.requires_grad
        with torch.set_grad_enabled(tracked):
            log_z, marginals = self.log_partition(), self.marginals()
            scores = torch.where(self.unary > -math.inf, self.unary, 0.0)
            alive = log_z.detach() > -math.inf
            found = torch.where(alive, log_z, 0.0) - (scores * marginals).sum((-2, -1))
            return torch.where(alive, found, 0.0)

    def score(self, heads: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials of the arcs of trees (*lead, *batch, n).

        -inf for what is no tree: with a cycle, or more roots than are allowed; so it is too, for
        projective trees, for arcs that cross. What stands beyond the length is ignored.

        Raises:
            EvidenceError: another shape, or a head out of range.
        """
        shape = tuple(self.unary.shape[:-1])
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
        if flat.numel() and not bool(((flat >= 0) & (flat <= lengths.unsqueeze(1))).all()):
            raise EvidenceError("Heads are 0, the root, to the number of words.")
        values = unary.expand(len(flat), -1, -1, -1).gather(3, flat.unsqueeze(3)).squeeze(3)
        total = torch.where(inside, values, 0.0).sum(2)
        total = torch.where(self._is_tree(flat, inside), total, -math.inf)
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

    def factor_graph(self) -> NoReturn:
        """There is none.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{type(self).__name__} is no factor graph of few variables; it answers log_partition, "
            "marginals, entropy, mode, sample and rsample itself, and nothing else."
        )

    def work(self) -> float:
        """The terms of log Z."""
        return math.prod(self.batch_shape) * float(self.unary.shape[-1]) ** 3

    def _parts(self) -> tuple[Tensor, Tensor]:
        """(B, n, n + 1) log-potentials, -inf where there is no arc, and lengths (B,)."""
        total, count = self.unary.shape[-2], math.prod(self.batch_shape)
        unary = self.unary.reshape(count, total, total + 1)
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((count,), total, device=unary.device)
        lengths = lengths.reshape(-1)
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

    def _require_possible(self, log_z: Tensor) -> None:
        if not bool((log_z > -math.inf).all()):
            raise ImpossibleEvidenceError(
                f"{type(self).__name__} has no samples and no mode: at least one item has no "
                "possible tree."
            )


@dataclass(frozen=True, eq=False)
class ProjectiveDependencies(Dependencies):
    """Dependency trees without crossing arcs: every subtree is a span. Eisner 1996.

    O(n^3) time, over all spans of a width at once; O(n^3) numbers are kept for the gradient. With
    ``multiroot`` False, the default, one word has the root as its head.

    Example:
        >>> trees = ProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()
        tensor(12.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        unary, lengths = self._parts()
        found = eisner.log_partition(unary, lengths, multiroot=self.multiroot)
        return found.reshape(self.batch_shape)

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(1, 0.0, None)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(count, 1.0, generator)

    def _descended(
        self, count: int, temperature: float, generator: torch.Generator | None
    ) -> Tensor:
        unary, lengths = self._parts()
        pick = drawn(generator) if temperature else largest
        with torch.no_grad():
            charts = eisner.charts(unary.double(), temperature)
            found = eisner.total(
                charts, unary.double(), lengths, multiroot=self.multiroot, temperature=temperature
            )
            self._require_possible(found)
            heads = eisner.descend(
                charts, unary.double(), lengths, count=count, pick=pick, multiroot=self.multiroot
            )
        return self._shaped(heads, (count,), lengths)

    def _is_tree(self, heads: Tensor, inside: Tensor) -> Tensor:
        word = torch.arange(1, heads.shape[2] + 1, device=heads.device)
        low, high = torch.minimum(heads, word), torch.maximum(heads, word)
        first, second = (low.unsqueeze(3), high.unsqueeze(3)), (low.unsqueeze(2), high.unsqueeze(2))
        crossing = (first[0] < second[0]) & (second[0] < first[1]) & (first[1] < second[1])
        both = inside.unsqueeze(2) & inside.unsqueeze(1)
        return super()._is_tree(heads, inside) & ~(crossing & both).flatten(2).any(2)


@dataclass(frozen=True, eq=False)
class NonProjectiveDependencies(Dependencies):
    """Dependency trees of any kind: log Z is the log-determinant of a Laplacian.

    The matrix-tree theorem (Koo et al. 2007; Smith and Smith 2007). Words are eliminated one by
    one without any subtraction, in log-space (the GTH form of Gaussian elimination), so that
    scores of any range keep their precision, and hard zeros are exact. O(n^3).

    Example:
        >>> trees = NonProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()  # Cayley: (n + 1)^(n - 1)
        tensor(16.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        unary, lengths = self._parts()
        found = arborescence.log_partition(unary, lengths, multiroot=self.multiroot)
        return found.reshape(self.batch_shape)

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        By the algorithm of Chu and Liu, and Edmonds, item by item.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        unary, lengths = self._parts()
        with torch.no_grad():
            self._require_possible(self.log_partition())
        return self._shaped(arborescence.best(unary, lengths, self.multiroot), (), lengths)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        Word by word, each from its marginal given the heads before it: n times the cost of
        `marginals` for each draw.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        unary, lengths = self._parts()
        with torch.no_grad():
            self._require_possible(self.log_partition())
        heads = arborescence.draw(unary, lengths, count, drawn(generator), self.multiroot)
        return self._shaped(heads, (count,), lengths)
