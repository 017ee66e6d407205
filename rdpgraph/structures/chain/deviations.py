"""The k best sequences of chains on a CPU, each as the best one that deviates from a better one.

Of the sequences that end as a known one does and differ from it first at some step, going
backwards, the best goes through one of the other states of that step and then along the best
prefix of it. What each of them scores less is read off the scores of prefixes, for all steps and
states at once; the next best sequence is the best of those that deviate from the ones before it
(Lawler 1972; Nilsson and Goldberger 2001, *Sequentially finding the N-best list in hidden Markov
models*). A sequence costs O(T N), where lists at every state cost O(T N k) and more for each.
"""

import heapq
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any]


def quicker(size: torch.Size, k: int, *, compiled: bool) -> bool:
    """Whether this takes less time than lists of k prefixes at every state.

    Args:
        size: (B, T, N).
        k: how many sequences.
        compiled: whether the lists would be those of the kernel.
    """
    batch, steps, _ = size
    own = 150 + batch * k * (15 + 0.004 * size.numel() / max(1, batch))
    lists = size.numel() * k**0.7 * (0.1 if compiled else 0.25)
    return own < lists + (0 if compiled else 90 * steps)  # microseconds


def k_best(messages: Tensor, transition: Tensor, lengths: Tensor, best: Tensor, k: int) -> Tensor:
    """(k, B, T) the states of the k best sequences, the best first; -1 beyond and where none is.

    Args:
        messages: (B, T, N) the scores of the best prefixes, up to a constant for each step.
        transition: (N, N) in nats, [from, to].
        lengths: (B,) int64.
        best: (B, T) the best sequences; -1 beyond the length and where none is possible.
        k: at least 1.
    """
    states = np.full((k, *best.shape), -1)
    turned, firsts = transition.detach().mT.contiguous().numpy(), best.numpy()
    for item, length in enumerate(lengths.tolist()):
        if length and firsts[item, 0] >= 0:
            scores = messages[item, :length].numpy()
            _ranked(scores, turned, firsts[item, :length], states[:, item, :length])
    return torch.from_numpy(states)


def _ranked(scores: Array, turned: Array, best: Array, paths: Array) -> None:
    """One item's sequences, written to (k, T) paths; rows without one are left."""
    count = scores.shape[1]
    paths[0] = best
    gaps = [_gaps(scores, turned, best, len(best), 0.0)]
    least, owners = [(-gaps[0].max(), 0)], dict[int, int]()
    for rank in range(1, len(paths)):
        gap, parent = heapq.heappop(least)
        if gap == np.inf:
            return
        place = int(gaps[parent].argmax())
        gaps[parent][place] = -np.inf
        step, state = divmod(place, count)
        paths[rank, step + 1 :] = paths[parent, step + 1 :]
        _prefixed(scores, turned, paths, rank, step, state, owners)
        gaps.append(_gaps(scores, turned, paths[rank], step, -gap))
        for changed in (parent, rank):
            heapq.heappush(least, (-gaps[changed].max(initial=-np.inf), changed))


def _prefixed(
    scores: Array, turned: Array, paths: Array, rank: int, step: int, state: int,
    owners: dict[int, int],
) -> None:  # fmt: skip
    """Write the best prefix that ends in a state at a step, up to where one is known, and that.

    Prefixes soon run into each other.

    Args:
        scores: (T, N).
        turned: (N, N), [to, from].
        paths: (k, T) sequences, of which the first is the best one.
        rank: the row to write to.
        step: the last step of the prefix.
        state: its state there.
        owners: which sequence has the best prefix of a step and state, as ``step * N + state``.
    """
    for at in range(step, -1, -1):
        owner = 0 if paths[0, at] == state else owners.setdefault(at * len(turned) + state, rank)
        if owner != rank:
            paths[rank, : at + 1] = paths[owner, : at + 1]
            return
        paths[rank, at] = state
        if at:
            state = int((scores[at - 1] + turned[state]).argmax())


def _gaps(scores: Array, turned: Array, path: Array, stop: int, own: float) -> Array:
    """(stop * N) what sequences score that deviate from one at each step before a last, and state.

    Args:
        scores: (T, N).
        turned: (N, N), [to, from].
        path: (T,) the sequence, a best prefix up to the last step.
        stop: the step after that.
        own: what it scores; the score of the sequence itself is -inf, for it is taken.
    """
    gaps = scores[:stop].copy()
    following = path[1 : stop + 1]
    gaps[: len(following)] += turned[following]
    places = np.arange(stop) * gaps.shape[1] + path[:stop]
    gaps += (own - gaps.ravel()[places])[:, None]
    gaps.ravel()[places] = -np.inf
    return gaps.ravel()
