"""Sequences of observations, as users give them, in batches of similar lengths."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import EvidenceError
from rdpgraph.learn.emissions import Rows, as_rows

_CELLS = 120_000
"""Log-likelihoods of a batch on a CPU: half as many or twice take up to a quarter longer."""
_LEAST = 8
"""Sequences that the kernels advance together."""
_MOST = 2**23
"""Log-likelihoods of a batch, 64 MB."""


def sequences_of(given: Any, lengths: Any = None) -> list[Tensor]:
    """Sequences (steps, columns) of float64, NaN where an entry is missing.

    Args:
        given: (steps, columns) or (steps,) of all sequences, end to end: an array, a tensor, a
            DataFrame or a list; or a list of arrays, one for each sequence.
        lengths: of the sequences; None: one.

    Raises:
        EvidenceError: no numbers, an infinity, or lengths that do not add up to the steps.
    """
    if lengths is None and isinstance(given, list | tuple) and given:
        first: Any = given[0]
        if hasattr(first, "shape") and len(first.shape) > 0:
            result = [_matrix(each) for each in given]
            columns = {each.shape[1] for each in result}
            if len(columns) > 1:
                raise EvidenceError(
                    f"Sequences need the same number of columns; got {sorted(columns)}."
                )
            return result
    matrix = _matrix(given)
    if lengths is None:
        return [matrix]
    sizes: list[Any] = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if not all(is_whole(size) for size in sizes) or sum(sizes) != len(matrix):
        raise EvidenceError(
            f"Lengths of sequences add up to the {len(matrix)} steps of X; got {sizes!r:.80}."
        )
    return list(matrix.split(sizes))


def _matrix(given: Any) -> Tensor:
    """A sequence as (steps, columns)."""
    try:
        if isinstance(given, Tensor):
            matrix = given.detach().to(torch.float64)
        else:
            import numpy as np

            matrix = torch.from_numpy(np.array(given, dtype=np.float64))  # None becomes NaN
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvidenceError(
            f"Sequences are of numbers, (steps, columns), NaN or None where missing: {error}."
        ) from None
    matrix = matrix.unsqueeze(1) if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise EvidenceError(f"A sequence is (steps, columns); got {tuple(matrix.shape)}.")
    if bool(matrix.isinf().any()):
        row = int(matrix.isinf().any(1).nonzero()[0])
        raise EvidenceError(f"Row {row} of X holds an infinity; NaN is a missing entry.")
    return matrix


def batches_of(sequences: Sequence[Tensor], width: int) -> Iterator[tuple[Rows, list[int]]]:
    """Batches of sequences, long ones first, and the numbers of these.

    Args:
        sequences: (steps, columns) each.
        width: log-likelihoods that a step takes.
    """
    begins = [0]
    for each in sequences:
        begins.append(begins[-1] + len(each))
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    aim = _CELLS if sequences[0].device.type == "cpu" else _MOST
    while order:
        cells = max(1, len(sequences[order[0]]) * width)
        count = max(1, min(max(_LEAST, aim // cells), _MOST // cells))
        chosen, order = order[:count], order[count:]
        places = [begins[number] for number in chosen]
        yield as_rows([sequences[n] for n in chosen], places, max(1, begins[-1])), chosen
