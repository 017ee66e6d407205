"""Bounds on log Z and on scores for all batch items of a network, finite at any size.

Above, by tree-reweighted messages where there is time and memory for them, and in any case by the
largest log-value of each factor. Below, by configurations that are known, and by mean field around
the best of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.elimination_bounds import ceilings
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import active_states, full_states
from rdpgraph.engines.scores import score_range
from rdpgraph.engines.trws.bound import bound_operations
from rdpgraph.engines.trws.mean_field import mean_field
from rdpgraph.engines.trws.pairs import Pairwise, bounds_of_blocks, pairwise_of
from rdpgraph.engines.trws.sweeps import Swept, swept
from rdpgraph.plan import clock


class Maxima(NamedTuple):
    """What messages for maxima give."""

    states: Tensor  # (B, V) the best configurations that were read off
    bounds: Tensor  # (B,) float64, certain upper bounds on all scores (nats)
    # (B, active) states of active variables, numbered as remaining, that some mode has all
    # together; -1 where nothing is known
    settled: Tensor


@dataclass(frozen=True, eq=False)
class Bounding:
    """Bounds of a network's batch items (nats, float64)."""

    network: Network  # reduced
    memory: float = math.inf  # bytes that were given; a little is taken in any case
    # mini-buckets bound models with factors of three and more variables; whoever asks these too
    # needs none here
    eliminating: bool = False

    @cached_property
    def is_pairwise(self) -> bool:
        """True if no factor has more than two variables, some have, and messages fit the memory."""
        arities = [group.scopes.shape[1] for group in self.network.groups]
        return self._fits and max(arities, default=0) == 2 and not self.network.high_order

    @property
    def _room(self) -> float:
        """Bytes for the messages of an item, and for the tables of mini-buckets."""
        return max(min(self.memory, effort.BOUNDS_BYTES), tuning.SMALL_BYTES)

    @cached_property
    def _fits(self) -> bool:
        """True if the messages of an item fit the memory."""
        needed = 0.0
        for group in self.network.groups:
            if group.scopes.shape[1] == 2:
                needed += 8.0 * group.log_tables[0].numel()
                each = tuning.SWEPT_PAIR_BYTES + tuning.SWEPT_BYTES * sum(
                    group.log_tables.shape[2:]
                )
                needed += each * len(group.scopes)
        return needed <= self._room

    @cached_property
    def _rest(self) -> list[float]:
        """Of each item, an upper bound on the potentials that are no tables."""
        return bounds_of_blocks(self.network).tolist()

    @cached_property
    def _models(self) -> dict[int, Pairwise]:
        return {}

    def _model(self, item: int) -> Pairwise:
        """The factors of an item; those of the last one are kept."""
        if item not in self._models:
            self._models.clear()
            self._models[item] = pairwise_of(self.network, item, self._rest[item])
        return self._models[item]

    @cached_property
    def _constant(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): the network's constant, and the rounding of its sum."""
        return self.network.exact_constant, self.network.constant_error

    def within(
        self, temperature: float, known: Iterable[Tensor], seconds: float,
        ends: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return bounds, (B,) and (B,), that lie within ``ends``, if these are given.

        They are the ends, or what `below` and `above` find where that is tighter.
        """
        ends = self.network.no_bounds if ends is None else ends
        lower, upper = (end.detach().double().cpu().expand(self.network.batch) for end in ends)
        if self.network.impossible:
            return torch.full_like(lower, -math.inf), torch.full_like(upper, -math.inf)
        if not bool((lower < upper).any()):
            return lower, upper
        above = self.above(temperature, 0.5 * seconds)
        below = self.below(known, temperature, 0.25 * seconds)
        if bool((torch.maximum(lower, below) == -math.inf).any()):  # all of these are impossible
            states = self.maxima(0.25 * seconds).states
            below = torch.maximum(below, self.below([states], temperature, 0.25 * seconds))
        return torch.maximum(lower, below), torch.minimum(upper, above)

    def maxima(self, seconds: float, near: float = 0.0) -> Maxima:
        """Configurations and bounds by messages for maxima, within some seconds for all items.

        Messages are passed once; later questions have their outcome. They may take ``near`` seconds
        if that is more, where a small gap promises a proof.
        """
        every, bounds = self._outcome(0.0, seconds, near)
        active = self._likeliest()
        settled = torch.full_like(active, -1)
        for item, one in enumerate(every):
            if one is not None:
                active[item] = torch.from_numpy(one.states)
                settled[item] = torch.from_numpy(one.settled)
        states = full_states(self.network, active.unsqueeze(0))[0]
        return Maxima(states.clamp(min=0).to(self.network.graph.device), bounds, settled)

    def _likeliest(self) -> Tensor:
        """(B, active) the best state of each variable by its own factors, evidence included."""
        network = self.network
        sizes = torch.tensor(network.sizes, dtype=torch.long, device="cpu")
        starts, states = sizes.cumsum(0) - sizes, active_states(network, None)
        flat = torch.zeros(network.batch, sum(network.sizes), dtype=torch.float64, device="cpu")
        for group in network.groups:
            if group.scopes.shape[1] == 1:
                size = group.log_tables.shape[2]
                places = (starts[group.scopes] + torch.arange(size, device="cpu")).flatten()
                values = group.each().detach().double().cpu().expand(-1, len(group.scopes), -1)
                flat = flat.index_add(1, places, values.flatten(1).expand(network.batch, -1))
        for size in sizes.unique().tolist():
            numbers = (sizes == size).nonzero().flatten()
            places = starts[numbers, None] + torch.arange(size, device="cpu")
            states[:, numbers] = flat[:, places].argmax(-1)
        return states

    def above(self, temperature: float, seconds: float) -> Tensor:
        """(B,) upper bounds on all scores, or at temperature t > 0 on t log sum exp(score / t)."""
        return self._outcome(temperature, seconds)[1]

    def below(self, known: Iterable[Tensor], temperature: float, seconds: float) -> Tensor:
        """(B,) lower bounds on the same, by known configurations (B, V).

        Above temperature 0 by mean field around the best one too, within some seconds.
        """
        network = self.network
        best = torch.full((network.batch,), -math.inf, dtype=torch.float64, device="cpu")
        start = active_states(network, None)
        for states in known:
            scores = score_range(network.graph, states)[0]
            start = torch.where((scores > best).unsqueeze(1), active_states(network, states), start)
            best = torch.maximum(best, scores)
        if not temperature or not self.is_pairwise or network.impossible:
            return best
        end, (constant, error) = clock.now() + seconds, self._constant
        for item in (best > -math.inf).nonzero().flatten().tolist():
            share = (end - clock.now()) / (network.batch - item)
            if self.seconds_of_bound(temperature) > share:
                continue
            model, states = self._model(item), start[item].numpy()
            if model.score(states) > -math.inf:
                value = mean_field(model, states, temperature, seconds=share)
                best[item] = max(float(best[item]), value + float(constant[item] - error[item]))
        return best

    @cached_property
    def _outcomes(self) -> dict[float, tuple[list[Swept | None], Tensor]]:
        return {}

    def _outcome(
        self, temperature: float, seconds: float, near: float = 0.0
    ) -> tuple[list[Swept | None], Tensor]:
        if temperature not in self._outcomes:
            with torch.no_grad():
                self._outcomes[temperature] = self._swept(temperature, seconds, near)
        return self._outcomes[temperature]

    def _swept(
        self, temperature: float, seconds: float, near: float
    ) -> tuple[list[Swept | None], Tensor]:
        """What sweeps give for each item, and (B,) bounds.

        None where there is no time or memory for sweeps.
        """
        network, begin = self.network, clock.now()
        every, bounds = list[Swept | None](), self._largest(temperature)
        constant, error = self._constant
        if self.eliminating and not self.is_pairwise and temperature in (0.0, 1.0):
            # Tree-reweighted messages read pairs alone, and bound all else by its largest value.
            everything = frozenset(range(len(network.sizes)))
            summed = everything if temperature else frozenset[int]()
            other = ceilings(network, summed, seconds=0.5 * seconds, memory=self._room)
            rest = torch.tensor(self._rest, dtype=torch.float64, device="cpu")
            bounds = torch.minimum(bounds, other + rest)
        for item in range(network.batch):
            spent, items = clock.now() - begin, network.batch - item
            share, longer = (max(end - spent, 0.0) / items for end in (seconds, near))
            late = self.seconds_of_bound(temperature) > max(share, longer)
            if network.impossible or not self._fits or late:
                every.append(None)
                continue
            one = swept(self._model(item), temperature, seconds=share, near=longer)
            bound = one.bound + float(constant[item] + error[item])
            bounds[item] = min(float(bounds[item]), bound)
            every.append(one)
        return every, bounds

    def seconds_of_bound(self, temperature: float) -> float:
        """Predicted seconds of a bound by messages, and of laying these out."""
        pair, entry = bound_operations(temperature)
        operations = entry * len(self.network.sizes)
        for group in self.network.groups:
            cells = math.prod(group.log_tables.shape[2:])
            operations += len(group.scopes) * (pair + entry * cells)
        return 2.0 * operations / tuning.OPERATIONS_PER_SECOND

    def _largest(self, temperature: float) -> Tensor:
        """(B,) the summed maxima of all factors.

        Above temperature 0, it times the logarithm of the number of configurations is added.
        """
        network = self.network
        constant, error = self._constant
        if network.impossible:
            return torch.full_like(constant, -math.inf)
        total = constant + error + torch.tensor(self._rest, dtype=torch.float64, device="cpu")
        entropy = math.fsum(map(math.log, network.sizes)) * temperature
        total, size = total + entropy, total.abs() + entropy
        for group in network.groups:
            most = group.log_tables.detach().flatten(2).amax(2).double().cpu()
            count = len(group.scopes)
            if most.shape[1] == 1:
                most = most.expand(-1, count)
            elif group.rows is not None:
                most = most[:, group.rows]
            total, size = total + most.sum(1), size + most.abs().sum(1)
        # Each sum is in pairs, so that its error grows with the logarithm of its length.
        rounding = 64.0 * torch.finfo(torch.float64).eps * size
        return torch.where(total > -math.inf, total + rounding, total)
