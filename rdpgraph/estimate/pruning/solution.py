"""Randomized pruning: runs of sweeps, and averages over their dependent draws; no Z."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import NormalDist
from typing import Any, NoReturn

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.progress import Progress, goes_on
from rdpgraph.engines.solution import OF_LOG_PARTITION, Delegate, Question, Solution, Status, Value
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.pruning.averages import ALIKE, Averages, Visited
from rdpgraph.estimate.pruning.sampler import Sampler, SamplerSweep, State
from rdpgraph.estimate.recognised import InGraphSolution
from rdpgraph.interface.masks import Draw
from rdpgraph.plan import clock


@dataclass(frozen=True, eq=False)
class PruningRun:
    """State of the chains and averages so far; a run can be continued."""

    sampler: Sampler  # the chains' kernel
    state: State  # of the chains
    averages: Averages | None = None  # (chains, D) of answers, scores and counts, concatenated
    visited: Visited | None = None  # summed probabilities of places
    # places of the draws of some sweeps, at most a thousand, at equal distances
    draws: tuple[Tensor, ...] = field(default=(), repr=False)
    stride: int = 1  # sweeps per one of those
    # (chains, *batch) expected score of each sweep, warm-up included, nats
    scores: tuple[Tensor, ...] = field(default=(), repr=False)
    warm_up: int = 0  # number of sweeps that were not averaged
    work: int = 0  # number of places and ways visited
    # of the counts, by name
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def sweeps(self) -> int:
        """Number of averaged sweeps."""
        return 0 if self.averages is None else self.averages.sweeps

    def onward(
        self,
        sweeps: int,
        *,
        warm_up: int,
        seconds: float,
        generator: torch.Generator | None,
        progress: Callable[[Progress], object] | None = None,
    ) -> "PruningRun":
        """Continue with a warm-up and more sweeps, at least one; none begins after the seconds."""
        run, start, going = self, clock.now(), True
        for number in range(warm_up + sweeps):
            over = not going or clock.now() - start > seconds
            if over and run.sweeps:
                break
            sweep = run.sampler.step(run.state, generator, warming=number < warm_up)
            run = replace(
                run, state=sweep.state, work=run.work + sweep.work,
                scores=(*run.scores, sweep.expected.score),
            )  # fmt: skip
            if number < warm_up and not over:
                run = replace(run, warm_up=run.warm_up + 1)
            else:
                if not run.sweeps:  # what is known stays as it is from here on
                    known = torch.cat([run.state.known, run.state.draw.answers])
                    run = replace(run, state=replace(run.state, known=known))
                run = run._with(sweep)
            score = sweep.expected.score.mean().item()
            step = Progress("sweeps", len(run.scores), score, clock.now() - start)
            going = going and goes_on(progress, step)
        return replace(run, visited=run.visited and run.visited.merged())

    @staticmethod
    def joined(runs: Sequence["PruningRun"]) -> "PruningRun":
        """Chains of several runs of one model as one run, which can be continued.

        The runs have as many sweeps each, one at least, and began with none.
        """
        first, chains = runs[0], [run.sampler.chains for run in runs]
        sampler = replace(first.sampler, chains=sum(chains))
        size = math.prod(sampler.masks.batch_shape) * math.prod(sampler.masks.sites)
        starts = [size * before for before in accumulate(chains[:-1], initial=0)]

        # Places count through all chains: those of each run begin after those of the runs before.
        def placed(places: Sequence[Tensor]) -> Tensor:
            moved = (part + start for part, start in zip(places, starts, strict=True))
            return torch.cat(list(moved))

        visited = [run.visited for run in runs if run.visited is not None]
        draw = Draw(
            torch.cat([run.state.draw.answers for run in runs]),
            placed([run.state.draw.places for run in runs]),
        )
        # The chains of all runs stand side by side; what is told of each sweep is put together.
        return replace(
            first,
            sampler=sampler,
            state=replace(
                first.state,
                draw=draw,
                selected=torch.cat([run.state.selected for run in runs]),
                known=torch.cat([run.state.known for run in runs]),
            ),
            averages=Averages.joined([run.averages for run in runs if run.averages is not None]),
            visited=Visited(
                placed([part.places for part in visited]),
                torch.cat([part.chances for part in visited]),
            ),
            draws=tuple(map(placed, zip(*(run.draws for run in runs), strict=True))),
            scores=tuple(map(torch.cat, zip(*(run.scores for run in runs), strict=True))),
            work=sum(run.work for run in runs),
            shapes={name: (sum(chains), *shape[1:]) for name, shape in first.shapes.items()},
        )

    def _with(self, sweep: SamplerSweep) -> "PruningRun":
        expected = sweep.expected
        parts = [expected.answers, expected.score, *expected.counts.values()]
        values = torch.cat([part.reshape(self.sampler.chains, -1).double() for part in parts], 1)
        averages = self.averages or Averages.none(values)
        visited = self.visited or Visited(expected.places[:0], expected.chances[:0])
        draws, stride = self.draws, self.stride
        if averages.sweeps % stride == 0:
            draws = (*draws, sweep.state.draw.places)
            if len(draws) > effort.KEPT_DRAWS:
                draws, stride = draws[::2], 2 * stride
        return replace(
            self, averages=averages.with_sweep(values), draws=draws, stride=stride,
            visited=visited.plus(expected.places, expected.chances),
            shapes={name: tuple(counts.shape) for name, counts in expected.counts.items()},
        )  # fmt: skip


_NEEDS_Z = {*OF_LOG_PARTITION, "entropy"}


_AGREED = 1.05  # the largest R-hat of chains that are said to agree
_LEAST_CHAINS = 4  # whose R-hat says something
_RARE = 5.0  # draws expected to say an answer, or its opposite


@dataclass(frozen=True, eq=False)
class PrunedSolution(Delegate):
    """Expectations by randomized pruning, with their Monte Carlo errors; it is its own lift.

    Answers are means over sweeps and chains of exact expectations within masks. They have no
    gradients. Samples are those that the chains drew: of the posterior, but dependent.

    Attributes:
        run: the chains; ``RandomizedPruning(more, resume=posterior)`` goes on with them.
    """

    run: PruningRun

    def __call__(self, solution: Solution) -> Solution:
        return self

    joint, rsample = Solution.joint, Solution.rsample

    def _ask(self, question: Question[Value]) -> NoReturn:
        """Refuse answers that are no average over masks."""
        if question.name in _NEEDS_Z:
            raise UnsupportedError(
                "Randomized pruning averages expectations over masks and has no Z; use Exact() or "
                "Randomized.default(keep=0.1)."
            )
        raise UnsupportedError(
            "Randomized pruning averages marginals of single sites, expected scores and counts; "
            "use Exact() for joints, modes and max-marginals."
        )

    def possible(self) -> Tensor:
        """(B,) True: chains have configurations."""
        return torch.ones(self._items, dtype=torch.bool, device="cpu")

    def mode_exists(self) -> Tensor:
        """(B,) True: chains have configurations."""
        return self.possible()

    def status(self) -> Status:
        """Status with the sweeps, and the least effective sample size of the expected scores.

        Converged: four chains and more agree on all averages, by R-hat.
        """
        many, chains, worst = self.effective_sample_size, self.run.sampler.chains, self._worst
        remedy = "more sweeps: RandomizedPruning(..., resume=posterior)"
        if chains < _LEAST_CHAINS:
            remedy = (
                f"{chains} chains are too few to show whether they agree: use "
                f"chains={2 * _LEAST_CHAINS}"
            )
        elif worst > _AGREED:
            remedy = (
                f"chains disagree, R-hat is {worst:.3g}: {remedy}, or a smaller share, "
                "selected=Alternating(1/3)"
            )
        return Status(
            exact=False, biased=False, iterations=self.run.sweeps, method="randomized pruning",
            converged=chains >= _LEAST_CHAINS and worst <= _AGREED,
            effective_sample_size=float(many.min()) if many.numel() else None, remedy=remedy,
        )  # fmt: skip

    @property
    def _items(self) -> int:
        return math.prod(self.run.sampler.masks.batch_shape)

    @property
    def averages(self) -> Averages:
        """Averages of answers, scores and counts, concatenated."""
        assert self.run.averages is not None
        return self.run.averages

    @property
    def _worst(self) -> float:
        """The largest R-hat of all averages."""
        return float(self.averages.r_hat.max()) if self.averages.r_hat.numel() else 1.0

    @property
    def answers(self) -> Tensor:
        """(*batch, *questions) probability of a yes to each question.

        A span is a constituent (*batch, T, T); one leaf has a source and a target word (*batch, p,
        q); a step has a state (*batch, T, N), or a variable of a graph (states,).
        """
        return self._answers(self.averages.mean).clamp(0.0, 1.0)

    @property
    def standard_error(self) -> Tensor:
        """(*batch, *questions) of the answers, by means of batches; +inf with one batch.

        By means of chains where these differ by more. For an answer that few draws are expected to
        give, at least the error of draws. +inf for one that has not moved where chains disagree.
        """
        return torch.maximum(self._answers(self.averages.standard_error), self._of_draws)

    @property
    def _of_draws(self) -> Tensor:
        """(*batch, *questions) standard error of answers near 0 or 1 that vary.

        It is that of n independent draws, one of which may have hit, where n is the effective
        number of the item's other answers and of its score.
        """
        answers, batch = self.answers, self.run.sampler.masks.batch_shape
        total = float(max(self.averages.chains * self.averages.sweeps, 1))
        variance = answers * (1.0 - answers)
        # A rare no is as hard to meet as a rare yes. What varies by less than rounding is constant.
        rare = torch.minimum(answers, 1.0 - answers)
        least = torch.maximum(1e-6 * rare, 4 * torch.finfo(answers.dtype).eps * answers)
        varies = self._answers(self.averages.variance) > least.square()
        common = varies & (total * variance >= _RARE)
        worth = torch.where(common, self._answers(self.averages.effective), total)
        many = torch.minimum(worth.flatten(len(batch)).amin(-1), self.effective_sample_size)
        many = many.reshape(*batch, *(1,) * (answers.ndim - len(batch)))
        error = (variance / many + many.square().reciprocal()).sqrt()
        error = torch.where(varies & (many * variance < _RARE), error, 0.0)
        if self.run.sampler.chains == 1 or self._worst <= _AGREED:
            return error
        stays = self._answers(self.averages.variance) <= ALIKE**2
        return torch.where(stays, math.inf, error)

    @property
    def r_hat(self) -> Tensor:
        """(*batch, *questions) near 1 if the chains agree; +inf with one chain."""
        return self._answers(self.averages.r_hat)

    def answer_interval(self, chance: float = 0.9) -> tuple[Tensor, Tensor]:
        """(*batch, *questions) ends of confidence intervals of the exact answers."""
        half = self._answers(self.averages.half_width(chance))
        half = torch.maximum(half, NormalDist().inv_cdf(0.5 + chance / 2) * self._of_draws)
        return self.answers - half, self.answers + half

    def expected_score(self) -> Tensor:
        """(B,) mean summed log-potential of configurations, nats."""
        return self._scores(self.averages.mean).reshape(-1)

    @property
    def score_error(self) -> Tensor:
        """(*batch,) standard error of the expected score, nats."""
        return self._scores(self.averages.standard_error)

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) number of independent sweeps that would estimate the expected score as well."""
        return self._scores(self.averages.effective)

    @property
    def counts(self) -> dict[str, Tensor]:
        """Other expected counts, by name: ``"rules"`` of a hypertree, ``"orders"`` of a bitext."""
        return dict(self._counts(self.averages.mean))

    @property
    def trace(self) -> Tensor:
        """(sweeps, chains, *batch) expected score in each mask, warm-up included, nats."""
        return torch.stack(self.run.scores)

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities; zero where no sweep has been."""
        masks, visited = self.run.sampler.masks, self.run.visited
        assert visited is not None
        many, size = self.run.sampler.chains, math.prod(masks.sites)
        flat = visited.chances.new_zeros(self._items * size)
        flat.index_add_(0, visited.places % max(len(flat), 1), visited.chances)
        flat = (flat / (many * self.run.sweeps)).clamp_(max=1.0)
        return flat.reshape(self._items, size).to(masks.dtype)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws of the chains, in random order, none twice while there are others.

        Dependent on each other, unlike those of other estimators.
        """
        masks, chains = self.run.sampler.masks, self.run.sampler.chains
        many = len(self.run.draws) * chains
        order: list[Tensor] = [torch.empty(0, dtype=torch.long, device="cpu")]
        while sum(map(len, order)) < count:
            order.append(torch.randperm(many, generator=generator, device="cpu"))
        sites, states = masks.numbers
        size = self._items * math.prod(masks.sites)
        drawn = torch.full(
            (count, self._items, int(sites.max()) + 1 if len(sites) else 0), -1, device="cpu"
        )
        drawn = drawn.to(sites.device)
        for row, number in enumerate(torch.cat(order)[:count].tolist()):
            places = self.run.draws[number // chains]
            places = places[places // max(size, 1) == number % chains] % max(size, 1)
            item, place = places // max(len(sites), 1), places % max(len(sites), 1)
            drawn[row, item, sites[place]] = states[place]
        return drawn

    def _answers(self, values: Tensor) -> Tensor:
        masks = self.run.sampler.masks
        shape = (*masks.batch_shape, *masks.questions)
        return values[: math.prod(shape)].reshape(shape)

    def _scores(self, values: Tensor) -> Tensor:
        masks = self.run.sampler.masks
        first, many = math.prod(masks.questions), math.prod(masks.batch_shape)
        return values[first * many : (first + 1) * many].reshape(masks.batch_shape)

    def _counts(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        masks = self.run.sampler.masks
        start = (math.prod(masks.questions) + 1) * math.prod(masks.batch_shape)
        for name, shape in self.run.shapes.items():
            stop = start + math.prod(shape[1:])
            yield name, values[start:stop].reshape(shape[1:])
            start = stop


def sweeps_of(posterior: Any) -> PrunedSolution:
    """Answers that randomized pruning has beyond marginals: errors, trace, R-hat.

    Args:
        posterior: of ``infer(model, estimator=RandomizedPruning(...))``. Those of a graph that is
            recognised as a structure are about the questions of that structure.

    Raises:
        ModelError: a posterior by another estimator.
    """
    solution = getattr(posterior, "solution", None)
    solution = solution.inner if isinstance(solution, InGraphSolution) else solution
    if not isinstance(solution, PrunedSolution):
        raise ModelError(
            "sweeps_of needs a posterior by RandomizedPruning; got a "
            f"{type(posterior).__name__} by {type(solution).__name__}."
        )
    return solution
