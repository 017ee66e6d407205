"""Repeated runs of an estimator, and what they are worth."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from potentials import KINDS, Case, case, tabulated
from torch import Tensor

import rdpgraph as rg


@dataclass(frozen=True)
class Embedded(rg.randomized.Proposal):
    """Softmax of the norms of the state embeddings as they were trained, before any scaling."""

    norms: Tensor

    def log_scores(self, sites: rg.extend.Sites) -> Tensor:
        return self.norms


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
    one: Case, truth: float, estimator: rg.Randomized, repeats: int, *, ask: Ask = log_z
) -> Found:
    """What an estimator answers over and over again; one without chance, once."""
    generator = torch.Generator().manual_seed(1)
    repeats = 1 if isinstance(estimator.selection, rg.randomized.Top) else repeats
    answers: list[Tensor] = []
    start = time.perf_counter()
    for _ in range(repeats):
        posterior = rg.infer(one.chain, estimator=estimator, generator=generator)
        assert isinstance(posterior, rg.StructuredPosterior)
        answers.append(ask(posterior).detach().double())
    spent = (time.perf_counter() - start) * 1e3 / repeats
    return Found(torch.stack(answers) - truth, spent)


def truth_of(one: Case, ask: Ask = log_z) -> tuple[float, float]:
    """The exact answer, and the milliseconds it took, with the table at hand."""
    exact = tabulated(one.chain)
    start = time.perf_counter()
    value = exact.entropy() if ask is entropy else exact.log_partition()
    return float(value), (time.perf_counter() - start) * 1e3


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def arguments(about: str) -> argparse.Namespace:
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--small", action="store_true", help="a few states and runs: seconds")
    parser.add_argument("--seeds", type=int, default=5, help="potentials of each kind")
    parser.add_argument("--repeats", type=int, default=100, help="runs on each")
    parser.add_argument("--states", type=int, nargs="*", default=[2000, 10_000])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--questions", nargs="*", default=["log Z", "entropy"], help="of table 2")
    parser.add_argument("--output", type=Path, default=Path(), help="where pictures go")
    chosen = parser.parse_args()
    if chosen.small:
        chosen.seeds, chosen.repeats, chosen.states = 2, 4, [200]
    return chosen


def cases(kind: str, states: int, seeds: int) -> list[Case]:
    return [case(kind, states=states, seed=seed) for seed in range(seeds)]


def row(name: str, values: Sequence[str]) -> None:
    print(f"{name:34s}" + "".join(f"  {value:>22s}" for value in values), flush=True)
