"""Proposals from a first, coarse run of the estimator."""

import math
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Model, Setting
from rdpgraph.estimate.proposals import Proposal, Scores, broad, mixed
from rdpgraph.estimate.selections import Selection, TopSystematic
from rdpgraph.interface.structure import Structure
from rdpgraph.model.restriction import Support

_PROBE = -10.0  # log-weight of a state that is looked at: it hardly changes what it meets
_MOST_ELEMENTS = 1 << 25  # of the tables that are solved at once


@dataclass(frozen=True)
class Pilot(Proposal):
    """Masses of all states by a run on few states, mixed with the proposal that chose those.

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
        numbers = is_real(self.share) and is_whole(self.most, 2)
        if not numbers or not 0.0 < self.share < 1.0:
            raise ModelError(
                "Pilot needs a share between 0 and 1 and most states >= 2; got "
                f"{self.share!r:.80} and {self.most!r:.80}."
            )
        if not isinstance(cast(object, self.base), Proposal):
            raise ModelError(f"Pilot needs a proposal as its base; got {self.base!r:.80}.")

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
    """Masses of all states given the chosen ones, by the sites' own method, or None."""
    masses: list[Tensor] = []
    for sites, support in zip(setting.groups, chosen, strict=True):
        known = sites.masses and sites.masses(support.states, support.log_weights)
        if known is None:
            return None
        masses.append(known)
    return tuple(masses)


def probed(setting: Setting, chosen: list[Support]) -> Scores:
    """Per group (*batch, *sites, states) log-masses of all states given the chosen ones."""
    groups = setting.groups
    lots = max(
        -(-sites.states // support.kept) for sites, support in zip(groups, chosen, strict=True)
    )
    widths = [-(-sites.states // lots) for sites in groups]
    largest = max(width + s.kept for width, s in zip(widths, chosen, strict=True))
    at_once = max(1, _MOST_ELEMENTS // (_num_tables(setting.model) * largest**2))
    parts: list[list[Tensor]] = [[] for _ in groups]
    for first in range(0, lots, at_once):
        numbers = torch.arange(first, min(first + at_once, lots), device="cpu").unsqueeze(1)
        joined = [
            _with_probes(
                support,
                (numbers * width + torch.arange(width, device="cpu")).clamp(max=sites.states - 1),
            )
            for support, width, sites in zip(chosen, widths, groups, strict=True)
        ]
        posterior = setting.solve(setting.restrict(joined))
        log_z = posterior.log_partition
        for part, marginals, width in zip(
            parts, setting.marginals(posterior, joined), widths, strict=True
        ):
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


def _with_probes(support: Support, probes: Tensor) -> Support:
    """Support with further states (lots, width) of small weight: (lots, *lead, kept + width)."""
    lots, width = probes.shape
    lead = (lots, *support.states.shape[:-1])
    probes = probes.to(support.states.device).reshape(lots, *(1,) * (len(lead) - 1), width)
    weights = support.log_weights.new_full((), _PROBE).expand(*lead, width)
    kept = support.map(lambda part: part.expand(*lead, -1))
    return Support.joined([kept, Support(probes.expand(*lead, width), weights)])
