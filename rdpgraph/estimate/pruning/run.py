"""The sweeps of a run, and what they have added up to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from rdpgraph.estimate.pruning.averages import Averages, Visited
from rdpgraph.estimate.pruning.sampler import Sampler, State, Sweep
from rdpgraph.model.masks import Draw, Expected
from rdpgraph.plan.clock import now

_MOST_DRAWS = 1000


@dataclass(frozen=True, eq=False)
class Run:
    """What the chains have done so far; going on from one is going on with the same chains.

    Attributes:
        sampler: the chains' kernel.
        state: where they are.
        averages: of what is averaged, (chains, D): answers, scores and counts, side by side.
        visited: the summed chances of places.
        draws: the places of the draws of some sweeps, at most a thousand, at equal distances.
        stride: how many sweeps there are to one of those.
        scores: (chains, *batch) the expected score of each sweep, warm-up included, nats.
        warm_up: how many sweeps were not averaged.
        work: how many places and ways have been visited.
        shapes: of the counts, by name.
    """

    sampler: Sampler
    state: State
    averages: Averages | None = None
    visited: Visited | None = None
    draws: tuple[Tensor, ...] = field(default=(), repr=False)
    stride: int = 1
    scores: tuple[Tensor, ...] = field(default=(), repr=False)
    warm_up: int = 0
    work: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @classmethod
    def begun(cls, sampler: Sampler, generator: torch.Generator | None) -> "Run":
        """At a first configuration, and no sweep yet."""
        return cls(sampler, sampler.first(generator))

    @property
    def sweeps(self) -> int:
        """How many sweeps are averaged."""
        return 0 if self.averages is None else self.averages.sweeps

    def onward(
        self, sweeps: int, *, warm_up: int, seconds: float, generator: torch.Generator | None
    ) -> "Run":
        """With more sweeps, one at least.

        Args:
            sweeps: how many are averaged.
            warm_up: how many are made before, and are not.
            seconds: after which no sweep begins.
            generator: the randomness.
        """
        run, start = self, now()
        for number in range(warm_up + sweeps):
            over = now() - start > seconds
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
        return replace(run, visited=run.visited and run.visited.merged())

    @staticmethod
    def joined(runs: Sequence["Run"]) -> "Run":
        """The chains of some runs of one model as one run, which can go on as any.

        The runs have as many sweeps each, one at least, and began with none.
        """
        first, chains = runs[0], [run.sampler.chains for run in runs]
        sampler = replace(first.sampler, chains=sum(chains))
        size = math.prod(sampler.masks.batch_shape) * math.prod(sampler.masks.sites)
        starts = [size * before for before in accumulate(chains[:-1], initial=0)]

        def placed(places: Sequence[Tensor]) -> Tensor:
            moved = (part + start for part, start in zip(places, starts, strict=True))
            return torch.cat(list(moved))

        visited = [run.visited for run in runs if run.visited is not None]
        draw = Draw(
            torch.cat([run.state.draw.answers for run in runs]),
            placed([run.state.draw.places for run in runs]),
        )
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

    def _with(self, sweep: Sweep) -> "Run":
        expected = sweep.expected
        values = _side_by_side(expected, self.sampler.chains)
        averages = self.averages or Averages.none(values)
        visited = self.visited or Visited(expected.places[:0], expected.chances[:0])
        draws, stride = self.draws, self.stride
        if averages.sweeps % stride == 0:
            draws = (*draws, sweep.state.draw.places)
            if len(draws) > _MOST_DRAWS:
                draws, stride = draws[::2], 2 * stride
        return replace(
            self, averages=averages.with_sweep(values), draws=draws, stride=stride,
            visited=visited.plus(expected.places, expected.chances),
            shapes={name: tuple(counts.shape) for name, counts in expected.counts.items()},
        )  # fmt: skip


def _side_by_side(expected: Expected, chains: int) -> Tensor:
    parts = [expected.answers, expected.score, *expected.counts.values()]
    return torch.cat([part.reshape(chains, -1).double() for part in parts], 1)
