"""Repeated runs of an estimator, and what they are worth.

With --store FILE what has been found is kept there, a line for each estimator on each model, and a
run that was ended goes on from there, to the same figures.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from potentials import KINDS, Case, case, scale_of, scaled, tabulated
from torch import Tensor

import rdpgraph as rg


@dataclass(frozen=True)
class Embedded(rg.randomized.Proposal):
    """Softmax of the norms of the state embeddings as they were trained, before any scaling."""

    norms: Tensor

    def log_scores(self, sites: rg.extend.Sites) -> Tensor:
        return self.norms


class Problem(Protocol):
    """A model by its name, which tells it from all others in a store."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> rg.Chain | rg.Hypertree: ...


def kept(share: float, states: int) -> int:
    return max(2, round(share * states))


def paper(one: Case, keep: int) -> rg.Randomized:
    """The paper's setting: the K - 1 likeliest states and one draw, by eq. 34 as released."""
    proposal = rg.randomized.LocalGlobal(Embedded(one.norms))
    return rg.Randomized(proposal, rg.randomized.TopTail(keep - 1, 1), defensive=0.0)


def top(one: Case, keep: int) -> rg.Randomized:
    """The K likeliest by the same scores, and no correction."""
    return rg.Randomized(
        rg.randomized.LocalGlobal(Embedded(one.norms)), rg.randomized.Top(keep), defensive=0.0
    )


def default(_: Case, keep: int) -> rg.Randomized:
    return rg.Randomized.default(keep=keep)


def piloted(_: Case, keep: int) -> rg.Randomized:
    """The default with a first run on a few states, which finds out which ones are likely."""
    return rg.Randomized.piloted(keep=keep)


class Missing(LookupError):
    """There is no result of that name in a store that computes nothing."""


@dataclass
class Store:
    """Numbers by name, in a file of one JSON line each, or in memory alone.

    Attributes:
        file: where they are kept.
        known: what is there.
        computes: whether `found` computes what is not there.
    """

    file: Path | None = None
    known: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    computes: bool = True

    def read(self, file: Path) -> None:
        """Keep to a file, and know what is in it."""
        self.file = file
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = self.file.read_text().split("\n") if self.file.exists() else [""]
        for line in whole[:-1]:
            self.known.update(json.loads(line))
        if whole[-1]:  # the run was ended within a line
            self.file.write_text("".join(f"{line}\n" for line in whole[:-1]))

    def found(self, name: str, make: Callable[[], list[float]]) -> list[float]:
        """The stored result of that name, computed if it is not there, or else `Missing`."""
        if name not in self.known:
            if not self.computes:
                raise Missing(name)
            self.known[name] = make()
            if self.file is not None:
                with self.file.open("a") as file:
                    file.write(json.dumps({name: self.known[name]}) + "\n")
        return self.known[name]


STORE = Store()

Make = Callable[[Case, int], rg.Randomized]
Ask = Callable[[rg.StructuredPosterior], Tensor]


def log_z(posterior: rg.StructuredPosterior) -> Tensor:
    return posterior.log_partition


def entropy(posterior: rg.StructuredPosterior) -> Tensor:
    return posterior.entropy()


@dataclass(frozen=True)
class Found:
    """Errors of one estimator on one chain, and its time.

    Attributes:
        errors: (repeats,) estimate less truth, nats.
        milliseconds: of one run.
    """

    errors: Tensor
    milliseconds: float

    @property
    def mse(self) -> float:
        return float(self.errors.square().mean())

    @property
    def bias(self) -> float:
        return float(self.errors.mean())

    @property
    def variance(self) -> float:
        return float(self.errors.var(correction=0))


def repeated(
    one: Problem, truth: float, estimator: rg.Randomized, repeats: int, *, name: str,
    ask: Ask = log_z,
) -> Found:  # fmt: skip
    """Repeated answers of an estimator by its name; one answer if it is deterministic."""
    repeats = 1 if isinstance(estimator.selection, rg.randomized.Top) else repeats

    def answer(generator: torch.Generator) -> float:
        posterior = rg.infer(one.model, estimator=estimator, generator=generator)
        assert isinstance(posterior, rg.StructuredPosterior)
        return float(ask(posterior).detach())

    def answers() -> list[float]:
        answer(torch.Generator())  # what is made once is not timed
        generator = torch.Generator().manual_seed(1)
        start = time.perf_counter()
        values = [answer(generator) for _ in range(repeats)]
        return [*values, (time.perf_counter() - start) * 1e3 / repeats]

    *values, spent = STORE.found(f"{one.name}, {ask.__name__}, {name}, {repeats}", answers)
    return Found(torch.tensor(values, dtype=torch.float64) - truth, spent)


def truth_of(one: Problem, ask: Ask = log_z) -> tuple[float, float]:
    """The exact answer, and the milliseconds it took, of a chain with its table at hand."""

    def answer() -> list[float]:
        exact = tabulated(one.chain) if isinstance(one, Case) else one.model
        start = time.perf_counter()
        value = exact.entropy() if ask is entropy else exact.log_partition()
        return [float(value), (time.perf_counter() - start) * 1e3]

    value, spent = STORE.found(f"{one.name}, {ask.__name__}, exact", answer)
    return value, spent


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def parser_of(about: str, states: Sequence[int] = (2000, 10_000)) -> argparse.ArgumentParser:
    """A parser of the options that all scripts share."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a few states and runs: seconds")
    parser.add_argument("--seeds", type=int, default=3, help="potentials of each kind")
    parser.add_argument("--repeats", type=int, default=100, help="runs on each")
    parser.add_argument("--states", type=int, nargs="*", default=[*states])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--store", type=Path, help="a file to keep results in, and to go on from")
    parser.add_argument("--output", type=Path, default=Path(), help="where pictures go")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options given, with the store read."""
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seeds, chosen.repeats, chosen.states = 2, 2, [200]
    if chosen.store is not None:
        STORE.read(chosen.store)
    return chosen


def arguments(about: str, states: Sequence[int] = (2000, 10_000)) -> argparse.Namespace:
    """The options that all scripts share, as given."""
    return parsed(parser_of(about, states))


def cases(kind: str, states: int, seeds: int, *, nats: float | None = None) -> list[Case]:
    """Chains as the released code has them, or of that entropy."""
    found = [case(kind, states=states, seed=seed) for seed in range(seeds)]
    if nats is None:
        return found
    chains: list[Case] = []
    for one in found:
        with suppress(Missing):
            made = partial(scale_of, one, nats)
            (by,) = STORE.found(f"{one.name}, scale to {nats:g}", lambda made=made: [made()])
            chains.append(replace(scaled(one, by), name=f"{one.name}, {nats:g} nats"))
    return chains


def row(name: str, values: Sequence[str]) -> None:
    print(f"{name:34s}" + "".join(f"  {value:>22s}" for value in values), flush=True)
