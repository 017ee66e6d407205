"""Chains on the compiled kernel: sweeps of the scaled recursion, best sequences and draws."""

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.structures.chain.factors import Factors, state_limit, step_limit
from rdpgraph.structures.chain.sweeps import Forward
from rdpgraph.structures.recursion import library
from rdpgraph.structures.recursion.library import function


def applies(unary: Tensor, transition: Tensor) -> bool:
    """Return whether the kernel applies: one transition for all steps, on the CPU."""
    return (
        transition.ndim == 2
        and unary.device.type == "cpu"
        and unary.dtype == transition.dtype
        and library.available(unary.dtype)
    )


def factors(unary: Tensor, transition: Tensor, lengths: Tensor) -> Factors:
    """Scaled factors of log-potentials, in one pass over them if they are few."""
    batch, steps, states = unary.shape
    if unary.numel() + transition.numel() > tuning.KERNEL_SCALED:
        return Factors.of(unary, transition, lengths)
    unary, transition = _dense(unary), _dense(transition)
    emission, matrix = torch.empty_like(unary), torch.empty_like(transition)
    offset = unary.new_empty(batch, steps)
    _call("level", unary, transition, emission, matrix, offset, batch, steps, states)
    return Factors(unary, offset, lengths, transition, emission.exp_(), matrix.exp_())


def forward(factors: Factors) -> Forward:
    """The forward sweep, as `sweeps.forward`."""
    unary, emission = _dense(factors.unary), _dense(factors.emission)
    transition, matrix = _dense(factors.transition), _dense(factors.matrix)
    offset, lengths = _dense(factors.offset), _dense(factors.lengths)
    batch, steps, count = emission.shape
    states, scales = torch.empty_like(emission), torch.empty_like(offset)
    values = offset.new_empty(batch)
    doubtful = values.new_empty(batch, dtype=torch.bool)
    limits = state_limit(emission.dtype), step_limit(emission.dtype)
    parts = states, scales, values, doubtful, _room(matrix), batch, steps, count
    threads = library.threads(batch * count * count)
    _call(
        "forward", unary, emission, transition, matrix, offset, lengths,
        *parts, *limits, threads,
    )  # fmt: skip
    return Forward(states, scales, values, doubtful)


def backward(factors: Factors, swept: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient, and the other side of each edge, as `sweeps.backward`."""
    emission, matrix = _dense(factors.emission), _dense(factors.matrix)
    lengths, gradient = _dense(factors.lengths), _dense(gradient)
    states, scales = _dense(swept.states), _dense(swept.scales)
    batch, steps, count = emission.shape
    marginals, ahead = torch.empty_like(emission), torch.empty_like(emission)
    parts = (
        marginals,
        ahead,
        _room(matrix),
        batch,
        steps,
        count,
        library.threads(batch * count * count),
    )
    _call("backward", states, scales, emission, matrix, lengths, gradient, *parts)
    return marginals, ahead


def prefixes(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, N) the best score of prefixes that end in each state, up to a shift by step."""
    unary, transition, lengths = _dense(unary), _dense(transition), _dense(lengths)
    batch, steps, count = unary.shape
    best_scores, room = torch.empty_like(unary), _room(transition)
    threads = library.threads(batch * count * count)
    _call("prefixes", unary, transition, lengths, best_scores, room, batch, steps, count, threads)
    return best_scores


def trace(
    messages: Tensor, turned: Tensor, lengths: Tensor, states: Tensor, noise: Tensor | None,
    last: int,
) -> None:  # fmt: skip
    """Decide steps from ``last`` backwards, as `paths.traceback`, as far as there is noise.

    Writes ``states`` (count, B, T), of which those after the last step are read. Messages (B, T,
    N), the transition ``turned`` (N, N), [to, from], and noise (steps, count, B, N), the last step
    first, or None, are dense.
    """
    count, batch, total = states.shape
    first = 0 if noise is None else last + 1 - len(noise)
    width = messages.shape[2]
    sizes = count, batch, total, width, first, last
    threads = library.threads((last + 1 - first) * count * batch * width)
    _call("trace", messages, turned, _dense(lengths), noise, states, *sizes, threads)


def k_best(messages: Tensor, transition: Tensor, lengths: Tensor, k: int) -> Tensor:
    """(k, B, T) the states of the k best sequences by the scores of prefixes; -1: none."""
    messages, turned, lengths = _dense(messages), _dense(transition.mT), _dense(lengths)
    batch, steps, count = messages.shape
    paths = lengths.new_empty(k, batch, steps)
    threads = min(max(batch, 1), library.threads(batch * steps * count))
    _call("best", messages, turned, lengths, paths, batch, steps, count, k, threads)
    return paths


def _call(name: str, first: Tensor, *others: Tensor | float | None) -> None:
    """Call a library function in the dtype of the first tensor; tensors by address."""
    function(name, first.dtype)(
        first.data_ptr(),
        *[part.data_ptr() if isinstance(part, Tensor) else part for part in others],
    )


def _room(matrix: Tensor) -> Tensor:
    """Memory for the matrix in panels."""
    return matrix.new_empty(library.packed_size(len(matrix), matrix.element_size()))


def _dense(part: Tensor) -> Tensor:
    """A contiguous tensor; `ModelError` for another device."""
    if not part.is_cpu:
        raise ModelError(
            f"A chain on the CPU was given lengths or places on {part.device}: leave torch's "
            "default device at the CPU."
        )
    return part if part.is_contiguous() else part.contiguous()
