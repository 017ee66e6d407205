"""A proposal from a first, coarse run of the estimator."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.estimate.proposal import Given, Mixture, Proposal, Setting
from rdpgraph.estimate.proposals import broad
from rdpgraph.estimate.selection import Selection
from rdpgraph.estimate.selections import TopSystematic
from rdpgraph.estimate.view import StructureView
from rdpgraph.model.sites import Sites
from rdpgraph.model.support import Support

_PROBE = -10.0  # log-weight of a state that is looked at: it hardly changes what it meets
_MOST_ELEMENTS = 1 << 25  # of the tables that are solved at once


@dataclass(frozen=True)
class Pilot(Proposal):
    """What a run on few states says of all states, mixed with the proposal that chose those.

    The model is solved once on few states of the base proposal's choice. The messages between
    them, taken one step further, give the mass of every state given those kept elsewhere: in a
    chain alpha(i) beta(i), in O(N) evaluations of a factor for each state kept. A model whose
    `Sites` have no ``masses`` is probed instead: every other state joins, in lots of as many as are
    kept and with a weight too small to change anything, the states kept at its site, and its
    marginal divided by that weight is its mass. That costs about four exact passes on the
    restricted model for each lot.

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
        if not 0.0 < self.share < 1.0 or self.most < 2:
            raise ModelError(
                "Pilot needs a share between 0 and 1 and most states >= 2; got "
                f"{self.share} and {self.most}."
            )

    def log_scores(self, sites: Sites) -> Tensor:
        """Not without the model."""
        raise ModelError("Pilot has no scores before informed(setting) has run.")

    def informed(self, setting: Setting) -> Proposal:
        """The mixture of the masses found and the base."""
        base = self.base.informed(setting)
        chosen: list[Support] = []
        for sites in setting.view.groups:
            scores = torch.where(sites.unary > -math.inf, base.log_scores(sites), -math.inf)
            chosen.append(self._chosen(scores, setting))
        masses = setting.view.masses(chosen) or probed(setting, chosen)
        return Mixture((Given(masses, setting.view), base), (self.share, 1.0 - self.share))

    def _chosen(self, scores: Tensor, setting: Setting) -> Support:
        if self.selection is not None:
            return self.selection.select(scores, setting.generator)
        few = TopSystematic(self.most // 2, self.most - self.most // 2)
        if isinstance(setting.view, StructureView):
            return few.select(scores, setting.generator)
        # A graph may have wide cliques: no more states there than the estimate itself has.
        support = setting.selection.select(scores, setting.generator)
        return support if support.kept <= self.most else few.select(scores, setting.generator)


def probed(setting: Setting, chosen: list[Support]) -> tuple[Tensor, ...]:
    """For each group (*batch, *sites, states): the log-mass of every state beside the chosen."""
    view = setting.view
    lots = max(
        -(-sites.states // support.kept) for sites, support in zip(view.groups, chosen, strict=True)
    )
    widths = [-(-sites.states // lots) for sites in view.groups]
    largest = max(width + s.kept for width, s in zip(widths, chosen, strict=True))
    at_once = max(1, _MOST_ELEMENTS // (view.num_tables * largest**2))
    parts: list[list[Tensor]] = [[] for _ in view.groups]
    for first in range(0, lots, at_once):
        numbers = torch.arange(first, min(first + at_once, lots))
        probes = [
            (numbers.unsqueeze(1) * width + torch.arange(width)).clamp(max=sites.states - 1)
            for width, sites in zip(widths, view.groups, strict=True)
        ]
        joined = [
            _with_probes(support, asked) for support, asked in zip(chosen, probes, strict=True)
        ]
        answer = setting.solve(view.restrict(view.supports(joined)))
        log_z = answer.log_partition
        groups = view.marginals(answer, joined)
        for part, marginals, width in zip(parts, groups, widths, strict=True):
            own = marginals[..., -width:]
            total = log_z.reshape(*log_z.shape, *(1,) * (own.ndim - log_z.ndim))
            logs = torch.where(own > 0, torch.where(own > 0, own, 1.0).log() + total, -math.inf)
            part.append(logs.movedim(0, -2).flatten(-2))
    return tuple(
        torch.cat(part, -1)[..., : sites.states].to(sites.unary)
        for part, sites in zip(parts, view.groups, strict=True)
    )


def _with_probes(support: Support, asked: Tensor) -> Support:
    """A support and further states of small weight: (lots, *lead, kept + width)."""
    lots, width = asked.shape
    lead = (lots, *support.states.shape[:-1])
    own = asked.to(support.states.device).reshape(lots, *(1,) * (len(lead) - 1), width)
    weights = support.log_weights.new_full((), _PROBE).expand(*lead, width)
    return Support(
        torch.cat([support.states.expand(*lead, -1), own.expand(*lead, width)], -1),
        torch.cat([support.log_weights.expand(*lead, -1), weights], -1),
    )
