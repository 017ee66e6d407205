"""The scaled recursion on NumPy's arrays: where no kernel is compiled, small chains on a CPU.

A step of a small chain costs what its calls do, and a call of NumPy costs half of one of torch. A
state is divided by its sum at every fourth step only, unless that takes it out of its range. Long
chains of few states go in blocks: see `array_steps`.
"""

import numpy as np
import torch
from torch import Tensor

from rdpgraph.structures.chain import array_steps
from rdpgraph.structures.chain.array_steps import Array, dense
from rdpgraph.structures.chain.factors import Factors
from rdpgraph.structures.chain.ranges import state_limit, step_limit
from rdpgraph.structures.chain.sweeps import Forward

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
    )


def step_seconds(unary: Tensor) -> float:
    """What the calls of a step take, forward and backward."""
    batch, steps, states = unary.shape
    return 1e-6 if array_steps.length_of(steps, batch, states) else 3.5e-6


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
    steps, kind = len(states), states.dtype
    # What is ahead of a step begins as the next one's share; nothing is ahead of the last.
    ahead = np.zeros_like(states)
    scales = np.maximum(in_steps(swept.scales)[1:, :, None], np.finfo(kind).tiny)
    np.divide(in_steps(factors.emission)[1:], scales, out=ahead[:-1])
    ahead[:-1][states[1:] == 0] = 0.0
    turned, ends = dense(as_array(factors.matrix).T), _rows_by_step(as_array(factors.lengths) - 1)
    begins = {steps - 1 - step: items for step, items in ends.items() if step > 0}
    least = array_steps.least(ahead) * array_steps.least(turned)
    _swept(ahead[-2::-1], turned, begins, seeds, least, every=0)
    futures = (ahead.reshape(-1, len(turned)) @ turned).reshape(ahead.shape)
    for step, items in ends.items():
        if step >= 0:
            futures[step, items] = seeds[items]
    return in_items(np.multiply(futures, states, out=futures)), in_items(ahead)


def as_array(tensor: Tensor) -> Array:
    """A tensor's numbers, where they are."""
    return tensor.numpy(force=True)


def in_steps(tensor: Tensor) -> Array:
    """The numbers of (B, T, ...), dense in the order of the steps."""
    return dense(as_array(tensor).swapaxes(0, 1))


def in_items(steps: Array) -> Tensor:
    """Numbers in the order of the steps as (B, T, ...)."""
    return torch.from_numpy(steps).transpose(0, 1)


def _rows_by_step(steps: Array) -> dict[int, Array]:
    """The items of each step that is given for any of them."""
    return {step: np.flatnonzero(steps == step) for step in np.unique(steps).tolist()}


def _forward(factors: Factors, *, every: int) -> Forward:
    """With states divided by their sums at each of so many steps, and in the end at all of them."""
    raw, matrix = np.array(in_steps(factors.emission)), dense(as_array(factors.matrix))
    least = array_steps.least(raw) * array_steps.least(matrix)
    begins = {} if factors.starts is None else _rows_by_step(as_array(factors.starts))
    ones = np.ones((raw.shape[1], 1), raw.dtype)
    with np.errstate(all="ignore"):  # no number where nothing is possible: see below
        scales, length = _swept(raw, matrix, begins, ones, least, every=every)
        states = raw
        if every > 1:
            sums = (raw.reshape(-1, len(matrix)) @ np.ones_like(matrix[:, 0])).reshape(scales.shape)
            sums[::every] = 1.0
            states = raw / sums
            within = scales[::every].copy()
            scales[:], scales[::every] = sums, within
            for step, items in begins.items():
                sums[step - 1, items] = 1.0  # nothing goes before it
            sums[length - 1 :: length] = 1.0  # what goes before a block is divided already
            scales[1:] /= sums[:-1]
    unsure = _unsure(factors, raw, states, least)
    # What has died stays dead.
    if not scales.min(initial=1.0) > 0:
        states[np.isnan(states)] = 0.0
        scales[np.isnan(scales)] = 0.0
    return _finished(factors, states, scales[..., 0], unsure)


def _swept(
    states: Array, matrix: Array, begins: dict[int, Array], seeds: Array, least: float, *,
    every: int,
) -> tuple[Array, int]:  # fmt: skip
    """`advanced`, in blocks where they are quicker, and their length."""
    first = begins.get(0, range(0) if begins else range(len(seeds)))
    length = array_steps.length_of(*states.shape) if len(first) == len(seeds) else 0
    if length and array_steps.stays(states, least, length):
        return array_steps.in_blocks(states, matrix, seeds, length, every=every), length
    sums = array_steps.advanced(states, matrix, begins, seeds, every=every)
    return sums, max(1, len(states))


def _unsure(factors: Factors, raw: Array, states: Array, least: float) -> Tensor:
    """(B,) bool: doubtful items; by states as they came too, of which the next ones are products.

    Those may fall lower by what the least product of a step leaves of the range.
    """
    dtype = factors.emission.dtype
    room = max(1.0, least / step_limit(dtype))
    lowest = min(raw.min(initial=1.0) * room, states.min(initial=1.0))
    if least >= step_limit(dtype) and lowest >= state_limit(dtype):
        return torch.zeros(states.shape[1], dtype=torch.bool, device="cpu")
    return factors.doubtful(in_items(np.minimum(raw * room, states)), factors.offset)


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
