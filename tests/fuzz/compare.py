"""Agreement of two answers."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph.errors import ImpossibleEvidenceError

Array = NDArray[np.float64]


@contextmanager
def approximate_seconds(seconds: float) -> Generator[None]:
    """Let default answers take so many counted seconds: models are small, and cases many."""
    usual, effort.APPROXIMATE_SECONDS = effort.APPROXIMATE_SECONDS, seconds
    try:
        yield
    finally:
        effort.APPROXIMATE_SECONDS = usual


class Skipped(Exception):
    """A case that says nothing, and why."""


class Mismatch(AssertionError):
    """An answer of the library that is not what plain loops say."""


def close(what: str, got: Tensor | Array, wanted: Array, tolerance: float, size: float = 0) -> None:
    """Values agree up to a tolerance relative to one, to themselves, and to what was cancelled.

    Args:
        what: for the message.
        got: the library's.
        wanted: of the same shape; infinities must be equal.
        tolerance: relative.
        size: of what the values are a difference of.
    """
    found = got.detach().double().numpy() if isinstance(got, Tensor) else np.asarray(got)
    if found.shape != wanted.shape:
        raise Mismatch(f"{what}: shape {found.shape} where {wanted.shape} is expected")
    with np.errstate(invalid="ignore"):
        good = (found == wanted) | (
            np.abs(found - wanted) <= tolerance * (1 + np.abs(wanted) + size)
        )
    good &= np.isfinite(wanted) | (found == wanted)
    if not good.all():
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise Mismatch(
            f"{what}: {found[place]!r} where {wanted[place]!r} is expected, at {place} of "
            f"{wanted.shape}; {int((~good).sum())} of {good.size} differ"
        )


def holds(what: str, condition: object) -> None:
    """Raise a `Mismatch` where a condition does not hold."""
    if not condition:
        raise Mismatch(what)


def log_sum(scores: Array) -> Array:
    """The log of the sum of exponentials over the last dim; -inf where nothing is possible."""
    best = scores.max(-1, initial=-np.inf, keepdims=True)
    shift = np.where(np.isfinite(best), best, 0.0)
    total = np.exp(scores - shift).sum(-1)
    with np.errstate(divide="ignore"):
        return np.log(total) + shift[..., 0]


def probabilities(scores: Array) -> Array:
    """Softmax over the last dim; zero throughout where nothing is possible."""
    log_z = log_sum(scores)[..., None]
    return np.exp(scores - np.where(np.isfinite(log_z), log_z, 0.0))


def entropy(scores: Array) -> Array:
    """Entropy in nats of distributions over the last dim; 0 where nothing is possible."""
    p = probabilities(scores)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def named(ask: Callable[[], object], log_z: Tensor) -> None:
    """A question that items make impossible is refused, with the first of these named."""
    try:
        ask()
    except ImpossibleEvidenceError as error:
        if log_z.ndim:
            first = tuple(map(int, (log_z == -np.inf).nonzero()[0]))
            holds(
                f"{error} names {first}", str(first if len(first) > 1 else first[0]) in str(error)
            )
        return
    raise Mismatch("an answer where an item is impossible")
