"""Proposals: their interface, by potentials near a site, and from a coarse run of the estimator."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.numbers import lowest
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Model, Setting
from rdpgraph.estimate.selections import Selection, TopSystematic
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Structure
from rdpgraph.model.restriction import Support
from rdpgraph.native import library

Scores: TypeAlias = tuple[Tensor, ...]
"""Per group of sites (*batch, *sites, states), or broadcastable to that."""


class Proposal:
    """Log-scores over the states of every site; they need not be normalised.

    Any scores give an unbiased estimate of Z, as long as no state that matters has -inf; the
    nearer they are to the marginals, the smaller its variance. They are computed without gradient.
    A subclass implements `log_scores`, or `scores_of` where scores depend on the whole model.

    Example:
        >>> class Sharpened(Proposal):
        ...     def log_scores(self, sites):
        ...         return 2 * sites.unary
    """

    def log_scores(self, sites: Sites) -> Tensor:
        """(*batch, *sites, states) log-scores, or what broadcasts to that; -inf: never selected.

        Raises:
            ModelError: this proposal scores all sites together, by `scores_of`.
        """
        raise ModelError(
            f"{type(self).__name__} cannot score a subset of the sites: call scores_of(setting), "
            "or implement log_scores(sites)."
        )

    def scores_of(self, setting: Setting) -> Scores:
        """Log-scores of all groups of sites; each group of replicates asks for them once."""
        return tuple(self.log_scores(sites) for sites in setting.groups)


@dataclass(frozen=True)
class Mixture(Proposal):
    """A weighted mean of normalised proposals.

    A small share of a broad one keeps every state within reach: the weight of a state drawn is
    then at most that of the broad proposal alone, divided by the share.

    Args:
        proposals: one or more.
        weights: as many, positive; normalised to sum to one.
    """

    proposals: tuple[Proposal, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        require_fields(self, weights="(0, inf)")
        if not self.proposals or len(self.proposals) != len(self.weights):
            raise ModelError(
                "Mixture needs a positive weight for each of one or more proposals; got "
                f"{len(self.proposals)} proposals and weights {self.weights}."
            )

    def log_scores(self, sites: Sites) -> Tensor:
        """Log of the weighted mean of the normalised scores."""
        return mixed(((part.log_scores(sites),) for part in self.proposals), self.weights)[0]

    def scores_of(self, setting: Setting) -> Scores:
        return mixed((part.scores_of(setting) for part in self.proposals), self.weights)


def mixed(scores: Iterable[Scores], weights: Sequence[float]) -> Scores:
    """Logs of the weighted means of several proposals' scores, each normalised first.

    ``scores`` are made one after the other, so that none is held for longer than it takes.
    """
    means: list[Tensor | None] = []
    for weight, every in zip(weights, scores, strict=True):
        share = math.log(weight / sum(weights))
        means = means or [None] * len(every)
        means = [_plus(mean, part, share) for mean, part in zip(means, every, strict=True)]
        del every
    return tuple(mean for mean in means if mean is not None)


def _plus(mean: Tensor | None, log_scores: Tensor, share: float) -> Tensor:
    """The log of a mean with one more term, which is normalised first; it may be made in place."""
    dtype = log_scores.dtype if mean is None else torch.promote_types(mean.dtype, log_scores.dtype)
    size = log_scores.shape[-1]
    same = mean is None or mean.shape[-1] == size
    compiled = same and log_scores.device.type == "cpu" and library.available(dtype, "selections")
    if not compiled:
        term = normalised(log_scores, share)
        return term if mean is None else torch.logaddexp(mean, term)
    shape = log_scores.shape
    if mean is not None:
        shape = torch.broadcast_shapes(shape, mean.shape)
    # Rows of their own for each row of the mean, or one row for all of them.
    given = log_scores.detach().to(dtype)
    one = given.numel() == size
    given = (given.reshape(size) if one else given.expand(shape)).contiguous()
    into = torch.empty(shape, dtype=dtype, device="cpu") if mean is None else mean.to(dtype)
    into = into.expand(shape).contiguous()
    rows = into.numel() // max(size, 1)
    library.function("mean", dtype)(
        into.data_ptr(), given.data_ptr(), rows, size, 0 if one else size, mean is None, share,
        library.threads(8 * into.numel(), rows),
    )  # fmt: skip
    return into


def normalised(log_scores: Tensor, share: float = 0.0) -> Tensor:
    """Log-probabilities (..., states) plus ``share``; -inf throughout where nothing is possible."""
    total = log_scores.logsumexp(-1, keepdim=True)
    return log_scores - torch.where(total > -math.inf, total - share, 0.0)


@dataclass(frozen=True)
class Uniform(Proposal):
    """Gives equal scores to all states that a site's potential allows."""

    def log_scores(self, sites: Sites) -> Tensor:
        if lowest(sites.unary) > -math.inf:
            return sites.unary.new_zeros(sites.states)
        return torch.where(sites.unary > -math.inf, 0.0, -math.inf).to(sites.unary)


@dataclass(frozen=True)
class Local(Proposal):
    """Scores states by the softmax of a site's log-potential, such as an emission."""

    def log_scores(self, sites: Sites) -> Tensor:
        return sites.unary


@dataclass(frozen=True)
class Global(Proposal):
    """Scores a state by the L1 norm of its embedding, as large norms make large inner products.

    The second term of Fu, Cunningham and Lapata 2022, eq. 34, as it is printed. `SoftmaxGlobal` is
    what their released code computes. A state has the mean over its `Bilinear` factors; if a model
    has no embeddings, the mean factor value over a few random states of the neighbours is used
    instead.

    Args:
        landmarks: number of states, in that case.
    """

    landmarks: int = 16

    def __post_init__(self) -> None:
        require_fields(self, landmarks="[1, inf)")

    def log_scores(self, sites: Sites) -> Tensor:
        """Log of the norm, or of the mean factor value if there are no embeddings."""
        norms = sites.norms()
        if norms is None:
            return sites.mean_values(self.landmarks)
        bare = (norms == 0).all(-1, keepdim=True)
        return torch.where(bare, 0.0, norms.log())


@dataclass(frozen=True)
class SoftmaxGlobal(Proposal):
    """Scores a state by the softmax of the L1 norm of its embedding, as the authors' code does.

    Fu, Cunningham and Lapata 2022; `Global` is the formula of their paper. Without embeddings the
    two are the same.

    Args:
        landmarks: as for `Global`.
    """

    landmarks: int = 16

    def __post_init__(self) -> None:
        require_fields(self, landmarks="[1, inf)")

    def log_scores(self, sites: Sites) -> Tensor:
        """Norm of the embedding, or the log of the mean factor value if there are no embeddings."""
        norms = sites.norms()
        return sites.mean_values(self.landmarks) if norms is None else norms


def LocalGlobal(prior: Proposal | None = None) -> Mixture:
    """Scores states half by `Local`, half globally (Fu, Cunningham and Lapata 2022, eq. 34).

    With `Global` the formula as printed, where phi is the exponential of the emission score; with
    `SoftmaxGlobal` what the released code computes.

    Args:
        prior: the global half; default `Global()`.
    """
    return Mixture((Local(), Global() if prior is None else prior), (0.5, 0.5))


@dataclass(frozen=True)
class Landmark(Proposal):
    """Scores states by a site's potential times its factors' means over random neighbour states.

    O(count N) evaluations per factor, whatever the potentials.

    Args:
        count: number of random states.
    """

    count: int = 8

    def __post_init__(self) -> None:
        require_fields(self, count="[1, inf)")

    def log_scores(self, sites: Sites) -> Tensor:
        return sites.unary + sites.mean_values(self.count)


def broad() -> Proposal:
    """Half `Landmark`, half `LocalGlobal(SoftmaxGlobal())`, each good where the other errs."""
    return Mixture((Landmark(), LocalGlobal(SoftmaxGlobal())), (0.5, 0.5))


@dataclass(frozen=True)
class Oracle(Proposal):
    """Scores states by their marginals in the whole model, for tests and plots of least errors.

    Costs the exact inference that estimators avoid.
    """

    def scores_of(self, setting: Setting) -> Scores:
        marginals = setting.marginals(setting.solve(setting.model))
        return tuple(torch.where(m > 0, m.clamp(min=0.0).log(), -math.inf) for m in marginals)


_KEPT = 0.5
"""Fraction of the states that proposals by inference keep; as many are drawn."""


@torch.no_grad()
def log_likely(
    proposal: Proposal,
    network: Network,
    *,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> list[list[Floats]]:
    """Per batch item and active variable the log-probabilities of its remaining states.

    Equal ones for auxiliary variables, and where the proposal gives -inf to all states.
    """
    setting = Setting.of(
        network.graph, TopSystematic(_KEPT, _KEPT), solve=solve, generator=generator
    )
    of_groups = proposal.scores_of(setting) if setting.groups else ()
    rows = {int(number): place for place, number in enumerate(network.numbers.tolist())}
    equal = [np.full(size, -np.log(max(size, 1))) for size in network.sizes]
    every = [list(equal) for _ in range(network.batch)]
    for sites, given in zip(setting.groups, of_groups, strict=True):
        scores = given.to(sites.unary).expand(sites.unary.shape)
        if bool((scores.isnan() | (scores == torch.inf)).any()):
            raise ModelError(f"{type(proposal).__name__} gives scores that are NaN or +inf.")
        flat = scores.double().cpu().reshape(-1, *sites.unary.shape[-2:])
        flat = flat.expand(network.batch, *flat.shape[1:])
        assert sites.numbers is not None
        for site, number in enumerate(sites.numbers.tolist()):
            place = rows.get(number)
            if place is None:
                continue
            alone = torch.tensor([number], device="cpu")
            states = network.states_left(alone, network.sizes[place])[0]
            here = flat[:, site, states]
            silent = (here == -torch.inf).all(-1, keepdim=True)  # it knows of no possible state
            log_chances = normalised(torch.where(silent, 0.0, here)).numpy()
            for item in range(network.batch):
                every[item][place] = log_chances[item]
    return every


_PROBE = -10.0  # log-weight of a state that is looked at: it hardly changes what it meets


@dataclass(frozen=True)
class Pilot(Proposal):
    """Scores states by a run on few states, mixed with the proposal that chose those few.

    The model is solved once on few states of the base proposal's choice. The messages between them,
    taken one step further, give the mass of every state given those kept elsewhere: in a chain
    alpha(i) beta(i), in O(N) evaluations of a factor for each state kept. A model whose `Sites`
    have no ``masses`` is probed instead: every other state joins, in lots of as many as are kept
    and with a weight too small to change anything, the states kept at its site, and its marginal
    divided by that weight is its mass. That costs about four exact passes on the restricted model
    for each lot.

    The states of the estimate itself are drawn again, so that it is unbiased given the pilot.

    Args:
        base: the proposal of the first run.
        selection: its selection; None: `TopSystematic` of ``most`` states, half of them the
            likeliest, or for a graph the estimator's where that keeps fewer.
        share: the part of the first run in the mixture; the rest is the base's.
        most: the states that the first run keeps at most, where no selection is given.
    """

    base: Proposal = field(default_factory=broad)
    selection: Selection | None = None
    share: float = 0.9
    most: int = 64

    def __post_init__(self) -> None:
        require_fields(self, share="(0, 1)", most="[2, inf)")

    def scores_of(self, setting: Setting) -> Scores:
        """Mixture of the pilot's masses and the base."""
        base = self.base.scores_of(setting)
        chosen = [
            self._chosen(torch.where(sites.unary > -math.inf, scores, -math.inf), setting)
            for sites, scores in zip(setting.groups, base, strict=True)
        ]
        masses = _masses(setting, chosen) or probed(setting, chosen)
        return mixed((masses, base), (self.share, 1.0 - self.share))

    def _chosen(self, scores: Tensor, setting: Setting) -> Support:
        if self.selection is not None:
            return self.selection.select(scores, setting.generator)
        few = TopSystematic(self.most // 2, self.most - self.most // 2)
        if isinstance(setting.model, Structure):
            return few.select(scores, setting.generator)
        # A graph may have wide cliques: no more states there than the estimate itself has.
        support = setting.selection.select(scores, setting.generator)
        return support if support.kept <= self.most else few.select(scores, setting.generator)


def _masses(setting: Setting, chosen: list[Support]) -> Scores | None:
    """Masses of all states given the chosen ones, by the sites' method, or None."""
    masses: list[Tensor] = []
    for sites, support in zip(setting.groups, chosen, strict=True):
        known = sites.masses and sites.masses(support.states, support.log_weights)
        if known is None:
            return None
        masses.append(known)
    return tuple(masses)


def count_lots(groups: Sequence[Sites], chosen: Sequence[Support]) -> int:
    """The number of lots in which all states are probed."""
    pairs = zip(groups, chosen, strict=True)
    return max(-(-sites.states // support.kept) for sites, support in pairs)


def probed(setting: Setting, chosen: list[Support], log_weight: float = _PROBE) -> Scores:
    """Per group (*batch, *sites, states) log-masses of all states given the chosen ones.

    States are probed with the log-weight; the constant of the masses of a site depends on it.
    """
    # All other states join the chosen ones in lots, as many at once as a block has room for.
    groups, lots = setting.groups, count_lots(setting.groups, chosen)
    widths = [-(-sites.states // lots) for sites in groups]
    largest = max(width + s.kept for width, s in zip(widths, chosen, strict=True))
    at_once = tuning.per_block(_num_tables(setting.model) * largest**2, tuning.LARGE_BLOCK)
    parts: list[list[Tensor]] = [[] for _ in groups]
    for first in range(0, lots, at_once):
        numbers = torch.arange(first, min(first + at_once, lots), device="cpu").unsqueeze(1)
        joined = [
            _with_probes(
                support,
                (numbers * width + torch.arange(width, device="cpu")).clamp(max=sites.states - 1),
                log_weight,
            )
            for support, width, sites in zip(chosen, widths, groups, strict=True)
        ]
        posterior = setting.solve(setting.restrict(joined))
        log_z = posterior.log_partition
        for part, marginals, width in zip(
            parts, setting.marginals(posterior, joined), widths, strict=True
        ):
            # A probe's mass is its marginal times Z; the weight is the same for all probes.
            chances = marginals[..., -width:]
            total = log_z.reshape(*log_z.shape, *(1,) * (chances.ndim - log_z.ndim))
            logs = torch.where(chances > 0, chances, 1.0).log() + total
            logs = torch.where(chances > 0, logs, -math.inf)
            part.append(logs.movedim(0, -2).flatten(-2))
    return tuple(
        torch.cat(part, -1)[..., : sites.states].to(sites.unary)
        for part, sites in zip(parts, groups, strict=True)
    )


def _num_tables(model: Model) -> int:
    """Number of joint tables of a restriction of a model, batch counted."""
    if isinstance(model, Structure):
        return max(1, math.prod(model.unary.shape[:-1]))
    joint = sum(block.count for block in model.blocks if block.arity > 1)
    return max(joint, 1) * math.prod(model.batch_shape)


def _with_probes(support: Support, probes: Tensor, log_weight: float) -> Support:
    """Support with further states (lots, width) of a weight: (lots, *lead, kept + width)."""
    lots, width = probes.shape
    lead = (lots, *support.states.shape[:-1])
    probes = probes.to(support.states.device).reshape(lots, *(1,) * (len(lead) - 1), width)
    weights = support.log_weights.new_full((), log_weight).expand(*lead, width)
    kept = support.map(lambda part: part.expand(*lead, -1))
    return Support.joined([kept, Support(probes.expand(*lead, width), weights)])
