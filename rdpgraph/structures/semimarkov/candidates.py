"""Semi-Markov chains whose segments have candidates of their own, which stand for labels."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph.model.gradients import by_autograd
from rdpgraph.model.potential import Potential
from rdpgraph.model.structure import Structure, is_tracked
from rdpgraph.model.support import gathered
from rdpgraph.model.table import Table
from rdpgraph.structures.chain.tensors import table_of
from rdpgraph.structures.draws import drawn, largest
from rdpgraph.structures.relaxation import perturbed
from rdpgraph.structures.semimarkov.labelled import LabelledSegments
from rdpgraph.structures.semimarkov.transitions import flattened


@dataclass(frozen=True, eq=False)
class CandidateSegments(Structure):
    """A semi-Markov chain whose segments have K candidates each, of labels that may differ.

    log Z costs O(T (D K)^2), O(T D K r) with a `LowRank` transition, whatever the number of
    labels; what else is asked is looked up for all pairs of candidates. It is summed in float64.

    Args:
        unary: (*lead, T, D, K) log-potentials (nats) of the candidates.
        states: (*lead, T, D, K) the label of each; two of one label are two.
        transition: between labels; its batch dims, if it has any, are the last ones of lead.
        lengths: (*lead,); default: all T.
    """

    states: Tensor = field(metadata={"dims": 3})
    transition: Tensor | Potential = field(metadata={"dims": 3})
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicates and batch dims."""
        return tuple(self.unary.shape[:-3])

    def log_partition(self) -> Tensor:
        """(*lead,) log Z in nats, differentiable; O(T (D K)^2), or O(T D K r) at rank r."""
        return self._shaped(self.labelled.log_partition(1.0))

    @by_autograd
    def entropy(self) -> Tensor:
        """(*lead,) log Z less the expected score, 0 where nothing is possible.

        The derivative in the temperature t of t log Z(scores / t), which sums the entropies of a
        draw step by step: nothing large is subtracted.
        """
        if not self.unary.shape[-3]:
            return self.log_partition()
        tracked = torch.is_grad_enabled() and is_tracked(self)
        with torch.enable_grad():
            labelled = self.labelled
            one = labelled.unary.new_ones(labelled.batch, 1, 1).requires_grad_()
            log_z = labelled.log_partition(one)
            possible = log_z.detach() > -math.inf
            (gradient,) = torch.autograd.grad(
                log_z, one, possible.to(log_z), create_graph=tracked, materialize_grads=True
            )
        return self._shaped(gradient if tracked else gradient.detach())

    def max_marginals(self) -> Tensor:
        """(*lead, T, D, K) the score of the best segmentation with each segment, or -inf.

        Not differentiable.
        """
        with torch.no_grad():
            labelled = self.labelled
            scores = labelled.ending(0.0) + labelled.following(0.0)
        return scores.reshape(self.unary.shape).to(self.unary)

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the scores of segmentations, as `mode` gives one; differentiable."""
        used = states >= 0
        number = states.clamp(min=0).unsqueeze(-1)
        shape = (*states.shape, self.unary.shape[-1])
        unary, labels = (
            part.expand(shape).gather(-1, number) for part in (self.unary, self.states)
        )
        unary = torch.where(used.unsqueeze(-1), unary, -math.inf)
        lead = states.shape[:-2]
        steps = torch.tensor(shape[-3], device=unary.device)
        lengths = (steps if self.lengths is None else self.lengths).expand(lead)
        # Segments that take as many steps as there are either cover all, or leave some out.
        lasting = torch.arange(1, shape[-2] + 1, device=unary.device)
        whole = (used * lasting).sum((-2, -1)) == lengths
        one = replace(self, unary=unary, states=labels, lengths=lengths)
        return torch.where(whole, one.log_partition(), -math.inf)

    def mode(self) -> Tensor:
        """(*lead, T, D) the candidates of a best segmentation, -1 elsewhere.

        Raises:
            ImpossibleEvidenceError: an item has no possible segmentation.
        """
        return self.labelled.descended(1, 0.0, largest).reshape(self.unary.shape[:-1])

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *lead, T, D) exact draws, as `mode` gives its segmentation.

        Raises:
            ImpossibleEvidenceError: an item has no possible segmentation.
        """
        labels = self.labelled.descended(count, 1.0, drawn(generator))
        return labels.reshape(count, *self.unary.shape[:-1])

    @by_autograd
    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *lead, T, D, K) relaxed segments, as `SemiMarkov.rsample`.

        Every candidate has noise of its own.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        tracked = torch.is_grad_enabled() and is_tracked(self)
        with torch.enable_grad():
            unary, lengths = perturbed(
                self.unary, self.lengths, count=count, temperature=temperature, generator=generator
            )
            unary = unary if unary.requires_grad else unary.requires_grad_()
            states = self.states.expand(unary.shape)
            noisy = replace(self, unary=unary, states=states, lengths=lengths).labelled
            # The scores of transitions are looked up, and take the temperature here.
            log_z = replace(noisy, unary=noisy.unary * temperature).log_partition(temperature)
            possible = (log_z.detach() > -math.inf).to(log_z)
            (gradient,) = torch.autograd.grad(
                log_z, unary, possible / temperature, create_graph=tracked
            )
        return gradient if tracked else gradient.detach()

    def work(self) -> float:
        """The multiply-adds of log Z."""
        return self.labelled.work

    @property
    def labelled(self) -> LabelledSegments:
        """The segments as the recursions take them."""
        batch = math.prod(self.batch_shape)
        shape = (batch, *self.unary.shape[-3:])
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((batch,), shape[1], device=self.unary.device)
        unary, states = self.unary.double().reshape(shape), self.states.reshape(shape)
        potential = self.transition
        if isinstance(potential, Tensor) or len(potential.shape) > 2:
            table = table_of(potential, of="SemiMarkov")
            potential = Table(flattened(table, self.batch_shape))
        return LabelledSegments(unary, states, lengths.reshape(-1), potential)

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape(self.batch_shape).to(self.unary)


def candidate_segments(
    unary: Tensor,
    transition: Tensor | Potential,
    lengths: Tensor | None,
    states: Tensor,
    log_weights: Tensor,
) -> CandidateSegments:
    """What `SemiMarkov.restrict` gives.

    Raises:
        ModelError: shapes that do not fit, or a label out of range.
    """
    kept = gathered("SemiMarkov", unary, states, log_weights, sites=2)
    lengths = None if lengths is None else lengths.expand(states.shape[:-3])
    return CandidateSegments(kept, states, transition, lengths=lengths)
