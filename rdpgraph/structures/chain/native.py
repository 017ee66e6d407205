"""Chains of one transition on the compiled kernel: draws by given noise."""

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
    tensors = messages, turned, _dense(lengths), noise, states
    places = [None if part is None else part.data_ptr() for part in tensors]
    function("trace", messages.dtype)(*places, *sizes, threads)


def _dense(part: Tensor) -> Tensor:
    """A contiguous tensor; `ModelError` for another device."""
    if not part.is_cpu:
        raise ModelError(
            f"A chain on the CPU was given lengths or places on {part.device}: leave torch's "
            "default device at the CPU."
        )
    return part if part.is_contiguous() else part.contiguous()
