"""The scaled recursion on NumPy's arrays: where no kernel is compiled, small chains on a CPU.

A step of a small chain costs what its calls do, and a call of NumPy costs half of one of torch. A
state is divided by its sum at every fourth step only, unless that takes it out of its range.
"""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph.structures.chain.factors import Factors
from rdpgraph.structures.chain.ranges import doubtful, state_limit, step_limit
from rdpgraph.structures.chain.sweeps import Forward

Array: TypeAlias = NDArray[Any]
_MOST = 2**18
"""Products of a step from which on torch is as quick: its products then take the time."""
_EVERY = 4


def applies(unary: Tensor, transition: Tensor) -> bool:
    """Whether the arrays serve: one transition for all steps, and few products a step."""
    return (
        transition.ndim == 2
        and unary.device.type == "cpu"
        and unary.dtype == transition.dtype
        and unary.dtype in (torch.float32, torch.float64)
        and unary.shape[0] * unary.shape[2] ** 2 <= _MOST
        and not torch.compiler.is_compiling()
    )


def serves(factors: Factors) -> bool:
    """Whether they serve these factors."""
    return applies(factors.emission, factors.matrix)


def forward(factors: Factors) -> Forward:
    """The states and scales of all steps, forward, as `sweeps.forward` defines them; no floor."""
    swept = _forward(factors, every=_EVERY)
    return _forward(factors, every=1) if bool(swept.doubtful.any()) else swept


def backward(factors: Factors, swept: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient, and the other side of each edge, as in `sweeps.backward`."""
    states, seeds = in_steps(swept.states), as_array(gradient)[:, None]
    (steps, batch, count), kind = states.shape, states.dtype
    # What is ahead of a step begins as the next one's share; nothing is ahead of the last.
    ahead = np.zeros((steps, batch, count), kind)
    scales = np.maximum(in_steps(swept.scales)[1:, :, None], np.finfo(kind).tiny)
    np.divide(in_steps(factors.emission)[1:], scales, out=ahead[:-1])
    ahead[:-1][states[1:] == 0] = 0.0
    futures, turned = np.zeros_like(states), dense(as_array(factors.matrix).T)
    ends, multiply, dot = _rows_by_step(as_array(factors.lengths) - 1), np.multiply, np.dot
    rows, nexts, after = list(ahead), list(futures), futures[0]
    for step in range(steps - 1, -1, -1):
        own = nexts[step]
        if step + 1 < steps:
            multiply(rows[step], after, rows[step])
            dot(rows[step], turned, own)
        if step in ends:
            own[ends[step]] = seeds[ends[step]]
        after = own
    return in_items(np.multiply(futures, states, out=futures)), in_items(ahead)


def as_array(tensor: Tensor) -> Array:
    """A tensor's numbers, where they are."""
    return tensor.numpy(force=True)


def in_steps(tensor: Tensor) -> Array:
    """The numbers of (B, T, ...), dense in the order of the steps."""
    return dense(as_array(tensor).swapaxes(0, 1))


def dense(array: Array) -> Array:
    """The same numbers without gaps, in their order."""
    return np.ascontiguousarray(array)


def in_items(steps: Array) -> Tensor:
    """Numbers in the order of the steps as (B, T, ...)."""
    return torch.from_numpy(steps).transpose(0, 1)


def _rows_by_step(steps: Array) -> dict[int, Array]:
    """The items of each step that is given for any of them."""
    return {step: np.flatnonzero(steps == step) for step in np.unique(steps).tolist()}


def _forward(factors: Factors, *, every: int) -> Forward:
    """With states divided by their sums at each of so many steps, and in the end at all of them."""
    raw, matrix = np.array(in_steps(factors.emission)), dense(as_array(factors.matrix))
    least = raw.min(initial=1.0) * matrix.min(initial=1.0)
    begins = {} if factors.starts is None else _rows_by_step(as_array(factors.starts))
    with np.errstate(all="ignore"):  # no number where nothing is possible: see below
        scales = _swept(raw, matrix, begins, every)
        states = raw
        if every > 1:
            sums = (raw.reshape(-1, len(matrix)) @ np.ones_like(matrix[:, 0])).reshape(scales.shape)
            sums[::every] = 1.0
            states = raw / sums
            within = scales[::every].copy()
            scales[:], scales[::every] = sums, within
            for step, items in begins.items():
                sums[step - 1, items] = 1.0  # nothing goes before it
            scales[1:] /= sums[:-1]
    unsure = _unsure(factors, raw, states, least)
    # What has died stays dead.
    if not scales.min(initial=1.0) > 0:
        states[np.isnan(states)] = 0.0
        scales[np.isnan(scales)] = 0.0
    return _finished(factors, states, scales[..., 0], unsure)


def _swept(states: Array, matrix: Array, begins: dict[int, Array], every: int) -> Array:
    """Emissions (T, B, N) made states; the sums (T, B, 1) that some of them were divided by."""
    sums, room = np.empty_like(states[..., :1], order="C"), np.empty_like(states[0])
    ones, before = np.ones_like(matrix[:, :1], order="C"), states[0]
    dot, multiply, divide = np.dot, np.multiply, np.divide
    for step, (state, scale) in enumerate(zip(states, sums, strict=True)):
        if step:
            dot(before, matrix, room)
            if step in begins:
                room[begins[step]] = 1.0
            multiply(room, state, state)
        if step % every == 0:
            dot(state, ones, scale)
            divide(state, scale, state)
        before = state
    return sums


def _unsure(factors: Factors, raw: Array, states: Array, least: float) -> Tensor:
    """(B,) bool: `doubtful` of both, which is asked only if the least of all leaves a doubt."""
    dtype = factors.emission.dtype
    lowest = min(raw.min(initial=1.0), states.min(initial=1.0))
    if least >= step_limit(dtype) and lowest >= state_limit(dtype):
        return torch.zeros(states.shape[1], dtype=torch.bool)
    return doubtful(factors, in_items(np.minimum(raw, states)))


def _finished(factors: Factors, states: Array, scales: Array, unsure: Tensor) -> Forward:
    """The sweep from its states and scales, as `sweeps.finished`; items may all be whole."""
    kept, sums = in_items(states), torch.from_numpy(dense(scales.T))
    terms = sums.log() + factors.offset
    whole = as_array(factors.lengths).min(initial=len(states)) == len(states)
    if factors.starts is not None or not whole:
        within = factors.inside()
        kept.masked_fill_(~within.unsqueeze(2), 0.0)
        terms = torch.where(within, terms, 0.0)
    return Forward(kept, sums, terms.sum(1), unsure)
