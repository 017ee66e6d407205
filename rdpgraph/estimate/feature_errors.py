"""Errors of log Z under random features, predicted before features are drawn."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
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
from rdpgraph.structures.grammar.model import Hypertree
from rdpgraph.structures.grammar.rules import BilinearRules, DenseRules
from rdpgraph.structures.grammar.trees import branches

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


SecondMoment = Callable[[Tensor, float], Tensor]
"""log E[K^ K^'] / (K K') of the values of two pairs, by s . s' and the number of features d."""


def exponentials(products: Tensor, features: float) -> Tensor:
    """Positive features, log(1 + (exp(s . s') - 1) / d), where s = x + y."""
    rest = math.log1p(-1 / features) if features > 1 else -math.inf
    return (products - math.log(features)).logaddexp(torch.full_like(products, rest))


def waves(products: Tensor, features: float) -> Tensor:
    """Cosines and sines, log(1 + 2 (cosh(s . s') - 1) / d), s = x - y; d even, or one is idle."""
    pairs = products.abs() + (-2 * products.abs()).exp().log1p() - math.log(2)
    return exponentials(pairs, features // 2 or 0.5)


def partition_error(
    model: Model,
    features: int,
    *,
    shared: bool,
    signed: bool,
    samples: int,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> PartitionError:
    """Error predicted for a model, as `LowRankFactors.predicted_error` documents it."""
    if isinstance(model, Hypertree) and isinstance(model.rules, BilinearRules):
        variance, bias = _grammar(
            model, model.rules, shared=shared, samples=samples, generator=generator
        )
        return _expanded(variance, bias, features)
    graph = model.factor_graph() if isinstance(model, Structure) else model
    posterior = solve(graph)
    pairs = [block for block in graph.blocks if isinstance(block.potential, Bilinear)]
    cells = max((block.count * math.prod(block.sizes) ** 2 for block in pairs), default=0)
    moment: SecondMoment = waves if signed else exponentials
    exact = posterior.solution.status_of("log_partition").exact
    if not shared and cells <= tuning.CACHE_BLOCK and exact:
        log_z = posterior.log_partition.detach()

        def doubled(number: int) -> PartitionError:
            second = solve(_doubled(graph, number, moment)).log_partition.detach()
            variance = (second - 2 * log_z).expm1().clamp(min=0.0)
            return _unbiased(number, variance, exact=True, of=doubled)

        try:
            return doubled(features)
        except BudgetError:
            pass  # two copies are too wide
    drawn = posterior.solution.sample(2 * samples, generator).unflatten(0, (2, samples))
    sums = [_sums(block, drawn, -1 if signed else 1) for block in pairs]
    shape = posterior.log_partition.shape

    def sampled(number: int) -> PartitionError:
        logs = torch.zeros(drawn.shape[1:3], dtype=torch.float64, device=drawn.device)
        for one, other in sums:
            logs = logs + moment((one * other).sum(-1), number).sum(-1)
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
    variance = across.clamp(min=0.0).reshape(shape)
    return _expanded(variance, within.reshape(shape) - variance / 2, features)


def _expanded(variance: Tensor, bias: Tensor, features: int) -> PartitionError:
    """Error of order 1 / d."""
    relative, of = variance / features, partial(_expanded, variance, bias)
    return PartitionError(features, relative.sqrt(), bias / features, relative, exact=False, of=of)


def _grammar(
    model: Hypertree,
    rules: BilinearRules,
    *,
    shared: bool,
    samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """(*batch,) d times the variance and the bias of log Z^, to the first order.

    The error of rule u is ``e_u - sum_v r_v e_v``, v over the rules of its parent and r their
    weights, where ``d E[e_u e_v] = exp(s_u . s_v) - 1`` if u and v have one map. Log Z has the
    expected uses of rules as its gradient, and their covariance as its Hessian: by drawn trees.
    """
    (parents, children), items = rules.shape, math.prod(model.batch_shape)
    table = rules.table(parents, children)
    dense = replace(model, rules=DenseRules(table))
    uses = dense.rule_marginals()[0].detach().double().reshape(items, parents, -1)
    states = dense.sample(samples, generator)
    real, _, _, parent, left, right = branches(states.reshape(samples, items, *states.shape[-2:]))
    drawn = torch.where(real, (parent * children + left) * children + right, -1)
    sides = (part.detach().double() for part in rules.flat(model.batch_shape).parts)
    left, right, _, _ = centred_sides(*sides)
    sums = (left.unsqueeze(-2) + right.unsqueeze(-3)).flatten(-3, -2)
    weights = table.detach().double().exp().reshape(-1, parents, children**2)
    rows = list[Tensor]()
    for item in range(items):
        place = min(item, len(sums) - 1)
        terms = sums[place], weights[place], uses[item], drawn[:, item]
        rows.append(_first_order(*terms, shared=shared, generator=generator))
    both = torch.stack(rows) if rows else table.new_zeros(0, 2)
    return both[:, 0].reshape(model.batch_shape), both[:, 1].reshape(model.batch_shape)


def _first_order(
    sums: Tensor,
    weights: Tensor,
    uses: Tensor,
    drawn: Tensor,
    *,
    shared: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """(2,) the coefficients of a sentence, by s (N, U, dimension), r and expected uses (N, U).

    ``drawn`` (S, M) are the rules in trees, k U + u; -1: none. With one map for all the rules of
    all parents are one group, else those of each parent are.
    """
    parents, rules, _ = sums.shape
    slopes = uses - uses.sum(1, keepdim=True) * weights
    width = parents if shared else 1  # parents that share a map
    kind = torch.arange(width, device=sums.device).repeat_interleave(rules)
    apart = 1.0 - sums.new_ones(drawn.shape[1]).diag()
    total = sums.new_zeros(2)
    for first in range(0, parents, width):
        group = slice(first, first + width)
        vectors = sums[group].flatten(0, 1)
        means = sums.new_ones(width).diag()[kind] * weights[group].reshape(-1, 1)
        columns = torch.cat([means, slopes[group].reshape(-1, 1)], 1)
        (rows, left), (points, right) = (_stand_ins(columns, generator) for _ in range(2))
        local = drawn - first * rules
        real = (drawn >= 0) & (local >= 0) & (local < len(kind))
        local = torch.where(real, local, 0)
        known = torch.zeros_like(columns)
        for some in torch.cat([rows, local.flatten()]).unique().split(tuning.SUMMED_RULES):
            known[some] = (vectors[some] @ vectors[points].mT).expm1() @ right
        products = left.mT @ known[rows]
        variance, normalisers = products[-1, -1].clamp(min=0.0), products[:-1, :-1]
        used, its = vectors[local], kind[local]
        mixed = known[local].gather(2, its.unsqueeze(1).expand(*local.shape, -1))
        # The squares that a value has here are what its log is too low by.
        pairs = (used @ used.mT).expm1() * apart - mixed - mixed.mT
        pairs = pairs + normalisers[its.unsqueeze(2), its.unsqueeze(1)]
        pairs = torch.where(real.unsqueeze(2) & real.unsqueeze(1), pairs, 0.0).sum((1, 2)).mean()
        single = (uses[group].sum(1) * normalisers.diagonal()).sum()
        total = total + torch.stack([variance, (pairs + single - variance) / 2])
    return total


def _stand_ins(columns: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Rows that stand for all in sums, and their values: all of them, or a sample with weights."""
    if len(columns) <= tuning.SUMMED_RULES:
        return torch.arange(len(columns), device=columns.device), columns
    sizes = (columns.abs() / columns.abs().sum(0)).nan_to_num(0.0)  # without slopes no variance
    chance = sizes[:, :-1].mean(1) + sizes[:, -1]
    where = columns.device if generator is None else generator.device
    rows = chance.to(where).multinomial(tuning.SUMMED_RULES, replacement=True, generator=generator)
    rows = rows.to(columns.device)
    return rows, columns[rows] * (chance.sum() / (tuning.SUMMED_RULES * chance[rows])).unsqueeze(1)


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


def _sums(block: Block, drawn: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """(samples, B, F, dimension) x + y, or x - y, in each of two sets of configurations."""
    left, right = _sides(block)
    states = drawn[..., block.scopes].unsqueeze(-1)  # (2, samples, B, F, 2, 1)
    first, second = rows_of(left, states[..., 0, :]), rows_of(right, states[..., 1, :])
    one, other = (first + sign * second).squeeze(-2)
    return one, other


def _doubled(graph: FactorGraph, features: int, moment: SecondMoment) -> FactorGraph:
    """Graph whose Z is the second moment of Z^: two copies, joined by every `Bilinear` factor.

    ``E[K^(i, j) K^(k, l)] = K(i, j) K(k, l) m(s_ij . s_kl)``, with m and s of `SecondMoment`.
    """
    count, blocks = graph.num_variables, list[Block]()
    for block in graph.blocks:
        scopes = block.scopes, block.scopes + count
        potential = block.select()
        if isinstance(potential, Bilinear):
            # A table over both copies: features that the copies share make their errors depend on
            # each other, so that it is no product of two tables.
            left, right = _sides(block)
            right = -right if moment is waves else right
            sums = (left.unsqueeze(-2) + right.unsqueeze(-3)).flatten(-3, -2)
            kernel = potential.table(2).double().flatten(-2)
            second = moment(sums @ sums.mT, features)
            table = second + kernel.unsqueeze(-1) + kernel.unsqueeze(-2)
            table = table.unflatten(-1, block.sizes).unflatten(-3, block.sizes)
            values = Table.from_logs(table if table.ndim > 4 else table.unsqueeze(0))
            blocks.append(Block(torch.cat(scopes, 1), values, values.lead(4)[-1:], None, scopes[0]))
        else:
            blocks += [replace(block, scopes=numbers) for numbers in scopes]
    # The second copy has variables of its own, and the same evidence.
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
