"""Exact inference in slices: condition on a few variables, and add up the results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import differentiable_property
from rdpgraph.engines.exact.engine import ExactSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import duration

_SLACK = 1.2
_TRIAL = 0.1  # the part of the time after which the rest is foreseen


@dataclass(frozen=True, eq=False)
class SlicedSolution(Solution):
    """Sum, or maximum, over the configurations of a cutset of variables; exact.

    Holds one slice at a time: memory is a slice's and time is their number times a slice's (cutset
    conditioning: Pearl 1988, section 4.3). With potentials that require gradients the graphs of all
    slices are held. Raises `BudgetError` as soon as the slices so far show that all will take
    longer than allowed.
    """

    numbers: tuple[int, ...]  # the fixed variables
    variables: int  # number of variables in the model
    slices: range  # the slices that are summed: all, or some of them
    solve: Callable[[int], ExactSolution]  # gives the solution of a slice
    allowance: Allowance  # seconds for all answers

    def _slices(self) -> Iterator[ExactSolution]:
        begin, left = clock.now(), self.allowance.left()
        for done, number in enumerate(self.slices, 1):
            yield self.solve(number)
            self._require_time(clock.now() - begin, done, left)
        self.allowance.spent += clock.now() - begin

    def _require_time(self, spent: float, done: int, left: float) -> None:
        whole = spent / done * len(self.slices)
        if whole > _SLACK * left and spent > _TRIAL * left:
            raise BudgetError(
                f"{len(self.slices):,} slices would take about {duration(whole)}, and "
                f"{duration(left)} are left of the budget; "
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

        Each slice's noise has its own seed, so that it does not depend on the others.
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
            "Marginal MAP does not run in slices; give the plan more memory "
            "(Contraction(memory=...)) so that the model fits without."
        )


def chosen(logs: Tensor, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(count, B) slices drawn by mass from (slices, B) log Z; (slices,) seeds for draws in each."""
    weights = torch.softmax(logs.detach().double(), 0).T
    choice = torch.multinomial(weights, count, replacement=True, generator=generator).T
    device = logs.device if generator is None else generator.device
    return choice, torch.randint(2**62, (len(logs),), generator=generator, device=device)
