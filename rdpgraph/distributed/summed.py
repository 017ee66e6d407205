"""Work shared between processes without exchange, and sums of which each rank has a part."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph.distributed import logs
from rdpgraph.distributed.wire import Split, Wire
from rdpgraph.engines.solution import Solution
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.model.semiring import finite

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Items = TypeVar("Items", Tensor, range, Sequence[Any])


def share(items: Items, mesh: "DeviceMesh") -> Items:
    """This rank's part of a sequence, or of a tensor's rows, in order; parts differ by one at most.

    Args:
        items: the same on every rank: rows of evidence, sentences, models.
        mesh: of one dim.
    """
    wire = Wire.of(mesh)
    return part_of(items, wire.rank, wire.ranks)


def part_of(items: Items, rank: int, ranks: int) -> Items:
    """A rank's part of them."""
    return items[len(items) * rank // ranks : len(items) * (rank + 1) // ranks]


def pooled(replicates: Replicates, mesh: "DeviceMesh") -> Replicates:
    """The independent estimates of all ranks together: their mean Z, and its standard error.

    Each rank makes its own, ``posterior.replicates``, from a generator of its own seed, and has
    all of them after it. Differentiable: each rank's potentials have the gradient of the mean.

    Args:
        replicates: of this rank, of one batch shape everywhere; how many may differ.
        mesh: of one dim.
    """
    wire, values = Wire.of(mesh), replicates.log_partitions
    counts = tuple(wire.told(len(values)))
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    columns = Split(wire, counts).known(flat.mT)
    whole = columns.mT.reshape([sum(counts), *values.shape[1:]])
    return Replicates(whole, replicates.equal)


@dataclass(frozen=True, eq=False)
class Summed(Solution):
    """Answers about a sum over the ranks, the same on all of them.

    log Z is one logsumexp over the ranks of B numbers; an expectation of n numbers an item is one
    sum of B (n + 1), the answers of the ranks weighted by their masses. The gradient of each rank
    is that of its own part of the sum: summed over the ranks it is that of one process.

    Attributes:
        local: the solution of the part here; of any part where the rank has none.
        wire: the ranks.
        log_weight: nats added to log Z of the part here; -inf where the rank has none.
    """

    local: Solution
    wire: Wire
    log_weight: float

    @differentiable_property
    def _log_mass(self) -> Tensor:
        """(B,) of the part here."""
        return self.wire.agreed(self.local.log_partition) + self.log_weight

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats."""
        self.wire.asked("log_partition")
        return logs.pooled(self._log_mass, self.wire, known=True)

    def averaged(self, question: str, answer: Callable[[], Tensor]) -> Tensor:
        """An expectation: the ranks' answers weighted by their masses; 0 where log Z is -inf."""
        self.wire.asked(question)
        log_mass = self._log_mass
        mass = (log_mass - finite(self.wire.largest(log_mass.detach()))).exp().unsqueeze(1)
        value = self.wire.agreed(answer)
        parts = torch.cat([value.reshape(len(value), -1) * mass, mass], 1)
        total, mass = self.wire.summed(parts).split([parts.shape[1] - 1, 1], 1)
        return (total / torch.where(mass > 0, mass, 1.0)).reshape(value.shape)

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities."""
        return self.averaged("marginals", self.local.variable_marginals)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) probabilities."""
        question = f"factor_marginals({block})"
        return self.averaged(question, lambda: self.local.factor_marginals(block))

    def expected_score(self) -> Tensor:
        """(B,) the expectation of the summed log-values."""
        return self.averaged("expected_score", self.local.expected_score)

    def max_marginals(self) -> Tensor:
        """(B, S) the largest score with each state; not differentiable."""
        self.wire.asked("max_marginals")
        local = self.wire.agreed(self.local.max_marginals)
        return self.wire.largest(local if self.log_weight > -math.inf else local - math.inf)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """The answer of the part here, which refuses: parts cannot compare their marginal modes."""
        return self.local.marginal_mode(numbers)
