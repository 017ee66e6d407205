"""Factor graphs within masks of their variables' states."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked, Masks
from rdpgraph.model.domain import Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.restriction import Support


@dataclass(frozen=True, eq=False)
class GraphMasks(Masks):
    """Masks of a graph by its states: the question of a state is whether its variable is in it.

    A yes observes the variable, a no removes the state. The rest is solved as any graph, by the
    scheduler, which must answer exactly.
    """

    model: FactorGraph  # the graph, evidence included; without batch dims
    solve: Callable[[Any], Any]  # runs inference on a graph

    def __post_init__(self) -> None:
        if self.model.batch_shape:
            raise ModelError(
                "RandomizedPruning takes a FactorGraph without batch dims, because masks differ "
                f"between rows; got batch {self.model.batch_shape}: ask for the rows one by one."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def questions(self) -> tuple[int, ...]:
        return (self.model.domain.total_states,)

    @property
    def sites(self) -> tuple[int, ...]:
        return self.questions

    @property
    def numbers(self) -> tuple[Tensor, Tensor]:
        flat = torch.arange(len(self.variable), device="cpu")
        return self.variable, flat - self.model.domain.state_starts[self.variable]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @cached_property
    def variable(self) -> Tensor:
        """(states,) variable of each state."""
        sizes = self.model.domain.sizes
        return torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)

    @cached_property
    def bare(self) -> FactorGraph:
        """Graph without its evidence, which masks include."""
        return self.model.retract()

    @cached_property
    def observed(self) -> Tensor:
        """(variables,) observed states, -1 for the others."""
        given = self.model.observed
        if given is None:
            return torch.full((self.model.domain.count,), MISSING, device="cpu")
        return given.cpu()

    def open(self) -> Tensor:
        """States of unobserved variables that have two or more."""
        free = (self.observed == MISSING) & (self.model.domain.sizes > 1)
        return free[self.variable]

    def guess(self, likely: Tensor) -> Tensor:
        place = torch.arange(len(likely), device="cpu")
        first = torch.full((self.model.domain.count,), len(likely), device="cpu")
        first = first.scatter_reduce(0, self.variable[likely], place[likely], "amin")
        return (place == first[self.variable]) & likely

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedGraphs":
        """Graphs of all chains; chains with the same remaining states share one."""
        domain, known = self.model.domain, self.observed[self.variable]
        # A variable is in one state: of two that are required none is left.
        held = torch.zeros(len(required), domain.count, dtype=torch.long, device="cpu")
        held = held.index_add_(1, self.variable, required.long())[:, self.variable]
        keep = ~forbidden & ((held == 0) | (required & (held == 1)))
        keep &= (known == MISSING) | (known == self.numbers[1])
        distinct, place = keep.unique(dim=0, return_inverse=True)
        return MaskedGraphs([self._one(states) for states in distinct], place)

    def _one(self, keep: Tensor) -> "MaskedGraph":
        """Graph on some states (states,)."""
        domain, number = self.model.domain, self.numbers[1]
        count = torch.bincount(self.variable[keep], minlength=domain.count)
        if bool((count == 0).any()):
            return MaskedGraph(self, None, {})
        # The states kept come first, in their order; the rest has no weight.
        order = (self.variable * 2 + (~keep).long()).argsort(stable=True)
        supports: dict[Entry, Tensor] = {}
        given: dict[Any, Any] = {}
        restricted: dict[Any, Support] = {}
        for entry in domain.entries:
            numbers = domain.numbers(entry)
            most = int(count[numbers].max()) if numbers.numel() else 1
            states = number[order][domain.places(numbers, most)]
            slot = torch.arange(most, device="cpu")
            weights = torch.where(slot < count[numbers].unsqueeze(-1), 0.0, -math.inf)
            supports[entry] = states
            like = torch.zeros((), dtype=self.model.dtype, device=self.model.device)
            if bool((count[numbers] < entry.size).any()):
                device = like.device
                restricted[entry] = Support(states.to(device), weights.to(like))
            given[entry.name] = torch.where(count[numbers] == 1, 0, MISSING)
        small = self.bare.restrict(restricted) if restricted else self.bare
        answer = self.solve(small.condition(given))
        if not answer.status.exact:
            raise ModelError(
                "RandomizedPruning needs exact answers within a mask, and this graph is too wide "
                f"for them ({answer.plan.why}): select a larger share."
            )
        return MaskedGraph(self, answer, supports)


@dataclass(frozen=True, eq=False)
class MaskedGraph:
    """A graph within the mask of one chain."""

    masks: GraphMasks  # of the whole graph
    answer: Any  # posterior of the masked graph; None if it is empty
    supports: dict[Entry, Tensor]  # remaining states

    @property
    def log_partition(self) -> float:
        """Log Z within the mask, nats; -inf if nothing is possible."""
        return -math.inf if self.answer is None else float(self.answer.log_partition)

    def expected(self) -> tuple[Tensor, float]:
        """(states,) marginals of all states, and the expected score."""
        domain = self.masks.model.domain
        marginals = torch.zeros(domain.total_states, dtype=torch.float64, device="cpu")
        for entry, states in self.supports.items():
            chances = self.answer.marginal(entry.name).detach().cpu().double()
            number = domain.state_starts[domain.numbers(entry)].unsqueeze(-1) + states
            marginals.index_add_(0, number.reshape(-1), chances.reshape(-1))
        score = float(self.answer.log_partition) - float(self.answer.entropy())
        return marginals, score

    def draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw configurations as (count, states) bool, True at the state of each variable."""
        domain = self.masks.model.domain
        if not self.log_partition > -math.inf:
            raise ImpossibleEvidenceError(
                f"{NOTHING}: no configuration agrees with the answers that the mask fixes."
            )
        answers = torch.zeros(count, domain.total_states, dtype=torch.bool, device="cpu")
        drawn = self.answer.sample(count, generator=generator)
        for entry, states in self.supports.items():
            slots = drawn[entry.name].cpu().unsqueeze(-1)
            state = states.expand(count, *states.shape).gather(-1, slots).squeeze(-1)
            places = domain.state_starts[domain.numbers(entry)] + state
            answers.scatter_(1, places.reshape(count, -1), value=True)
        return answers


@dataclass(frozen=True, eq=False)
class MaskedGraphs(Masked):
    """Graphs within the masks of all chains."""

    graphs: list[MaskedGraph]  # the distinct ones
    place: Tensor  # (chains,) number of each chain's graph

    @property
    def log_partition(self) -> Tensor:
        each = [one.log_partition for one in self.graphs]
        return torch.tensor(each, dtype=torch.float64, device="cpu")[self.place]

    @property
    def work(self) -> int:
        """Kept states and multiply-adds, of the distinct graphs."""
        states = sum(part.numel() for one in self.graphs for part in one.supports.values())
        return states + sum(int(one.answer.plan.flops) for one in self.graphs if one.answer)

    def expected(self) -> Expected:
        both = [one.expected() for one in self.graphs]
        answers = torch.stack([marginals for marginals, _ in both])[self.place]
        scores = torch.tensor([score for _, score in both], dtype=torch.float64, device="cpu")
        places = answers.flatten().nonzero().squeeze(1)
        return Expected(answers, scores[self.place], places, answers.flatten()[places])

    def draw(self, generator: torch.Generator | None) -> Draw:
        answers = torch.zeros(
            len(self.place), *self.graphs[0].masks.questions, dtype=torch.bool, device="cpu"
        )
        for number, one in enumerate(self.graphs):
            chains = (self.place == number).nonzero().squeeze(1)
            answers[chains] = one.draw(len(chains), generator)
        return Draw(answers, answers.flatten().nonzero().squeeze(1))
