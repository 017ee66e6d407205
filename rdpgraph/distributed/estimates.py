"""Estimators whose chains or replicates are divided between processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from rdpgraph._core.cache import differentiable_property
from rdpgraph.distributed.collectives import Peers, fingerprint_of
from rdpgraph.distributed.slices import Summed, part_of
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Estimator, Model, Problem
from rdpgraph.estimate.pruning.estimator import RandomizedPruning, averaged
from rdpgraph.estimate.pruning.sampler import Sampler
from rdpgraph.estimate.pruning.solution import Run
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.estimate.restriction import RestrictedSolution, Restriction
from rdpgraph.model.graph import FactorGraph

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
        if not isinstance(self.pruning, RandomizedPruning):
            raise ModelError(f"SpreadChains takes RandomizedPruning; got {self.pruning!r:.80}.")
        pruning = self.pruning
        resumed, told = (given is not None for given in (pruning.resume, pruning.progress))
        if resumed or told or pruning.seconds < math.inf:
            raise ModelError(
                "SpreadChains takes RandomizedPruning without seconds, progress and resume: every "
                "chain has equally many sweeps, from the first one on."
            )

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The averages of the sweeps of all ranks.

        Raises:
            ModelError: models or generators that differ between the ranks.
        """
        peers, pruning = Peers.of(self.mesh), self.pruning
        peers.require_alike("models", fingerprint_of(model))
        peers.require_one_state(generator)
        seeds: list[int] = torch.randint(2**62, (pruning.chains,), generator=generator).tolist()

        def swept() -> list[Run]:
            return [self._run(one, seed) for seed in part_of(seeds, peers.rank, peers.ranks)]

        with torch.no_grad():
            one = replace(peers.agreed(lambda: pruning.sampler(model, solve=solve)), chains=1)
            # The model is not sent.
            told = peers.told([vars(run) | {"sampler": None} for run in peers.agreed(swept)])
        runs = [Run(**parts | {"sampler": one}) for row in told for parts in row]
        return averaged(model, Run.joined(runs))

    def _run(self, sampler: Sampler, seed: int) -> Run:
        """Sweep one chain with a separate generator."""
        noise, pruning = torch.Generator().manual_seed(seed), self.pruning
        return Run.begun(sampler, noise).onward(
            pruning.sweeps, warm_up=pruning.warming, seconds=math.inf, generator=noise
        )


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
        peers = Peers.of(self.mesh)
        peers.require_alike("models", fingerprint_of(model))
        peers.require_one_state(generator)
        problem = self.estimator.prepare(model, solve=solve, generator=generator)
        restriction = problem.lift
        assert isinstance(restriction, Restriction)
        every = range(restriction.replicates)
        counts = tuple(len(part_of(every, rank, peers.ranks)) for rank in range(peers.ranks))
        numbers = part_of(every, peers.rank, peers.ranks) or every[:1]
        here = restriction.of_replicates(torch.tensor(numbers))
        return Problem(here.model, _Spread(here, peers, counts))


@dataclass(frozen=True, eq=False)
class _Spread:
    """The lift from the replicates of this rank to all of them."""

    restriction: Restriction
    peers: Peers
    counts: tuple[int, ...]

    def __call__(self, solution: Solution) -> "SpreadReplicated":
        count = self.counts[self.peers.rank]
        weight = math.log(count / sum(self.counts)) if count else -math.inf
        return SpreadReplicated(self.restriction(solution), self.peers, weight, self.counts)


@dataclass(frozen=True, eq=False)
class SpreadReplicated(Summed):
    """Answers by the replicates of all ranks.

    ``counts`` are the replicates that each rank solves; one with none solves the first, at no
    weight.
    """

    local: RestrictedSolution
    counts: tuple[int, ...]

    @differentiable_property
    def replicates(self) -> Replicates:
        """The estimates of Z of all ranks."""
        self.peers.asked("log_partition")
        values = self.peers.agreed(lambda: self.local.replicates.log_partitions)
        here = values[: self.counts[self.peers.rank]]
        return Replicates(self.peers.gathered(here, self.counts))

    def log_partitions(self) -> Tensor:
        return self.replicates.log_partitions

    def log_partition(self) -> Tensor:
        return self.replicates.log_partition

    def status(self) -> Status:
        """The engine's status, with the error that the replicates of all ranks show."""
        return self.replicates.described(self.local.engine_status())

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        question = f"joint({numbers.tolist()})"
        return self.averaged(question, lambda: self.local.joint(numbers, solve))

    def mode(self) -> Tensor:
        """Raise `UnsupportedError`: replicates on several ranks have no mode."""
        _refuse("modes")

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Raise `UnsupportedError`: replicates on several ranks have no draws."""
        _refuse("draws")


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(
        f"Replicates that are spread over processes give no {what}; ask one process, by the "
        "estimator itself."
    )
