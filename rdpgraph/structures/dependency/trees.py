"""Dependency trees: every word has a head, another word or the root.

Projective trees are summed by spans (Eisner 1996), others by the matrix-tree theorem.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import Arcs, ArrayLike, Lengths, LogZ
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.structure import Match
from rdpgraph.logspace.gradients import is_transformed, with_gradient
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import as_states, checked_log_values, settle, taken
from rdpgraph.model.soundness import require_possible
from rdpgraph.native import library
from rdpgraph.recurrences import declaration
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared, Input
from rdpgraph.structures.chain.parts import flat_lengths, held, inside
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.dependency import arborescences
from rdpgraph.structures.draws import Pick, checked_best, checked_count, drawn, largest
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.structure_potential import recognised_factor, structure_graph
from rdpgraph.structures.summed_scores import ForbidsStates, SummedScores


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


_DECLARED: Declared = (("unary", Input("T T+1")), ("lengths", declaration.Lengths("T")))

# A complete span has its head at one end and all of its descendants on that side: R its first
# position, L its last. An open one has an arc between its ends, to the right or to the left. With
# one root, positions are words, and the root's arc and both spans of its word are the goal.
_ONE_ROOT = """
    r[i, j] += R[i, k] * L[k + 1, j] * unary[j, i + 1]
    l[i, j] += R[i, k] * L[k + 1, j] * unary[i, j + 1]
    R[i, i] += 1 if i < T
    R[i, j] += r[i, k] * R[k, j]
    L[i, i] += 1 if i < T
    L[i, j] += L[i, k] * l[k, j]
    goal    += L[0, k] * unary[k, 0] * R[k, lengths - 1]
"""
# With several, positions are the root, 0, and the words, and the root has no head.
_MANY_ROOTS = """
    r[i, j] += R[i, k] * L[k + 1, j] * unary[j - 1, i]
    l[i, j] += R[i, k] * L[k + 1, j] * unary[i - 1, j]
    R[i, i] += 1 if i <= T
    R[i, j] += r[i, k] * R[k, j]
    L[i, i] += 1 if i <= T
    L[i, j] += L[i, k] * l[k, j]
    goal    += R[0, lengths]
"""


@dataclass(frozen=True, eq=False, init=False)
class ProjectiveDependencies(  # pyright: ignore[reportIncompatibleMethodOverride]
    Dependencies, Recurrence
):
    """Dependency trees without crossing arcs: every subtree is a span. Eisner 1996.

    O(n^3) time, over all spans of a width at once; O(n^2) numbers are kept for the gradient. With
    ``multiroot`` False, the default, one word has the root as its head.

    Example:
        >>> trees = ProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()
        tensor(12.)
    """

    def written(self) -> tuple[Declared, str]:
        return _DECLARED, _MANY_ROOTS if self.multiroot else _ONE_ROOT

    @torch.no_grad()
    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        return super(Dependencies, self).k_best(k).states.reshape(k, *unary.shape[:2])

    def _compared(self, other: Recurrence) -> tuple[Bound, Bound]:
        self._require_alike(other)
        return super()._compared(other)

    def _is_tree(self, heads: Tensor, inside: Tensor) -> Tensor:
        word = torch.arange(1, heads.shape[2] + 1, device=heads.device)
        low, high = torch.minimum(heads, word), torch.maximum(heads, word)
        first, second = (low.unsqueeze(3), high.unsqueeze(3)), (low.unsqueeze(2), high.unsqueeze(2))
        crossing = (first[0] < second[0]) & (second[0] < first[1]) & (first[1] < second[1])
        both = inside.unsqueeze(2) & inside.unsqueeze(1)
        return super()._is_tree(heads, inside) & ~(crossing & both).flatten(2).any(2)


_FAR = 1e3  # nats below a word's best head at which an arc may be negligible
_NOTHING = 800.0  # nats below Z at which a term is zero in doubles


def log_partition(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> LogZ:
    """Return (B,) the log of the sum over trees (nats), in O(n^3).

    It can be differentiated any number of times. Compiled code eliminates words from weights in
    float64. Where these may underflow, or there is no compiled code, `in_logs` does it.

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        lengths: (B,).
        multiroot: whether more than one word may have the root as its head.
    """
    here = unary.is_cpu and unary.numel() > 0 and not is_transformed()
    if not here or not library.available(torch.float64, "trees"):
        return in_logs(unary, lengths, multiroot=multiroot)
    made = _compiled(unary.double(), lengths.contiguous(), multiroot=multiroot)
    log_z = made.to(unary.dtype)
    rows = log_z.detach().isnan().nonzero().squeeze(1)
    if not len(rows):
        return log_z
    return log_z.index_copy(0, rows, in_logs(unary[rows], lengths[rows], multiroot=multiroot))


def _compiled(unary: Tensor, lengths: Tensor, *, multiroot: bool) -> Tensor:
    """Log Z in doubles; NaN where weights may underflow."""
    known = unary.detach().contiguous()
    weights, log_z = torch.empty_like(known), known.new_empty(len(known))
    parts = known, lengths, weights, log_z
    threads = library.threads(known.numel() * known.shape[1], len(known))
    sizes = *known.shape[:2], multiroot, threads
    library.function("tree_sums")(*[part.data_ptr() for part in parts], *sizes)

    def gradient(above: Tensor) -> Tensor:
        result, above = torch.zeros_like(known), above.contiguous()
        pointers = [part.data_ptr() for part in (*parts, above, result)]
        library.function("tree_gradient")(*pointers, *sizes)
        return result

    return with_gradient(
        log_z, unary, gradient, partial(in_logs, lengths=lengths, multiroot=multiroot)
    )


def in_logs(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> LogZ:
    """`log_partition` in log-space: exact at any range of scores.

    With one root only the part linear in the weights of the root's arcs is kept (Koo et al. 2007
    have it as the determinant with a row replaced): those arcs enter a pivot only where a word has
    no other head left.
    """
    batch, words = unary.shape[:2]
    arcs, root = unary[:, :, 1:], unary[:, :, 0]
    used = torch.full((batch,), multiroot, device=unary.device)
    log_z = unary[:, :0].sum((1, 2))
    for word in range(words - 1, -1, -1):
        inside = word < lengths
        heads, below = arcs[:, word, :word], arcs[:, :word, word]
        from_root = root[:, word]
        among = soft_sum(heads, 1) if word else torch.full_like(from_root, -math.inf)
        only = ~used & (among.detach() == -math.inf)
        pivot = torch.where(used, _added(among, from_root), torch.where(only, from_root, among))
        log_z = log_z + torch.where(inside, pivot, 0.0)
        shift = torch.where(pivot > -math.inf, pivot, 0.0)
        through = below + torch.where(only, 0.0, from_root - shift).unsqueeze(1)
        through = torch.where(inside.unsqueeze(1), through, -math.inf)
        # The one root is found: its terms are the whole sum from here on.
        kept = torch.where((only & inside).unsqueeze(1), -math.inf, root[:, :word])
        root = _added(kept, through)
        past = below.unsqueeze(2) + (heads - shift.unsqueeze(1)).unsqueeze(1)
        past = torch.where(inside.reshape(-1, 1, 1), past, -math.inf)
        arcs = _added(arcs[:, :word, :word], past)
        arcs = torch.where(torch.eye(word, dtype=torch.bool, device=arcs.device), -math.inf, arcs)
        used = used | (only & inside)
    return torch.where(log_z > -math.inf, log_z, -math.inf)


def _added(first: Tensor, second: Tensor) -> Tensor:
    return soft_sum(torch.stack([first, second]), 0)


@torch.no_grad()
def faint_arcs(unary: Arcs, lengths: Lengths) -> Tensor | None:
    """(B, n, n + 1) arcs that add nothing to any sum over trees of one root; None: none does.

    Elimination keeps the root's arc for the end, whatever the others score: it would take an arc of
    -1e30 first, and lose the digits of the rest. An arc adds nothing if it is further below its
    word's best head than all others together can be, and there is a tree without such arcs.
    """
    words = unary.shape[1]
    behind = unary.amax(2, keepdim=True) - unary
    there = unary > -math.inf
    faint = there & (behind > _FAR)
    if not bool(faint.any()):
        return None
    others = torch.where(there & ~faint, behind, 0.0).amax((1, 2)) + math.log(words + 1)
    least = torch.where(faint, behind, math.inf).amin((1, 2))
    faint &= (least > words * others + _NOTHING).reshape(-1, 1, 1)
    rest = unary.masked_fill(faint, -math.inf)
    faint &= (log_partition(rest, lengths, multiroot=False) > -math.inf).reshape(-1, 1, 1)
    return faint if bool(faint.any()) else None


@dataclass(frozen=True, eq=False, init=False)
class NonProjectiveDependencies(Dependencies, SummedScores):
    """Dependency trees of any kind: log Z is the log-determinant of a Laplacian.

    The matrix-tree theorem (Koo et al. 2007; Smith and Smith 2007). Words are eliminated one by
    one without subtraction (the GTH form of Gaussian elimination), by compiled code, or in
    log-space where weights would underflow, so that scores of any range keep their precision, and
    hard zeros are exact. O(n^3).

    The k best trees are found item by item in Python: O(k n^3) at most.

    Example:
        >>> trees = NonProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()  # Cayley: (n + 1)^(n - 1)
        tensor(16.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        unary, lengths = self._strong_parts()
        log_z = log_partition(unary, lengths, multiroot=self.multiroot)
        return log_z.reshape(self.batch_shape)

    def marginals(self) -> Tensor:
        """(*batch, n, n + 1) probabilities of the arcs: the gradient of log Z, not below 0."""
        return super().marginals().clamp(min=0.0)

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length. O(n^3).

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(1, 0.0, largest)[0]

    def max_marginals(self) -> Tensor:
        """(*batch, n, n + 1) the score of the best tree with each arc; -inf where none has it.

        Not differentiable. O(n^3) for all arcs.
        """
        unary, lengths = self._parts()
        strong, _ = self._strong_parts()
        scores = arborescences.max_marginals(unary, lengths, multiroot=self.multiroot)
        if bool((strong != unary).any()):
            among = arborescences.max_marginals(
                unary, lengths, multiroot=self.multiroot, others=strong
            )
            scores = torch.where(among > -math.inf, among, scores)
        return scores.reshape(self.unary.shape)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        O(n^3) for each item, and O(n^2 log n) for each draw.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(checked_count(count, self.states_shape), 1.0, drawn(generator))

    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        if k == 1 and len(unary) >= tuning.ELIMINATED_ITEMS:
            best = self._eliminated(0.0)
            return torch.where(best.possible.unsqueeze(1), best.descend(1, largest), -1)[None]
        return arborescences.k_best(unary, lengths, k, multiroot=self.multiroot)

    def _strong_parts(self) -> tuple[Tensor, Tensor]:
        """The potentials and lengths, with negligible arcs at -inf."""
        unary, lengths = self._parts()
        faint = None if self.multiroot else faint_arcs(unary, lengths)
        return unary if faint is None else unary.masked_fill(faint, -math.inf), lengths

    def _eliminated(self, temperature: float) -> arborescences.Eliminated:
        unary, lengths = self._strong_parts()
        return arborescences.eliminated(
            unary, lengths, multiroot=self.multiroot, temperature=temperature
        )

    def _descended(self, count: int, temperature: float, pick: Pick) -> Tensor:
        words = self._eliminated(temperature)
        lacking = f"{type(self).__name__} has no samples and no mode"
        require_possible(lacking, words.possible.reshape(self.batch_shape))
        return self._shaped(words.descend(count, pick), (count,), self._parts()[1])
