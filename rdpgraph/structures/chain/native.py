"""Chains of one transition on the compiled kernel: best sequences."""

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
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


def _call(name: str, first: Tensor, *others: Tensor | int | None) -> None:
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
