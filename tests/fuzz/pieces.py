"""Random potentials, each with its table as plain loops write it."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

import rdpgraph as rg
from tests.fuzz.compare import Array, log_sum
from tests.logical import LOGICAL, count_between


@dataclass(frozen=True)
class Piece:
    """A potential: its real parameters, and what makes of these the library's and our own.

    Attributes:
        kind: what it is called.
        lead: the dims before the slots.
        parameters: by name.
        build: the library's potential.
        table: (*lead, *sizes) by loops.
        dtype: of the library's.
    """

    kind: str
    lead: tuple[int, ...]
    parameters: dict[str, Array]
    build: Callable[[dict[str, torch.Tensor]], rg.extend.Potential]
    table: Callable[[dict[str, Array]], Array]
    dtype: torch.dtype

    def tensors(self, *, track: bool = False) -> dict[str, torch.Tensor]:
        """The parameters, as leaves of the gradient on request."""
        made = {name: torch.tensor(p, dtype=self.dtype) for name, p in self.parameters.items()}
        return {name: tensor.requires_grad_(track) for name, tensor in made.items()}

    def values(self) -> Array:
        """The table."""
        return self.table(self.parameters)

    def moved(self, directions: dict[str, Array], step: float) -> "Piece":
        """The piece with parameters a step along some directions."""
        parameters = {name: p + step * directions[name] for name, p in self.parameters.items()}
        return replace(self, parameters=parameters)


@dataclass(frozen=True)
class Style:
    """Distribution of a model's numbers: their spread, the share of hard zeros, the type."""

    spread: float
    zeros: float
    dtype: torch.dtype

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], *, hard: bool = True) -> Array:
        """Log-values, rounded to the type, so that both sides see the same."""
        values = rng.normal(size=shape) * self.spread
        if hard and self.zeros:
            values = np.where(rng.random(shape) < self.zeros, -np.inf, values)
        return values.astype(np.float32).astype(np.float64)


def style(rng: np.random.Generator) -> Style:
    """Mostly float64, mostly mild, with zeros in every other model."""
    dtype = torch.float32 if rng.random() < 0.15 else torch.float64
    zeros = float(rng.choice([0.0, 0.0, 0.1, 0.3, 0.6]))
    return Style(float(rng.choice([0.3, 1.0, 1.0, 3.0, 10.0])), zeros, dtype)


def piece(
    rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]
) -> Piece:
    """A potential of any kind that such slots allow."""
    kinds = ["table", "table", "table"]
    if len(sizes) >= 1:
        kinds.append("sparse")
        if len(set(sizes)) == 1:
            kinds.append("automaton")
        if set(sizes) == {2} and how.zeros:
            kinds += ["logical", "logical"]
    if len(sizes) == 2:
        kinds += ["bilinear", "low rank"]
        if sizes[0] == sizes[1]:
            kinds.append("banded")
    return MAKERS[str(rng.choice(kinds))](rng, how, sizes, lead)


def _table(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    values = how.draw(rng, (*lead, *sizes))
    return Piece(
        "table", lead, {"v": values}, lambda t: rg.Table(t["v"]), lambda p: p["v"], how.dtype
    )


def _bilinear(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    rank = int(rng.integers(1, 4))
    left = how.draw(rng, (*lead, sizes[0], rank), hard=False)
    right = how.draw(rng, (*(lead if rng.random() < 0.7 else ()), sizes[1], rank), hard=False)

    def table(p: dict[str, Array]) -> Array:
        return (p["l"][..., :, None, :] * p["r"][..., None, :, :]).sum(-1)

    return Piece(
        "bilinear", lead, {"l": left, "r": right},
        lambda t: rg.Bilinear(t["l"], t["r"]), table, how.dtype,
    )  # fmt: skip


def _low_rank(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    rank = int(rng.integers(1, 4))
    left = how.draw(rng, (*(lead if rng.random() < 0.7 else ()), sizes[0], rank))
    right = how.draw(rng, (*lead, sizes[1], rank))

    def table(p: dict[str, Array]) -> Array:
        return log_sum(p["l"][..., :, None, :] + p["r"][..., None, :, :])

    return Piece(
        "low rank", lead, {"l": left, "r": right},
        lambda t: rg.LowRank(t["l"], t["r"]), table, how.dtype,
    )  # fmt: skip


def _banded(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    states = sizes[0]
    every = rng.permutation(np.arange(1 - states, states))
    offsets = tuple(every[: int(rng.integers(1, min(4, len(every)) + 1))].tolist())
    parts = {"b": how.draw(rng, (*lead, states, len(offsets)))}
    if rng.random() < 0.6:
        rank = int(rng.integers(1, 3))
        parts["l"] = how.draw(rng, (*(lead if rng.random() < 0.5 else ()), states, rank))
        parts["r"] = how.draw(rng, (*(lead if rng.random() < 0.5 else ()), states, rank))

    def table(p: dict[str, Array]) -> Array:
        dense = np.full((*lead, states, states), -np.inf)
        if "l" in p:
            ranked = log_sum(p["l"][..., :, None, :] + p["r"][..., None, :, :])
            dense = np.broadcast_to(ranked, dense.shape).copy()
        for place, offset in enumerate(offsets):
            for first in range(max(0, -offset), min(states, states - offset)):
                here = (..., first, first + offset)
                dense[here] = np.logaddexp(dense[here], p["b"][..., first, place])
        return dense

    def build(t: dict[str, torch.Tensor]) -> rg.Banded:
        return rg.Banded(t["b"], offsets, rg.LowRank(t["l"], t["r"]) if "l" in t else None)

    return Piece("banded", lead, parts, build, table, how.dtype)


def _sparse(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    every = list(itertools.product(*map(range, sizes)))
    kept = rng.random(len(every)) < rng.choice([0.3, 0.7, 1.0])
    listed = [every[place] for place in rng.permutation(len(every)) if kept[place]] or every[:1]
    values = how.draw(rng, (*lead, len(listed)))

    def table(p: dict[str, Array]) -> Array:
        dense = np.full((*p["v"].shape[:-1], *sizes), -np.inf)
        for place, configuration in enumerate(listed):
            dense[(..., *configuration)] = p["v"][..., place]
        return dense

    return Piece(
        "sparse", lead, {"v": values},
        lambda t: rg.Sparse(torch.tensor(listed), t["v"], sizes), table, how.dtype,
    )  # fmt: skip


def _automaton(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    count = int(rng.integers(1, 5))
    steps = rng.integers(0, count, size=(count, sizes[0]))
    values = how.draw(rng, (*lead, count))

    def table(p: dict[str, Array]) -> Array:
        dense = np.zeros((*p["v"].shape[:-1], *sizes))
        for configuration in itertools.product(*map(range, sizes)):
            state = 0
            for symbol in configuration:
                state = int(steps[state, symbol])
            dense[(..., *configuration)] = p["v"][..., state]
        return dense

    return Piece(
        "automaton", lead, {"v": values},
        lambda t: rg.Automaton(torch.tensor(steps), t["v"], len(sizes)), table, how.dtype,
    )  # fmt: skip


def _logical(rng: np.random.Generator, how: Style, sizes: tuple[int, ...], lead: tuple[int, ...]):
    arity, low = len(sizes), int(rng.integers(0, len(sizes) + 1))
    kinds = {**LOGICAL, "count": count_between(low, int(rng.integers(low, arity + 2)))}
    name = str(rng.choice(list(kinds)))
    one = kinds[name]
    dense = np.full(sizes, -np.inf)
    for configuration in itertools.product(*map(range, sizes)):
        if one.meets(sum(configuration), arity):
            dense[configuration] = 0.0

    return Piece(
        name, (), {}, lambda _: one.make(arity, dtype=how.dtype), lambda p: dense, how.dtype
    )


MAKERS = {
    "table": _table,
    "bilinear": _bilinear,
    "low rank": _low_rank,
    "banded": _banded,
    "sparse": _sparse,
    "automaton": _automaton,
    "logical": _logical,
}


def finite_share(values: Array) -> float:
    """The largest magnitude of the values that are finite."""
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0)) if math.prod(values.shape) else 0.0
