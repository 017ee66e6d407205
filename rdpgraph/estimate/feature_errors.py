"""Errors of log Z under random features, predicted before features are drawn."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.estimate.estimator import Model
from rdpgraph.interface.structure import Structure
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.features import centred_sides
from rdpgraph.model.potentials.lowrank import Bilinear, rows_of
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray

_MOST = 2**40  # features


@dataclass(frozen=True, eq=False)
class PartitionError:
    """Error of log Z under one draw of random features, predicted (nats).

    Attributes:
        features: number of features d for each factor.
        deviation: (*batch,) the standard deviation of log Z^.
        bias: (*batch,) the expectation of log Z^ less log Z.
        relative_variance: (*batch,) the variance of Z^ over the square of Z.
        exact: a sum over all configurations, not an average over draws.
        of: gives the prediction for another number of features.
    """

    features: int
    deviation: Tensor
    bias: Tensor
    relative_variance: Tensor
    exact: bool
    of: Callable[[int], "PartitionError"] = field(repr=False)

    def features_for(self, error: float) -> int:
        """Smallest number of features whose root mean squared error of log Z is no larger.

        Args:
            error: nats; of a batch, for each item.

        Raises:
            ModelError: an error that is not above zero, or that needs more than 2^40 features.
        """
        if not error > 0:
            raise ModelError(f"features_for needs an error above 0 nats; got {error!r:.80}.")

        def meets(features: int) -> bool:
            other = self.of(features)
            return bool((other.deviation.square() + other.bias.square() <= error**2).all())

        high = 1
        while not meets(high):
            high *= 2
            if high > _MOST:
                raise ModelError(f"No 2^40 features bring the error of log Z down to {error} nats.")
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        return high


def partition_error(
    model: Model,
    features: int,
    *,
    shared: bool,
    samples: int,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> PartitionError:
    """Error predicted for a model, as `LowRankFactors.predicted_error` documents it."""
    graph = model.factor_graph() if isinstance(model, Structure) else model
    posterior = solve(graph)
    pairs = [block for block in graph.blocks if isinstance(block.potential, Bilinear)]
    cells = max((block.count * math.prod(block.sizes) ** 2 for block in pairs), default=0)
    if not shared and cells <= tuning.CACHE_BLOCK and posterior.status.exact:
        log_z = posterior.log_partition.detach()

        def doubled(number: int) -> PartitionError:
            second = solve(_doubled(graph, number)).log_partition.detach()
            variance = (second - 2 * log_z).expm1().clamp(min=0.0)
            return _unbiased(number, variance, exact=True, of=doubled)

        try:
            return doubled(features)
        except BudgetError:
            pass  # two copies are too wide
    drawn = posterior.solution.sample(2 * samples, generator).unflatten(0, (2, samples))
    sums = [_sums(block, drawn) for block in pairs]
    shape = posterior.log_partition.shape

    def sampled(number: int) -> PartitionError:
        logs = torch.zeros(drawn.shape[1:3], dtype=torch.float64, device=drawn.device)
        for one, other in sums:
            logs = logs + ((one * other).sum(-1).expm1() / number).log1p().sum(-1)
        variance = (logs.exp().mean(0) - 1).clamp(min=0.0)
        return _unbiased(number, variance.reshape(shape), exact=False, of=sampled)

    if not shared:
        return sampled(features)
    # Of order 1 / d: over pairs of factors in two configurations, and in one of them.
    across, within = torch.zeros((2, drawn.shape[2]), dtype=torch.float64, device=drawn.device)
    for one, other in sums:
        for first, second in zip(one, other, strict=True):
            across = across + (first @ second.mT).expm1().sum((-2, -1)) / samples
            within = within + (first @ first.mT).expm1().triu(1).sum((-2, -1)) / samples
    across, within = across.reshape(shape), within.reshape(shape)

    def expanded(number: int) -> PartitionError:
        variance = across.clamp(min=0.0) / number
        bias = within / number - variance / 2
        return PartitionError(number, variance.sqrt(), bias, variance, exact=False, of=expanded)

    return expanded(features)


def _unbiased(
    features: int, variance: Tensor, *, exact: bool, of: Callable[[int], PartitionError]
) -> PartitionError:
    """Error of an unbiased Z^: errors of many factors multiply, so log Z^ is nearly normal."""
    log_variance = variance.log1p()
    return PartitionError(
        features, log_variance.sqrt(), -log_variance / 2, variance, exact=exact, of=of
    )


def _sides(block: Block) -> tuple[Tensor, Tensor]:
    """(*lead, states, dimension) embeddings of a block, centred as features take them."""
    potential = block.select()
    assert isinstance(potential, Bilinear)
    return centred_sides(potential.left.detach().double(), potential.right.detach().double())[:2]


def _sums(block: Block, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """(samples, B, F, dimension) x + y of every factor in each of two sets of configurations."""
    left, right = _sides(block)
    states = drawn[..., block.scopes].unsqueeze(-1)  # (2, samples, B, F, 2, 1)
    first, second = rows_of(left, states[..., 0, :]), rows_of(right, states[..., 1, :])
    one, other = (first + second).squeeze(-2)
    return one, other


def _doubled(graph: FactorGraph, features: int) -> FactorGraph:
    """Graph whose Z is the second moment of Z^: two copies, joined by every `Bilinear` factor.

    ``E[K^(i, j) K^(k, l)] = K(i, j) K(k, l) (1 + (exp(s_ij . s_kl) - 1) / d)``, s_ij = x_i + y_j.
    """
    count, blocks = graph.num_variables, list[Block]()
    for block in graph.blocks:
        scopes = block.scopes, block.scopes + count
        potential = block.select()
        if isinstance(potential, Bilinear):
            left, right = _sides(block)
            sums = (left.unsqueeze(-2) + right.unsqueeze(-3)).flatten(-3, -2)
            kernel = potential.table(2).double().flatten(-2)
            second = ((sums @ sums.mT).expm1() / features).log1p()
            table = second + kernel.unsqueeze(-1) + kernel.unsqueeze(-2)
            table = table.unflatten(-1, block.sizes).unflatten(-3, block.sizes)
            values = Table.from_logs(table if table.ndim > 4 else table.unsqueeze(0))
            blocks.append(Block(torch.cat(scopes, 1), values, values.lead(4)[-1:], None, scopes[0]))
        else:
            blocks += [replace(block, scopes=numbers) for numbers in scopes]
    names = {entry.name for entry in graph.variables}
    entries = [*graph.variables, *map(_copies(names), graph.variables)]
    observed = graph.observed
    if observed is not None:
        observed = torch.cat([observed, observed], -1)
    return FactorGraph.from_blocks(Domain.of(entries), list(numbered(blocks)), observed)


def _copies(names: set[str]) -> Callable[[Variable | VariableArray], Variable | VariableArray]:
    """Function that copies a variable under a name that no other has."""
    prefix = "again "
    while any(name.startswith(prefix) for name in names):
        prefix += "again "
    return lambda entry: replace(entry, name=prefix + entry.name)


def numbered(blocks: list[Block]) -> Iterator[Block]:
    """Blocks whose factors are declared one after the other."""
    start = 0
    for block in blocks:
        yield replace(block, declared=torch.arange(start, start + block.count, device="cpu"))
        start += block.count
