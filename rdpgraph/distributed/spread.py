"""Work shared between processes: slices of exact inference, chains and replicates of estimates."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.distributed.collectives import Peers, fingerprint_of, part_of
from rdpgraph.engines.exact.engine import SlicedSolution, chosen
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Estimator, Model, Problem
from rdpgraph.estimate.pruning.estimator import RandomizedPruning, averaged
from rdpgraph.estimate.pruning.solution import PruningRun
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.replicates import Joined, Replicates
from rdpgraph.estimate.restriction import RestrictedSolution, Restriction
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.routes.contraction import in_slices, planned, solved_network
from rdpgraph.schedulers.scheduler import Planned, Scheduler, budget_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def pooled(replicates: Replicates, mesh: "DeviceMesh") -> Replicates:
    """The independent estimates of all ranks together: their mean Z, and its standard error.

    Each rank makes its ``posterior.replicates``, with a generator of a different seed.
    Differentiable: each rank's potentials have the gradient of the mean.

    Args:
        replicates: of this rank, of one batch shape everywhere; their numbers may differ.
        mesh: of one dim.
    """
    peers, values = Peers.of(mesh), replicates.log_partitions
    counts = peers.told(len(values))
    together = Replicates(peers.gathered(values, counts), replicates.equal)
    # What the replicates of a rank do not show, those of all ranks need not.
    known = replicates.standard_error
    hidden = known > replace(replicates, errors=None).standard_error
    hidden = peers.largest(torch.where(hidden, known, 0.0))
    return replace(together, errors=torch.maximum(together.standard_error, hidden))


@dataclass(frozen=True, eq=False)
class Summed(Solution):
    """Answers about a sum over the ranks, the same on all of them.

    log Z is one logsumexp over the ranks of B numbers; an expectation of n numbers an item is one
    sum of B (n + 1), the answers of the ranks weighted by their masses. The gradient of each rank
    is that of its part of the sum.

    Attributes:
        local: the solution of the part here; of any part where the rank has none.
        peers: the ranks.
        log_weight: nats added to log Z of the part here; -inf where the rank has none.
    """

    local: Solution
    peers: Peers
    log_weight: float

    @differentiable_property
    def _log_mass(self) -> Tensor:
        """(B,) of the part here."""
        return self.peers.agreed(self.local.log_partition) + self.log_weight

    def log_partition(self) -> Tensor:
        self.peers.asked("log_partition")
        return self.peers.log_summed(self._log_mass)

    def averaged(self, question: str, answer: Callable[[], Tensor]) -> Tensor:
        """An expectation: the ranks' answers weighted by their masses; 0 where log Z is -inf."""
        self.peers.asked(question)
        log_mass = self._log_mass
        mass = (log_mass - finite(self.peers.largest(log_mass.detach()))).exp().unsqueeze(1)
        value = self.peers.agreed(answer)
        parts = torch.cat([value.reshape(len(value), -1) * mass, mass], 1)
        total, mass = self.peers.summed(parts).split([parts.shape[1] - 1, 1], 1)
        return (total / torch.where(mass > 0, mass, 1.0)).reshape(value.shape)

    def variable_marginals(self) -> Tensor:
        return self.averaged("marginals", self.local.variable_marginals)

    def factor_marginals(self, block: int) -> Tensor:
        question = f"factor_marginals({block})"
        return self.averaged(question, lambda: self.local.factor_marginals(block))

    def expected_score(self) -> Tensor:
        return self.averaged("expected_score", self.local.expected_score)

    def max_marginals(self) -> Tensor:
        """(B, S) the largest score with each state; not differentiable."""
        self.peers.asked("max_marginals")
        local = self.peers.agreed(self.local.max_marginals)
        return self.peers.largest(local if self.log_weight > -math.inf else local - math.inf)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Ask the local solution, which refuses: parts cannot compare marginal modes."""
        return self.local.marginal_mode(numbers)


@dataclass(frozen=True, eq=False)
class SpreadSlices(Scheduler):
    """Exact contraction in slices, each on one of the processes of a mesh.

    A model whose tables do not fit into the memory of a process is solved once for each
    configuration of a few variables, the cutset, as by `Contraction`; the ranks divide the
    configurations, and their results are summed: see `docs/distributed.md`. The first rank plans
    for all. A model that fits in one piece is solved whole, by every rank: give less memory for
    more slices.

    All ranks must ask the same questions in the same order; otherwise they wait for each other
    until the process group times out. Each has the gradients of its slices: add them up over the
    ranks. One seed gives the same draws on any number of ranks.

    Args:
        mesh: of one dim.
        memory: bytes for the tables of one slice; None: 60% of what the first rank's machine has
            available, which the processes on it share.
        seconds: the predicted time that each rank may take.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone
        >>> x = rg.VariableArray("x", (8, 8), 2)
        >>> near = rg.Table([[0.5, 0.0], [0.0, 0.5]])
        >>> grid = rg.FactorGraph([
        ...     rg.FactorBlock((x[1:], x[:-1]), near), rg.FactorBlock((x[:, 1:], x[:, :-1]), near)])
        >>> with alone() as mesh:
        ...     posterior = rg.infer(grid, scheduler=SpreadSlices(mesh, memory=20_000))
        ...     log_z, count = posterior.log_partition, posterior.plan.num_slices
        >>> count > 1, torch.allclose(log_z, rg.infer(grid).log_partition)
        (True, True)
    """

    mesh: "DeviceMesh"
    memory: float | None = None
    seconds: float = 60.0

    def plan(self, graph: FactorGraph) -> Planned:
        """The plan of the first rank: the variables fixed, and the slices of each rank.

        Raises:
            ModelError: graphs that differ between the ranks.
        """
        peers = Peers.of(self.mesh)
        peers.require_alike("graphs", fingerprint_of(graph))
        network, budget = reduce_graph(graph), budget_of(self.memory, self.seconds)
        plan = None
        if not peers.rank:
            together = replace(budget, seconds=self.seconds * peers.ranks)
            deadline = clock.now() + max(effort.SEARCHING * self.seconds, effort.LEAST_PLANNING)
            plan = planned(network, together, deadline=deadline)
        plan = next(one for one in peers.told(plan) if one is not None)
        if plan.num_slices > 1:
            seconds = plan.seconds * -(-plan.num_slices // peers.ranks) / plan.num_slices
            why = f"{plan.why}; shared between {peers.ranks} processes"
            plan = replace(plan, why=why, seconds=seconds)
        return plan, partial(_spread, peers, network, plan, budget)


def _spread(peers: Peers, network: Network, plan: Plan, budget: Budget) -> Solution:
    if plan.num_slices == 1:
        return solved_network(network, plan, budget)
    whole = in_slices(network, plan, budget)
    parts = tuple(part_of(whole.slices, rank, peers.ranks) for rank in range(peers.ranks))
    here = parts[peers.rank]
    local = replace(whole, slices=here or whole.slices[:1])
    return SpreadSolution(local, peers, 0.0 if here else -math.inf, parts)


@dataclass(frozen=True, eq=False)
class SpreadSolution(Summed):
    """Answers by the slices of all ranks; one with none solves the first, at no weight."""

    local: SlicedSolution
    parts: tuple[range, ...]

    def mode(self) -> Tensor:
        """(B, V) a most probable configuration; the first slice wins a tie."""
        self.peers.asked("mode")
        states, score = self.peers.agreed(self.local.best)
        score = score if self.log_weight > -math.inf else score - math.inf
        # In one message: state numbers are exact in float64.
        told = self.peers.stacked(torch.cat([score.unsqueeze(1), states], 1).double())
        winner = told[:, :, :1].argmax(0, keepdim=True).expand(1, *told.shape[1:])
        return told.gather(0, winner)[0, :, 1:].long()

    @cached_property
    def _logs(self) -> Tensor:
        """(slices, B) log Z of every slice, on every rank."""
        here = self.peers.agreed(lambda: self.local.logs.detach())
        counts = list(map(len, self.parts))
        return self.peers.gathered(here[: counts[self.peers.rank]], counts)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) independent draws, the same on every rank."""
        self.peers.asked(f"sample({count})")
        self.peers.require_one_state(generator)
        choice, seeds = chosen(self._logs, count, generator)
        here = replace(self.local, slices=self.parts[self.peers.rank])
        return self.peers.total(self.peers.agreed(lambda: here.drawn(choice, seeds)))


@dataclass(frozen=True, eq=False)
class SpreadChains(Estimator):
    """Randomized pruning whose chains are divided between the processes of a mesh.

    Each rank sweeps some of the chains, one after the other; then every rank has the averages of
    all, with R-hat and standard errors over all of them, as `RandomizedPruning` gives them. A chain
    has a separate generator, so that one seed gives the same on any number of ranks. Nothing is
    sent before the end. ``RandomizedPruning(..., resume=posterior)`` continues from the posterior.

    Args:
        pruning: sweeps and chains; without `seconds` and `resume`, as all chains are averaged over
            equally many sweeps.
        mesh: of one dim.

    Raises:
        ModelError: a limit of seconds, or a posterior to resume.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone
        >>> chain = rg.Chain(torch.zeros(4, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> with alone() as mesh:
        ...     posterior = rg.infer(
        ...         chain, estimator=SpreadChains(rg.RandomizedPruning(20, chains=4), mesh),
        ...         generator=torch.Generator().manual_seed(0))
        >>> rg.pruning.sweeps_of(posterior).trace.shape
        torch.Size([22, 4])
    """

    pruning: RandomizedPruning
    mesh: "DeviceMesh"

    def __post_init__(self) -> None:
        require_fields(self)
        whole = self.pruning.resume is None and self.pruning.progress is None
        if not whole or self.pruning.seconds < math.inf:
            raise ModelError(
                "SpreadChains needs RandomizedPruning without seconds, progress and resume, "
                "because all chains must start anew and run equally many sweeps."
            )

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The averages of the sweeps of all ranks.

        Raises:
            ModelError: models or generators that differ between the ranks.
        """
        peers, pruning = _agreeing(self.mesh, model, generator), self.pruning
        seeds: list[int] = torch.randint(2**62, (pruning.chains,), generator=generator).tolist()

        mine = part_of(seeds, peers.rank, peers.ranks)

        def swept(seed: int) -> PruningRun:
            """Sweep one chain with a separate generator."""
            noise = torch.Generator().manual_seed(seed)
            return PruningRun(one, one.first(noise)).onward(
                pruning.sweeps, warm_up=pruning.warming, seconds=math.inf, generator=noise
            )

        with torch.no_grad():
            one = replace(peers.agreed(lambda: pruning.sampler(model, solve=solve)), chains=1)
            here = peers.agreed(lambda: list(map(swept, mine)))
            # The model is not sent.
            told = peers.told([vars(run) | {"sampler": None} for run in here])
        runs = [PruningRun(**parts | {"sampler": one}) for row in told for parts in row]
        return averaged(model, PruningRun.joined(runs))


@dataclass(frozen=True, eq=False)
class SpreadReplicates(Estimator):
    """Randomized estimates whose replicates are divided between the processes of a mesh.

    Every rank chooses the states of all replicates, as one process would with the same seed, and
    solves some of them; log Z, its standard error and expectations are those of all. Each rank has
    the gradients of its replicates: add them up over the ranks.

    Args:
        estimator: with its replicates.
        mesh: of one dim.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone
        >>> chain = rg.Chain(torch.zeros(4, 50), torch.zeros(50, 50))
        >>> with alone() as mesh:
        ...     posterior = rg.infer(
        ...         chain, generator=torch.Generator().manual_seed(0),
        ...         estimator=SpreadReplicates(rg.Randomized.default(keep=8, replicates=4), mesh))
        ...     posterior.log_partitions.shape
        torch.Size([4])
    """

    estimator: Randomized
    mesh: "DeviceMesh"

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The model on the states of the replicates of this rank.

        Raises:
            ModelError: models or generators that differ between the ranks.
        """
        peers = _agreeing(self.mesh, model, generator)
        problem = self.estimator.prepare(model, solve=solve, generator=generator)
        restriction = problem.lift
        assert isinstance(restriction, Restriction)
        every = range(restriction.replicates)
        counts = tuple(len(part_of(every, rank, peers.ranks)) for rank in range(peers.ranks))
        numbers = part_of(every, peers.rank, peers.ranks) or every[:1]
        here = restriction.of_replicates(torch.tensor(numbers))
        return Problem(here.model, partial(_of_all, here, peers, counts, restriction.groups))


def _agreeing(mesh: Any, model: Model, generator: torch.Generator | None) -> Peers:
    """The ranks, which must have one model and generators of one state."""
    peers = Peers.of(mesh)
    peers.require_alike("models", fingerprint_of(model))
    peers.require_one_state(generator)
    return peers


def _of_all(
    restriction: Restriction,
    peers: Peers,
    counts: tuple[int, ...],
    groups: tuple[int, ...],
    solution: Solution,
) -> "SpreadReplicated":
    """The lift from the replicates of this rank to all of them."""
    count = counts[peers.rank]
    weight = math.log(count / sum(counts)) if count else -math.inf
    return SpreadReplicated(restriction(solution), peers, weight, counts, groups)


@dataclass(frozen=True, eq=False)
class SpreadReplicated(Summed):
    """Answers by the replicates of all ranks; one with none solves the first, at no weight."""

    local: RestrictedSolution
    counts: tuple[int, ...]
    groups: tuple[int, ...]

    @differentiable_property
    def replicates(self) -> Replicates:
        """The estimates of Z of all ranks."""
        self.peers.asked("log_partition")
        values = self.peers.agreed(lambda: self.local.replicates.log_partitions)
        here = values[: self.counts[self.peers.rank]]
        every = Replicates(self.peers.gathered(here, self.counts), groups=self.groups)
        if not self.local.shows_errors:
            return replace(every, errors=torch.full_like(values[0], math.inf))
        joined = self.peers.agreed(lambda: self.local.joined)
        least, most = self.local.bounds()
        bounds = self.peers.largest(least), -self.peers.largest(-most)
        least = torch.zeros_like(values[0]) if joined.error is None else joined.error
        return every.compared(Joined(None, self.peers.largest(least), bounds))

    def log_partitions(self) -> Tensor:
        return self.replicates.log_partitions

    def log_partition_errors(self) -> Tensor | None:
        return self.replicates.errors

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.replicates.bounds or super().bounds()

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        return self.replicates.interval(confidence)

    def log_partition(self) -> Tensor:
        return self.replicates.log_partition

    def status(self) -> Status:
        """The engine's status, with the error that the replicates of all ranks show."""
        return self.replicates.described(self.local.engine_status())

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        question = f"joint({numbers.tolist()})"
        return self.averaged(question, lambda: self.local.joint(numbers, solve))

    def mode(self) -> NoReturn:
        """Raise `UnsupportedError`: replicates on several ranks have no mode, and no draws."""
        raise UnsupportedError(
            "Replicates that are spread over processes give no modes and no draws; ask one "
            "process, by the estimator itself."
        )

    def sample(self, count: int, generator: torch.Generator | None) -> NoReturn:
        self.mode()
