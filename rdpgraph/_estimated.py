"""What must hold of a structure's answers on a few states of each site, by enumeration."""

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._agreement import QUESTIONS, agree, alike, close, seeded
from rdpgraph._cache import cached_property
from rdpgraph._enumeration import Enumeration, OnGraph, truth_of
from rdpgraph.errors import ImpossibleEvidenceError, UnsupportedError
from rdpgraph.estimate.proposals import Local
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selections import Top, TopSystematic
from rdpgraph.infer import infer
from rdpgraph.model.structure import Structure
from rdpgraph.query.structured import StructuredPosterior

_ESTIMATORS = {
    "Top": Randomized(Local(), Top(2)),
    "Randomized": Randomized(Local(), TopSystematic(1, 1), replicates=3),
    "Randomized on all states": Randomized(Local(), TopSystematic(1.0, 0.5), replicates=2),
}


def check_on_few(structure: Structure) -> None:
    """Hold the answers on a few states of each site against enumeration, type by type.

    Every question is asked with `Randomized` estimators, one that keeps the likeliest states alone
    among them: the answers are of the types and shapes that they have without it, and they are
    those of the configurations whose states were kept, with their weights.

    Args:
        structure: small enough to enumerate, every item possible; it offers `sites`.
    """
    full = infer(structure)
    assert isinstance(full, StructuredPosterior)
    truth = truth_of(structure)
    sites = full.marginals().detach().sum(-1, keepdim=True) > 0
    if isinstance(truth, OnGraph):  # what an item lacks is held in a state there
        everything, present = truth.enumerated, sites
    else:
        everything, present = truth, torch.ones_like(sites)
    for name, estimator in _ESTIMATORS.items():
        few = infer(structure, estimator=estimator, generator=seeded())
        assert isinstance(few, StructuredPosterior)
        _check_types(name, few, full)
        _check_numbers(name, few, OnFew.of(everything, present, few))


@dataclass(frozen=True, eq=False)
class OnFew:
    """The configurations of states that were kept, in each replicate.

    Attributes:
        configurations: all there are.
        present: (*batch, *sites, 1) whether an item has a site.
        log_weights: (replicates, C, *batch) of the states that each has, summed; -inf: not kept.
    """

    configurations: Enumeration
    present: Tensor
    log_weights: Tensor

    @classmethod
    def of(cls, configurations: Enumeration, present: Tensor, few: StructuredPosterior) -> "OnFew":
        """By the supports of a posterior."""
        structure, support = configurations.structure, few.supports
        shape, batch = structure.unary.shape, configurations.scores.ndim - 1
        places = structure.site_places()
        states = shape[-1] if places is None else places.shape[-1]
        same = support.states.unsqueeze(-1) == torch.arange(states, device=support.states.device)
        logs = torch.where(same, support.log_weights.unsqueeze(-1), -math.inf).logsumexp(-2)
        logs = logs.expand(len(logs), *shape[:batch], *logs.shape[batch + 1 :])
        if places is not None:
            flat = places.flatten()
            by_place = logs.new_full((*logs.shape[: batch + 1], shape[-1]), -math.inf)
            logs = by_place.index_copy(-1, flat[flat >= 0], logs.flatten(batch + 1)[..., flat >= 0])
        items = shape[:batch].numel()
        logs = torch.where(present, logs, 0.0).reshape(len(logs), 1, items, -1)
        uses = configurations.uses.flatten(1).to(logs).unsqueeze(1)
        total = torch.where(uses > 0, logs * uses, 0.0).sum(-1)
        return cls(configurations, present, total.reshape(-1, *configurations.scores.shape))

    @cached_property
    def _scores(self) -> Tensor:
        """(replicates, C, *batch) of the model on the states kept."""
        return self.configurations.scores + self.log_weights

    @property
    def unweighted(self) -> Tensor:
        """(C, *batch) scores without weights; -inf where no replicate has all of the states."""
        some = (self.log_weights > -math.inf).any(0)
        return torch.where(some, self.configurations.scores, -math.inf)

    @property
    def log_partitions(self) -> Tensor:
        """(replicates, *batch) nats."""
        return self._scores.logsumexp(1)

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z, nats."""
        return self.log_partitions.logsumexp(0) - math.log(len(self.log_weights))

    @cached_property
    def chances(self) -> Tensor:
        """(C, *batch), of all replicates; zero throughout where nothing is possible."""
        total = self._scores.logsumexp(0)
        log_z = total.logsumexp(0)
        return (total - torch.where(log_z > -math.inf, log_z, 0.0)).exp()

    @property
    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities."""
        uses = self.configurations.uses.to(self.chances)
        sums = torch.einsum("c...,csn->...sn", self.chances, uses)
        sums = sums.reshape(self.configurations.structure.unary.shape)
        return torch.where(self.present, sums, 0.0)

    @property
    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) scores."""
        everything = self.configurations
        best = Enumeration(everything.structure, everything.uses, self.unweighted).max_marginals
        return torch.where(self.present, best, -math.inf)

    @property
    def entropy(self) -> Tensor:
        """(*batch,) log Z less the expected score, weights left out."""
        scores = torch.where(self.chances > 0, self.configurations.scores, 0.0)
        log_z = self.log_partition
        return torch.where(log_z > -math.inf, log_z, 0.0) - (self.chances * scores).sum(0)


def _two_sites(structure: Structure) -> list[tuple[int, ...]]:
    sites = structure.factor_graph().variables[0].shape
    if 0 in sites:
        raise UnsupportedError("There are no sites.")
    first = (0,) * len(sites)
    return [first, (*first[:-1], sites[-1] - 1)] if sites and sites[-1] > 1 else [first]


def _check_types(name: str, few: StructuredPosterior, full: StructuredPosterior) -> None:
    """Each answer is of the type and shape that it has without the estimator."""
    joint = {"joint()": lambda posterior: posterior.joint(_two_sites(posterior.structure))}
    for what, ask in (QUESTIONS | joint).items():
        with suppress(UnsupportedError):
            expected = ask(full)
            try:
                got = ask(few)
            except ImpossibleEvidenceError:
                agree(bool((few.log_partition == -math.inf).any()), f"{what} with {name} answers")
                continue
            except UnsupportedError as error:
                raise AssertionError(f"{what} has no answer with {name}: {error}") from None
            alike(got, expected, f"{what} with {name}")


def _check_numbers(name: str, few: StructuredPosterior, truth: OnFew) -> None:
    structure, marginals = few.structure, truth.marginals
    for what, got, expected in (
        ("log_partition", few.log_partition, truth.log_partition),
        ("log_partitions", few.log_partitions, truth.log_partitions),
        ("marginals()", few.marginals(), marginals),
        ("entropy()", few.entropy(), truth.entropy),
        ("max_marginals()", few.max_marginals(), truth.max_marginals),
    ):
        close(got, expected, f"{what} with {name}")
    with suppress(UnsupportedError):
        sites = _two_sites(structure)
        shape = structure.states_shape[len(structure.batch_shape) :]
        if structure.factor_graph().variables[0].shape == shape:
            joint = few.joint(sites)
            first = marginals[(..., *sites[0], slice(None))]
            held = truth.present[(..., *sites[0], slice(None))].squeeze(-1)
            total = joint.flatten(first.ndim).sum(-1) if len(sites) > 1 else joint
            close(total[held], first[held], f"joint() with {name}, summed over one site,")
    if not bool((truth.log_partition > -math.inf).all()):
        return
    mode = structure.site_states(few.mode())
    best = truth.unweighted.amax(0)
    close(truth_of(structure).score(mode), best, f"the score of mode() with {name}")
    drawn = structure.uses(structure.site_states(QUESTIONS["sample()"](few)))
    agree(not bool(drawn[:, marginals == 0].any()), f"samples with {name} are of states kept")
    with suppress(UnsupportedError):
        relaxed = QUESTIONS["rsample()"](few)
        spared = relaxed[marginals == 0]
        close(spared, torch.zeros_like(spared), f"rsample() with {name} of states not kept")
