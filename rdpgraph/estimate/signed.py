"""Z of chains and trees by trigonometric features, whose sums have signs."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.numbers import LEAST
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Model
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import finite, safe_log
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.features import RandomFeatures, centred_sides
from rdpgraph.model.potentials.lowrank import Bilinear


class Signed(ABC):
    """An estimate of Z that may be negative: the mean over replicates of signed numbers."""

    @abstractmethod
    def relative(self) -> tuple[Tensor, Tensor]:
        """(replicates, *batch) estimates, relative to the exponential of a shift (*batch,)."""

    @property
    def sign(self) -> Tensor:
        """(*batch,) the sign of Z^: 1, 0 or -1."""
        return self.relative()[0].mean(0).sign()

    @property
    def log_absolute(self) -> Tensor:
        """(*batch,) log |Z^| in nats; -inf where it is zero."""
        values, shift = self.relative()
        return safe_log(values.mean(0).abs()) + shift

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of Z^ relative to |Z^|, over replicates.

        +inf with fewer than four, and where they are worth less than half of their number: then a
        few of them decide Z^, or its sign.
        """
        values = self.relative()[0]
        count = len(values)
        total, squares = values.sum(0).square(), values.square().sum(0)
        if count < LEAST:
            return torch.full_like(total, math.inf)
        known = (2 * total >= count * squares) & (total > 0)
        error = values.std(0) * math.sqrt(count) / torch.where(known, total, 1.0).sqrt()
        return torch.where(known, error, math.inf)


@dataclass(frozen=True, eq=False)
class SignedEstimate(Signed):
    """``Z^`` of a model by trigonometric features, the mean of that by each replicate.

    Unbiased as a signed number, ``sign * exp(log_absolute)``, which is what to average over runs.
    The gradient of `log_absolute` in unary potentials has the estimate of the marginals, which sum
    to one and may be negative.

    Attributes:
        signs: (replicates, *batch) of each estimate.
        log_sizes: (replicates, *batch) the logs of their absolute values, nats.
    """

    signs: Tensor
    log_sizes: Tensor

    def relative(self) -> tuple[Tensor, Tensor]:
        """The estimates, relative to the largest."""
        peak = finite(self.log_sizes.detach().amax(0))
        return self.signs * (self.log_sizes - peak).exp(), peak

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z^ (nats), differentiable.

        Raises:
            UnsupportedError: an estimate is not above zero.
        """
        if bool((self.sign <= 0).any()):
            raise UnsupportedError(
                f"Trigonometric features estimate a Z that is not above zero, of sign "
                f"{self.sign.tolist()!r:.80}: it has no log; use more features or replicates, or "
                "read sign and log_absolute."
            )
        return self.log_absolute


def checked_waves(features: int | None, *, shared: bool) -> int:
    """Number of cosines and sines, checked."""
    if shared:
        raise ModelError("LowRankFactors.signed draws a map for each factor; got shared=True.")
    if features is None or features % 2:
        raise ModelError(
            "LowRankFactors.signed needs an even number of features, cosines and sines; got "
            f"{features!r:.80}."
        )
    return features


def signed_features(
    model: Model,
    features: int,
    *,
    replicates: int,
    orthogonal: bool,
    generator: torch.Generator | None,
) -> SignedEstimate:
    """Z of a chain or a forest by cosines and sines, as `LowRankFactors.signed` documents it."""
    graph = model.factor_graph() if isinstance(model, Structure) else model
    waves = _Waves(features, replicates, graph.batch_shape, orthogonal, generator)
    logs, pairs, total = _parts(graph)
    lead = (replicates, *graph.batch_shape)
    logs = [unary.expand(*lead, unary.shape[-1]) for unary in logs]
    signs = [torch.ones_like(unary) for unary in logs]
    # Walk every tree from a root, parents before children.
    order, seen = list[tuple[int, int, Block, int, bool]](), set[int]()
    roots = list[int]()
    for root in range(graph.num_variables):
        if root in seen:
            continue
        roots.append(root)
        waiting = [(root, -1)]
        seen.add(root)
        while waiting:
            at, came = waiting.pop()
            for number, (other, block, row, turned) in pairs[at].items():
                if number == came:
                    continue
                if other in seen:
                    raise UnsupportedError(
                        "LowRankFactors.signed needs a graph without cycles; this one has a cycle "
                        f"through {graph.domain.variable(other).name!r}: use infer."
                    )
                seen.add(other)
                order.append((other, at, block, row, turned))
                waiting.append((other, number))
    # From the leaves inwards: each child sends a message with a sign, as feature sums of either
    # sign estimate it.
    for child, parent, block, row, turned in reversed(order):
        sign, log = waves.through(block, row, signs[child], logs[child], turned=turned)
        signs[parent], logs[parent] = signs[parent] * sign, logs[parent] + log
    # Z is the product over trees of the sums at their roots.
    total = total.expand(lead)
    product = torch.ones_like(total)
    for root in roots:
        sign, log = _summed(signs[root], logs[root])
        product, total = product * sign, total + log
    return SignedEstimate(product.to(graph.dtype), total.to(graph.dtype))


Pairs = list[dict[int, tuple[int, Block, int, bool]]]
"""Pairs of each variable by number: the other variable, the block, the row, which slot."""


def _parts(graph: FactorGraph) -> tuple[list[Tensor], Pairs, Tensor]:
    """Sums of the factors of each variable (*batch, states), its pairs; the constants."""
    sizes = graph.domain.sizes.tolist()
    logs = [torch.zeros(size, dtype=torch.float64, device=graph.device) for size in sizes]
    pairs: Pairs = [{} for _ in sizes]
    constant = torch.zeros((), dtype=torch.float64, device=graph.device)
    # Evidence is a hard zero of all other states.
    if graph.observed is not None:
        for number, states in enumerate(graph.observed.unbind(-1)):
            other = states.unsqueeze(-1) != torch.arange(sizes[number], device=states.device)
            lost = other & (states.unsqueeze(-1) != MISSING)
            logs[number] = torch.where(lost, -math.inf, logs[number])
    count = 0
    for block in graph.blocks:
        if block.arity > 2:
            raise UnsupportedError(
                "LowRankFactors.signed takes factors over one and two variables; got "
                f"{type(block.potential).__name__} over {block.arity}: use infer."
            )
        for row, scope in enumerate(block.scopes.tolist()):
            if len(scope) < 2:
                # A factor of no variable is a constant, one of a single variable joins its unary.
                table = block.table(row).double()
                for number in scope:
                    logs[number] = logs[number] + table
                constant = constant if scope else constant + table
                continue
            # Each end of a pair knows the other, and whether it is the first slot (True).
            first, second = scope
            pairs[first][count] = second, block, row, True
            pairs[second][count] = first, block, row, False
            count += 1
    return logs, pairs, constant


@dataclass(frozen=True)
class _Waves:
    """Messages through pairs, by cosines and sines where they are `Bilinear`."""

    features: int
    replicates: int
    batch: tuple[int, ...]
    orthogonal: bool
    generator: torch.Generator | None

    def through(
        self, block: Block, row: int, sign: Tensor, log: Tensor, *, turned: bool
    ) -> tuple[Tensor, Tensor]:
        """The message (replicates, *batch, states) of a factor to its first slot, or its second."""
        # A table needs no features: sum it exactly.
        potential = block.select(torch.tensor([row], device="cpu"))
        if not isinstance(potential, Bilinear):
            table = block.table(row).double()
            table = table if turned else table.mT
            return _summed(sign.unsqueeze(-2), log.unsqueeze(-2) + table)
        # exp(x . y) = E[cos(w . (x - y))] exp(|x|^2 / 2 + |y|^2 / 2) for normal w: each side is
        # scaled by its half, and cos of a difference is a product of two waves (cos, sin).
        left, right = (
            side.double() if side.ndim == 2 else side.double().squeeze(-3)
            for side in (potential.left, potential.right)
        )
        left, right, before, after = centred_sides(left, right)
        drawn = RandomFeatures(
            left.shape[-1], self.features // 2, orthogonal=self.orthogonal,
            maps=(self.replicates, *(1,) * len(self.batch)), generator=self.generator,
            dtype=torch.float64,
        ).directions.to(left)  # fmt: skip
        sides: list[tuple[Tensor, Tensor]] = []
        for side, shift in ((left, before), (right, after)):
            angles = side @ drawn.mT
            waves = torch.cat([angles.cos(), angles.sin()], -1)
            sides.append((waves, (side.square().sum(-1, keepdim=True) / 2 + shift).squeeze(-1)))
        # The message is target (source^T message): two thin products instead of one of all pairs.
        # Means of either sign come out, so the sign and log of the size are kept apart.
        (target, gain), (source, loss) = sides if turned else reversed(sides)
        log = log + loss
        peak = finite(log.detach().amax(-1, keepdim=True))
        sent = (sign * (log - peak).exp()).unsqueeze(-2) @ source
        values = (target @ sent.mT).squeeze(-1) * (2 / self.features)
        return values.sign(), safe_log(values.abs()) + peak + gain


def _summed(sign: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """The sign and the log of the sum over the last dim of signed values."""
    peak = finite(log.detach().amax(-1, keepdim=True))
    value = (sign * (log - peak).exp()).sum(-1)
    return value.sign(), safe_log(value.abs()) + peak.squeeze(-1)
