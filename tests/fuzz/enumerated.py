"""Answers of every structure, against the list of all its outcomes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rdpgraph as rg
from tests.fuzz import compare
from tests.fuzz.compare import Array, close, holds

Key = tuple[int, ...]


@dataclass(frozen=True)
class Item:
    """Every outcome of one batch item.

    Attributes:
        keys: (M) outcomes as flat states, the way the structure's mode says them.
        scores: (M,).
        counts: (M, *sites, states) how often an outcome uses each state of each site.
    """

    keys: list[Key]
    scores: Array
    counts: Array

    def score_of(self, key: Key) -> float:
        """Score of an outcome; a `Mismatch` if it is not one."""
        places = self._places
        holds(f"{key} is one of the {len(places)} outcomes", key in places)
        return float(self.scores[places[key]])

    @property
    def _places(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}


@dataclass(frozen=True)
class Asked:
    """A structure, its outcomes, and how it says them.

    Attributes:
        name: for messages.
        structure: with one batch dim, or none where there is one item.
        items: the outcomes of each batch item.
        tolerance: relative.
        keys: flat states of what mode and sample give: (*lead, *batch, n) integers.
        log_prob: of a mode; None where there is none.
        best: (k, *batch) scores and what `keys` takes, of the k best.
    """

    name: str
    structure: rg.extend.Structure
    items: list[Item]
    tolerance: float
    keys: Callable[[Any], torch.Tensor]
    log_prob: Callable[[Any], torch.Tensor] | None = None
    best: Callable[[int], tuple[torch.Tensor, Any]] | None = None

    @property
    def batched(self) -> bool:
        """True if there is a batch dim."""
        return bool(self._batch)

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self.structure.log_partition().shape)

    def close(self, what: str, got: Any, wanted: list[Any]) -> None:
        """Agreement of all items, relative to the scores."""
        stacked = np.stack([np.asarray(value, dtype=np.float64) for value in wanted])
        finite = [item.scores[np.isfinite(item.scores)] for item in self.items]
        size = max((float(np.abs(scores).max(initial=0.0)) for scores in finite), default=0.0)
        flat = stacked if self.batched else stacked[0]
        close(f"{what} of {self.name}", got, flat, self.tolerance, size)

    def check(self, rng: np.random.Generator, estimator: rg.extend.Estimator | None = None) -> None:
        """log Z and marginals, and the other questions now and then."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        log_z = [compare.log_sum(item.scores) for item in self.items]
        weights = [compare.probabilities(item.scores) for item in self.items]
        marginals = [
            np.tensordot(p, item.counts, 1) for p, item in zip(weights, self.items, strict=True)
        ]
        self.close("log_partition", self.structure.log_partition(), log_z)
        posterior = rg.infer(self.structure, estimator=estimator, generator=generator)
        assert not isinstance(posterior, rg.Posterior)
        self.close("the posterior's log_partition", posterior.log_partition, log_z)
        self.close("marginals", posterior.marginals(), marginals)
        if rng.random() < 0.5:
            self.close(
                "entropy", posterior.entropy(), [compare.entropy(i.scores) for i in self.items]
            )
        if rng.random() < 0.5:
            self.close(
                "max_marginals", posterior.max_marginals(), [_largest(i) for i in self.items]
            )
        if any(value == -np.inf for value in log_z):
            _refused("mode", posterior.mode)
            _refused("sample", lambda: posterior.sample(2, generator=generator))
            return
        # An estimated posterior has the sites of a restricted structure, whose form may differ.
        if estimator is None:
            self._states(posterior, generator)
            if rng.random() < 0.5 and self.best is not None:
                self._k_best(int(rng.integers(1, 6)))
        if rng.random() < 0.3 and estimator is None:
            self._gradient(rng, marginals)

    def _states(self, posterior: Any, generator: torch.Generator) -> None:
        mode = self.structure.mode()
        best = [item.scores.max() for item in self.items]
        self.close("the score of the mode", np.array(self._scores(self.keys(mode))), best)
        if self.log_prob is not None:
            wanted = [b - compare.log_sum(i.scores) for b, i in zip(best, self.items, strict=True)]
            self.close("log_prob of the mode", self.log_prob(mode), wanted)
        drawn = self.keys(self.structure.sample(4, generator))
        for states in drawn:
            holds("samples are possible", (np.array(self._scores(states)) > -np.inf).all())

    def _k_best(self, k: int) -> None:
        assert self.best is not None
        scores, states = self.best(k)
        wanted = [np.sort(item.scores)[::-1][:k] for item in self.items]
        padded = [np.concatenate([w, np.full(k - len(w), -np.inf)]) for w in wanted]
        self.close("k_best scores", scores.movedim(0, -1), padded)
        for rank, (own, keys) in enumerate(zip(scores, self.keys(states), strict=True)):
            found = own.reshape(-1).tolist()
            for number, (score, key) in enumerate(zip(found, self._split(keys), strict=True)):
                if score > -math.inf:
                    got = np.array(self.items[number].score_of(key))
                    close(f"k_best {rank} of {self.name}", got, np.array(score), self.tolerance, 99)

    def _gradient(self, rng: np.random.Generator, marginals: list[Array]) -> None:
        """Gradient of log Z in the unary potentials: the marginals, here by autograd."""
        unary = self.structure.unary.detach().clone().requires_grad_()
        log_z = self.structure.with_unary(unary).log_partition()
        (found,) = torch.autograd.grad(log_z.sum(), unary)
        self.close("the gradient", found, marginals)

    def _split(self, states: torch.Tensor) -> list[Key]:
        flat = states if self.batched else states.unsqueeze(0)
        return [tuple(row) for row in flat.tolist()]

    def _scores(self, states: torch.Tensor) -> Any:
        found = [
            item.score_of(key) for item, key in zip(self.items, self._split(states), strict=True)
        ]
        return found if self.batched else found[0]


def _largest(item: Item) -> Array:
    uses = item.counts > 0
    scores = item.scores.reshape(-1, *(1,) * (item.counts.ndim - 1))
    found: Array = np.where(uses, scores, -np.inf).max(0, initial=-np.inf)
    return found


def _refused(what: str, ask: Callable[[], Any]) -> None:
    try:
        ask()
    except rg.errors.ImpossibleEvidenceError:
        return
    raise compare.Mismatch(f"{what}() of what is impossible")


def counted(keys: NDArray[np.int64], states: int) -> Array:
    """(M, *sites, states): one use of its state at each site that has one; -1 is none."""
    flat = keys[..., None] == np.arange(states)
    return flat.astype(np.float64)
