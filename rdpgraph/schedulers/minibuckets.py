"""Scheduler of bounds on log Z and unbiased estimates of Z."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.progress import Progress
from rdpgraph.engines.elimination_bounds import pass_cells, pass_seconds
from rdpgraph.engines.minibuckets.estimate import Sampling
from rdpgraph.engines.minibuckets.solution import MiniBucketSolution
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.estimate.estimator import Model
from rdpgraph.estimate.proposals import Proposal, log_likely
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.loopy import DAMPING, Loopy
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    asked_plan,
    budget_of,
    reduced,
    reported,
    seed_of,
)


@dataclass(frozen=True)
class MiniBuckets(Scheduler):
    """Bounds of log Z and an estimate with its error, where exact inference does not fit.

    Weighted mini-buckets bound log Z from above and, without hard zeros, from below
    (`Posterior.bounds`). Their messages lead populations of configurations that grow backwards
    along the order of elimination, a variable at a time: heavy ones are kept, light ones drawn,
    and what fits is summed out exactly. The summed products of the configurations at the end bound
    log Z from below, hard zeros or not, and the mean of the estimates of Z is unbiased: its log,
    held between the bounds, is `log_partition`, with its standard error in `Posterior.status`.
    Marginals of variables are means over such configurations, consistent and not unbiased. No
    gradients.

    Populations that bounds mislead can all miss the same part of Z, and agree. So chains annealed
    from random starts look for other configurations. The heaviest are kept in all later
    populations, which leaves the mean at Z. A population may also be led by such a configuration:
    drawn as if the configuration had survived by chance. Were the configuration a draw of the
    model, the mean of such populations would be Z times 1 + the relative variance of an estimate.
    An answer has converged if

    - populations led from six starts in a row agree with it;
    - no start finds a hundredth of Z that populations rarely meet;
    - every configuration of a tenth of Z or more was found from two starts;
    - the error, by all of these, is below half a nat.

    Errors below 0.008 nats are reported only where the bounds are as close; where starts do not
    confirm an answer, its error is the distance to the farther bound.

    Cost: a pass for bounds visits all tables once, and a population its members for each variable.
    Tables grow until a quarter of the time or the memory is used; starts and populations take the
    rest, or end once the answer has converged with an error of 0.008 nats.

    Source: Dechter and Rish (2003); Liu and Ihler (2011); Fearnhead and Clifford (2003); Broka,
    Dechter, Ihler and Kask (2018); Andrieu, Doucet and Holenstein (2010); Grosse, Ghahramani and
    Adams (2015).

    Args:
        seconds: for the answers.
        memory: bytes for the tables of a pass; None: 60% of what the machine has available.
        draws: configurations at most, in the 8 populations of an estimate; None: as many as the
            seconds allow.
        generator: the randomness; None: the same for each model.
        proposal: a second score of configurations; None: mini-buckets alone. Any of
            `rdpgraph.randomized`, or a user-defined one: it scores the states of each variable, and
            members are kept half by their weights and half by these scores. Its questions about the
            model are answered by loopy messages, so that `Oracle()` gives their beliefs. Z is
            unbiased for any proposal.
        progress: called with a `Progress` after every population, and every two seconds in which
            none ends.

    Raises:
        ModelError: a number out of range.
        BudgetError: (`plan`) the first pass takes more memory or seconds by far.
    """

    seconds: float = 60.0
    memory: float | None = None
    draws: int | None = None
    generator: torch.Generator | None = field(default=None, compare=False)
    proposal: Proposal | None = None
    progress: Callable[[Progress], None] | None = field(default=None, metadata={"elsewhere": None})

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf)", draws="[1, inf)")

    def plan(self, graph: FactorGraph) -> Planned:
        """Plan passes and draws, which are made when an answer is asked for."""
        return reported(self._planned, graph, self.progress)

    def _planned(self, graph: FactorGraph) -> Planned:
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        pass_cells(network, budget.memory_bytes)
        if (needed := pass_seconds(network)) > effort.HOPELESS * self.seconds:
            factors = sum(len(group.scopes) for group in network.groups)
            raise BudgetError(
                f"MiniBuckets takes {needed:.2g} s or so for {len(network.sizes):,} variables and "
                f"{factors:,} factors, and has {self.seconds:g} s: give more, or ask Loopy()."
            )
        sampling = Sampling(
            self.seconds, budget.memory_bytes, self.draws, seed_of(self.generator),
            grace=effort.FIRST_LATE, progress=self.progress,
        )  # fmt: skip
        plan = asked_plan("mini-buckets", "bounds and an estimate, as asked for", network, budget)
        likely = None if self.proposal is None else partial(self._likely, self.proposal, network)
        bounding = Bounding(network, budget.memory_bytes)
        return plan, partial(MiniBucketSolution, network, sampling, bounding, likely)

    def _likely(self, proposal: Proposal, network: Network) -> list[list[Floats]]:
        return log_likely(proposal, network, solve=self._messages, generator=self.generator)

    def _messages(self, model: Model) -> Posterior:
        assert isinstance(model, FactorGraph)
        plan, run = Loopy(damping=DAMPING, seconds=effort.PROPOSAL_MESSAGES * self.seconds).plan(
            model
        )
        return Posterior(plan, run(), model, model, _unsolved, self._messages)


def _unsolved(graph: FactorGraph) -> Solution:
    del graph
    raise UnsupportedError(
        "MiniBuckets() needs a proposal that uses loopy messages, not exact ones."
    )
