"""Hypertrees on a few states of each span, weighted: the randomized inside algorithm."""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph.model.gradients import by_autograd
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import gathered
from rdpgraph.structures.draws import drawn, largest
from rdpgraph.structures.hypertree.ranks import Ranks, kernel_form
from rdpgraph.structures.hypertree.restricted_cells import Cells
from rdpgraph.structures.hypertree.restricted_descent import descended, max_marginals
from rdpgraph.structures.hypertree.rules import LowRankRules, NoRules
from rdpgraph.structures.relaxation import perturbed

if TYPE_CHECKING:
    from rdpgraph.structures.hypertree.model import Hypertree


@dataclass(frozen=True, eq=False)
class RestrictedHypertree(Structure):
    """A hypertree whose spans have K kept states each, numbered 0..K-1.

    log Z costs O(T^2 K r + T^3 r) with `LowRankRules` and `NoRules`, O(T^3 K^3) with others, whose
    rules are looked up for every split of every span. Made by `Hypertree.restrict`.

    Args:
        unary: (*lead, T, T, K) log-potentials (nats) of the kept states, weights included.
        states: (*lead, T, T, K) which states of the original they are; repeats are separate.
        original: the hypertree; its batch dims are the last ones of lead.
        lengths: (*lead,); default: all T.
    """

    states: Tensor
    original: "Hypertree"
    lengths: Tensor | None = field(default=None, kw_only=True)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicates and batch dims."""
        return tuple(self.unary.shape[:-3])

    def log_partition(self) -> Tensor:
        """(*lead,) log Z in nats."""
        cells = self.cells
        return cells.total(cells.rows(1.0), cells.root).reshape(self.batch_shape)

    @by_autograd
    def entropy(self) -> Tensor:
        """(*lead,) log Z less the expected score, weights included; 0 where nothing is possible."""
        cells, rules = self.cells, self.original.rules
        tracked = torch.is_grad_enabled() and any(
            part.requires_grad for part in (self.unary, cells.root, *rules.parts)
        )
        with torch.enable_grad():
            unary = cells.unary.view_as(cells.unary)
            unary = unary if unary.requires_grad else unary.detach().requires_grad_()
            power = torch.ones(cells.batch, dtype=unary.dtype, device=unary.device)
            power.requires_grad_()
            root = cells.root.view_as(cells.root)
            root = root if root.requires_grad else root.detach().requires_grad_()
            live = replace(cells, unary=unary)
            log_z = live.total(live.rows(1.0, power), root)
            possible = log_z.detach() > -math.inf
            found = torch.autograd.grad(
                log_z, (unary, power, root), possible.to(log_z), create_graph=tracked,
                allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            own = torch.where(unary > -math.inf, unary, 0.0)
            whole = torch.where(root > -math.inf, root, 0.0)
            expected = (own * found[0]).flatten(1).sum(1) + found[1] + (whole * found[2]).sum(1)
            result = torch.where(possible, torch.where(possible, log_z, 0.0) - expected, 0.0)
            result = result.reshape(self.batch_shape)
        return result if tracked else result.detach()

    def mode(self) -> Tensor:
        """(*lead, T, T) numbers of kept states of the best tree, -1 for what is no constituent.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(1, temperature=0.0)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *lead, T, T) exact draws, as `mode` gives its tree.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(count, temperature=1.0, generator=generator)

    @by_autograd
    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *lead, T, T, K) relaxed trees of kept states, differentiable.

        As `Hypertree.rsample`, every entry of a support with noise of its own. O(T^3 K^3) but
        for `NoRules`.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        unary, lengths = perturbed(
            self.unary, self.lengths, count=count, temperature=temperature, generator=generator
        )
        states = self.states.expand(unary.shape)
        tracked = torch.is_grad_enabled() and any(
            part.requires_grad for part in (unary, self.cells.root, *self.original.rules.parts)
        )
        with torch.enable_grad():
            unary = unary if unary.requires_grad else unary.detach().requires_grad_()
            cells = replace(self, unary=unary, states=states, lengths=lengths).cells
            power = torch.full((cells.batch,), 1.0 / temperature).to(self.unary)
            log_z = cells.total(cells.rows(1.0, power), cells.root / temperature)
            possible = (log_z.detach() > -math.inf).to(log_z)
            (found,) = torch.autograd.grad(log_z, unary, possible, create_graph=tracked)
        return found if tracked else found.detach()

    def max_marginals(self) -> Tensor:
        """(*lead, T, T, K) the score of the best tree with each constituent; -inf if there is none.

        O(T^3 K^3). Not differentiable.
        """
        if not self.cells.batch or not self.unary.shape[-2]:
            return self.unary.detach()
        return max_marginals(self.cells).reshape(self.unary.shape)

    def work(self) -> float:
        """The multiply-adds of log Z."""
        total, kept = self.unary.shape[-2:]
        splits, count = total**3 / 6, math.prod(self.batch_shape)
        ranks = self.cells.ranks
        if ranks is None:
            return count * splits * float(kept) ** 3
        return count * ranks.left.shape[2] * (splits + 1.5 * total**2 * kept)

    @differentiable_property
    def cells(self) -> Cells:
        """The spans as the recursions take them."""
        form = self.original.form
        batch = math.prod(self.batch_shape)
        shape = (batch, *self.unary.shape[-3:])
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((batch,), shape[1], device=self.unary.device)
        lengths, states = lengths.reshape(-1), self.states.reshape(shape)
        rules = self.original.rules.flat(self.batch_shape)
        ranks = None
        if isinstance(rules, LowRankRules | NoRules):
            spans = self.unary.new_zeros(1, 1, 1, form.states)
            kernel, _ = kernel_form(rules, spans, self.original.unary.shape[-1])
            ranks = kernel if isinstance(kernel, Ranks) else None
        root = form.root
        root = root.repeat(max(1, batch // len(root)), 1) if len(root) > 1 else root
        if shape[1]:
            item = torch.arange(batch, device=states.device)
            kept = states[item, 0, (lengths - 1).clamp(min=0)]
            root = root.expand(batch, -1).gather(1, kept)
        else:
            root = root.new_zeros(batch, shape[3])
        unary = self.unary.reshape(shape)
        return Cells(unary, states, lengths, rules, ranks, root, form.states)

    def _descended(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        pick = drawn(generator) if temperature else largest
        with torch.no_grad():
            rows = self.cells.rows(temperature)
            found = descended(self.cells, rows, count=count, pick=pick, temperature=temperature)
        return found.reshape(count, *self.unary.shape[:-1])


def restricted(tree: "Hypertree", states: Tensor, log_weights: Tensor) -> RestrictedHypertree:
    """What `Hypertree.restrict` gives.

    Raises:
        ModelError: shapes that do not fit, or a state out of range.
    """
    kept = gathered("Hypertree", tree.unary, states, log_weights, sites=2)
    if tree.preterminals:
        word = torch.eye(states.shape[-2], dtype=torch.bool, device=states.device).unsqueeze(-1)
        single = states >= tree.form.states
        kept = torch.where(word == single, kept, -math.inf)
    lengths = None if tree.lengths is None else tree.lengths.expand(states.shape[:-3])
    return RestrictedHypertree(kept, states, tree, lengths=lengths)
