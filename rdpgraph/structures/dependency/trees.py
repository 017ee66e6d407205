"""Projective trees, by spans (Eisner 1996), and non-projective ones, by the matrix-tree theorem."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Arcs, Lengths, LogZ
from rdpgraph.logspace.gradients import is_transformed, with_gradient
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.soundness import require_possible
from rdpgraph.native import library
from rdpgraph.recurrences import declaration
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared, Input
from rdpgraph.structures.dependency import arborescences
from rdpgraph.structures.dependency.model import Dependencies
from rdpgraph.structures.draws import Pick, checked_count, drawn, largest
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.summed_scores import SummedScores

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
