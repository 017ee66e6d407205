"""Exact engine: answers by passes over a contraction tree, whole or in slices."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.units import duration
from rdpgraph.engines.exact.batched_steps import Layout, compiled
from rdpgraph.engines.exact.passes import (
    Downward,
    UpwardTables,
    downward,
    expected_scores,
    log_total,
    stored,
    traceback,
    upward,
)
from rdpgraph.engines.exact.products import Value, float_limits, rescaled
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import factor_tables, full_states, variable_table
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Watch
from rdpgraph.plan.tree import ContractionTree


def log_partition_by(network: Network, tree: ContractionTree) -> Tensor:
    """(B,) log Z of a network by one pass up a tree of its topology, without gradients."""
    if network.impossible:
        return network.log_zero
    program = compiled(tree, tuple(group.layout for group in network.groups))
    up = upward(program, network.groups, keep=False)
    return (log_total(up).to(network.constant) + network.constant).expand(network.batch)


@dataclass(frozen=True, eq=False)
class ExactSolution(Solution):
    """Answers by contraction; each pass runs when it is first asked for.

    Raises `BudgetError` if a pass takes too long.
    """

    route: ClassVar[str] = "contraction"

    network: Network  # the reduced model
    tree: ContractionTree  # the order of contraction
    keep: bool  # log Z alone keeps its tables for a downward pass (more memory, no second run)
    # gives a tree that eliminates some active variables after all others
    constrained: Callable[[frozenset[int]], ContractionTree]
    seconds: float = math.inf  # for a pass up and one down (`effort.UPWARDS`)

    @cached_property
    def _layout(self) -> Layout:
        return tuple(group.layout for group in self.network.groups)

    @differentiable_property
    def _sums(self) -> UpwardTables:
        program = compiled(self.tree, self._layout)
        return upward(program, self.network.groups, watch=self._watch())

    @differentiable_property
    def _maxima(self) -> UpwardTables:
        program = compiled(self.tree, self._layout)
        return upward(program, self.network.groups, maximise=True, watch=self._watch())

    def _watch(self, up: UpwardTables | None = None) -> Watch:
        """Time limit of an upward pass, or of the downward one that follows ``up``."""
        if up is None:
            return Watch(effort.UPWARDS * self.seconds, effort.UPWARDS_ENDING * self.seconds)
        return Watch(max(self.seconds - up.spent, effort.LEAST_LEFT * self.seconds))

    def log_partition(self) -> Tensor:
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        network = self.network
        if network.impossible:
            return network.log_zero
        if self.keep:
            up = self._sums
        else:
            program = compiled(self.tree, self._layout)
            up = upward(program, network.groups, keep=False, watch=self._watch())
        total = log_total(up).to(network.constant) + network.constant
        return total.expand(network.batch)

    @differentiable_property
    def _down(self) -> Downward:
        return downward(self._sums, watch=self._watch(self._sums))

    @differentiable_property
    def _beliefs(self) -> dict[int, Tensor]:
        return {}

    def _belief(self, group: int, rows: Tensor) -> Tensor:
        """(batch or 1, n, *sizes) probabilities of some of a group's factors.

        Those of a whole group are computed and kept if all are asked for, or its tables are small.
        """
        known, (count, tables) = self._beliefs, self.network.groups[group].layout
        every = torch.arange(count, device="cpu")
        leaf = stored(self._sums.pools[group])
        if group not in known and (tables is None or torch.equal(rows, every)):
            message = self._down.to_factors({group: None})[group]
            known[group] = _belief(leaf.rows(None), message)
        if group in known:
            return known[group][:, rows.to(known[group].device)]
        distinct, back = torch.unique(rows, return_inverse=True)
        message = self._down.to_factors({group: distinct})[group]
        belief = _belief(leaf.rows(distinct), message)
        return belief[:, back.to(belief.device)]

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities, without those of factors: see `downward`."""
        if self.network.impossible:
            return variable_table(self.network, [], 0.0, 0.0)
        parts = [(variables, _normalised(value)) for variables, value in self._down.marginals]
        return self._of_possible(variable_table(self.network, parts, 0.0, 1.0))

    def factor_marginals(self, block: int) -> Tensor:
        return self._of_possible(factor_tables(self.network, block, self._belief))

    def factor_marginals_of(self, block: int, rows: Tensor) -> Tensor:
        return self._of_possible(factor_tables(self.network, block, self._belief, rows))

    def expected_score(self) -> Tensor:
        network = self.network
        total = network.constant.expand(network.batch)
        if network.impossible:
            return torch.zeros_like(total)
        # Small tables by their joint marginals; messages to all of them are made in one pass.
        known, small = self._beliefs, list[int]()
        for number, group in enumerate(network.groups):
            if group.layout[1] is not None:
                total = total + expected_scores(self._down, number, group).to(total)
            else:
                small.append(number)
        missing = [number for number in small if number not in known]
        for number, message in self._down.to_factors(dict.fromkeys(missing)).items():
            known[number] = _belief(stored(self._sums.pools[number]).rows(None), message)
        for number in small:
            logs = torch.where(known[number] > 0, network.groups[number].each(), 0.0)
            total = total + (known[number] * logs).flatten(1).sum(1)
        return self._of_possible(total)

    def max_marginals(self) -> Tensor:
        """(B, S) largest score with each state, by one pass up and one down in logs."""
        network = self.network
        if network.impossible:
            return variable_table(network, [], -math.inf, 0.0)
        up = self._maxima
        down = downward(up, maximise=True, watch=self._watch(up))
        total = log_total(up).to(network.constant) + network.constant
        # A component's best score is the maximum over any of its variables: raise it to the total.
        alive = (total > -math.inf).reshape(-1, 1, 1)
        raised: list[tuple[Tensor, Tensor]] = []
        for variables, value in down.marginals:
            part = value.logs().expand(-1, len(variables), -1)
            other = torch.where(alive, total.reshape(-1, 1, 1) - part.amax(2, keepdim=True), 0.0)
            raised.append((variables, torch.where(alive, part + other, -math.inf)))
        return variable_table(network, raised, -math.inf, total.expand(network.batch))

    def log_maximum(self) -> Tensor:
        """(B,) score of the mode."""
        network = self.network
        if network.impossible:
            return network.log_zero
        total = log_total(self._maxima).to(network.constant) + network.constant
        return total.expand(network.batch)

    def mode(self) -> Tensor:
        """(B, V) one most probable configuration; the first maximum wins at every step."""
        up = self._maxima
        chosen = traceback(
            up, self.network.batch, 1, len(self.network.sizes), generator=None, noise=False
        )
        return full_states(self.network, chosen)[0]

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        drawn = traceback(
            self._sums, self.network.batch, count, len(self.network.sizes),
            generator=generator, noise=True,
        )  # fmt: skip
        return full_states(self.network, drawn)

    def mode_is_optimal(self) -> Tensor:
        return torch.ones(self.network.batch, dtype=torch.bool, device="cpu")

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) best states of some variables, the others summed; ties go to the first."""
        return self._marginal_mode(numbers)[0]

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        mass = self._marginal_mode(numbers)[1]
        return mass, mass

    @cached_property
    def _marginal_modes(self) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
        return {}

    def _marginal_mode(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n) states and (B,) the log of their mass; the last result is cached."""
        network, key, kept = self.network, tuple(numbers.tolist()), self._marginal_modes
        if key in kept:
            return kept[key]
        wanted = network.active[numbers]
        last = frozenset(wanted[wanted >= 0].tolist())
        program = compiled(self.constrained(last), self._layout, last)
        up = upward(program, network.groups, watch=self._watch())
        chosen = traceback(
            up, network.batch, 1, len(network.sizes), generator=None, noise=False, only=last
        )
        mass = log_total(up).detach().double().cpu() + network.exact_constant
        states = full_states(self.network, chosen)[0][:, numbers.to(chosen.device)]
        kept.clear()
        kept[key] = states, mass.expand(network.batch)
        return kept[key]


def _normalised(value: Value) -> Tensor:
    """(batch or 1, n, states) probabilities in proportion to values; 0 where all values are."""
    if value.is_log:
        peak = value.values.detach().amax(2, keepdim=True)
        values = (value.values - finite(peak)).exp()
    else:
        values = value.values
    total = values.sum(2, keepdim=True)
    return values / torch.where(total > 0, total, 1.0)


def _belief(leaf: Value, message: Value) -> Tensor:
    """Product of a factor and all others, normalised; in logs where the range requires it."""
    dims = list(range(2, message.values.ndim))
    if not leaf.is_log and not message.is_log:
        least = float_limits(message.values.dtype)[0]
        message = message if leaf.low + message.low > least else rescaled(message)
        if leaf.low + message.low > least:
            product = leaf.values * message.values
            total = product.sum(dims, keepdim=True)
            return product / torch.where(total > 0, total, 1.0)
    logs = leaf.logs() + message.logs()
    peak = logs.detach().amax(dims, keepdim=True)
    product = (logs - finite(peak)).exp()
    total = product.sum(dims, keepdim=True)
    return product / torch.where(total > 0, total, 1.0)


@dataclass(frozen=True, eq=False)
class SlicedSolution(Solution):
    """Sum, or maximum, over the configurations of a cutset of variables; exact.

    Holds one slice at a time: memory is a slice's and time is their number times a slice's (cutset
    conditioning: Pearl 1988, section 4.3). With potentials that require gradients the graphs of all
    slices are held. Raises `BudgetError` as soon as the slices so far show that all will take
    longer than allowed. Every answer has all of the seconds, whatever was asked before.
    """

    route: ClassVar[str] = "contraction"

    numbers: tuple[int, ...]  # the fixed variables
    variables: int  # number of variables in the model
    slices: range  # the slices that are summed: all, or some of them
    solve: Callable[[int], ExactSolution]  # gives the solution of a slice
    seconds: float  # for a pass over all slices

    def _slices(self) -> Iterator[ExactSolution]:
        begin = clock.now()
        for done, number in enumerate(self.slices, 1):
            yield self.solve(number)
            self._require_time(clock.now() - begin, done)

    def _require_time(self, spent: float, done: int) -> None:
        whole, most = spent / done * len(self.slices), self.seconds
        if whole > effort.SLICES_LATE * most and spent > effort.SLICES_FORESEEN * most:
            raise BudgetError(
                f"{len(self.slices):,} slices would take about {duration(whole)}, and the budget "
                f"is {duration(most)}; "
                f"{clock.ways_out(whole, 'time or the memory', 'use an approximate method')}."
            )

    def log_partition(self) -> Tensor:
        return soft_sum(self.logs, 0)

    @differentiable_property
    def logs(self) -> Tensor:
        """(slices, B) log Z of each slice."""
        return torch.stack([part.log_partition() for part in self._slices()])

    def _averaged(self, answer: Callable[[ExactSolution], Tensor]) -> Tensor:
        """Expectation: the slices' answers weighted by their mass, in one pass."""
        logs: list[Tensor] = []
        total: Tensor | None = None
        shift: Tensor | None = None
        for part in self._slices():
            log_z, value = part.log_partition(), answer(part)
            logs.append(log_z)
            peak = log_z.detach() if shift is None else torch.maximum(shift, log_z.detach())
            safe = finite(peak)
            ends = (-1, *(1,) * (value.ndim - 1))
            weighted = value * (log_z - safe).exp().reshape(ends)
            if total is not None and shift is not None:
                weighted = weighted + total * (shift - safe).exp().reshape(ends)
            total, shift = weighted, peak
        assert total is not None
        assert shift is not None
        mass = (soft_sum(torch.stack(logs), 0) - finite(shift)).exp()
        return total / torch.where(mass > 0, mass, 1.0).reshape(-1, *(1,) * (total.ndim - 1))

    def variable_marginals(self) -> Tensor:
        return self._marginals

    @differentiable_property
    def _marginals(self) -> Tensor:
        return self._averaged(lambda part: part.variable_marginals())

    def factor_marginals(self, block: int) -> Tensor:
        return self._averaged(lambda part: part.factor_marginals(block))

    def expected_score(self) -> Tensor:
        return self._averaged(lambda part: part.expected_score())

    def max_marginals(self) -> Tensor:
        best: Tensor | None = None
        for part in self._slices():
            values = part.max_marginals()
            best = values if best is None else torch.maximum(best, values)
        assert best is not None
        return best

    def mode(self) -> Tensor:
        return self.best()[0]

    def best(self) -> tuple[Tensor, Tensor]:
        """(B, V) the mode (the first slice wins a tie), and (B,) its score."""
        best: Tensor | None = None
        score: Tensor | None = None
        for part in self._slices():
            value = part.log_maximum()
            if best is None or score is None:
                best, score = part.mode(), value
                continue
            better = value > score
            if bool(better.any()):
                best = torch.where(better.unsqueeze(1), part.mode(), best)
                score = torch.where(better, value, score)
        assert best is not None
        assert score is not None
        return best, score

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) independent draws: a slice by its mass, then within it."""
        return self.drawn(*chosen(self.logs, count, generator))

    def drawn(self, choice: Tensor, seeds: Tensor) -> Tensor:
        """(count, B, V) draws within the slices ``choice`` (count, B); 0 where it is none of these.

        Each slice's noise has a separate seed, so that it does not depend on the others.
        """
        drawn = torch.zeros((), dtype=torch.long, device=choice.device)
        drawn = drawn.expand(*choice.shape, self.variables)
        for number in torch.unique(choice).tolist():
            if number in self.slices:
                noise = torch.Generator(seeds.device).manual_seed(int(seeds[number]))
                states = self.solve(number).sample(len(choice), noise)
                drawn = torch.where((choice == number).unsqueeze(-1), states, drawn)
        return drawn

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Refuse: marginal modes are not available in slices."""
        raise BudgetError(
            "Marginal MAP does not run in slices; raise Contraction(memory=...) until the model "
            "fits without slices."
        )


def chosen(logs: Tensor, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(count, B) slices drawn by mass from (slices, B) log Z; (slices,) seeds for draws in each."""
    weights = torch.softmax(logs.detach().double(), 0).T
    choice = torch.multinomial(weights, count, replacement=True, generator=generator).T
    device = logs.device if generator is None else generator.device
    return choice, torch.randint(2**62, (len(logs),), generator=generator, device=device)
