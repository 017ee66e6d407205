"""Sequences of observations, as users give them, in batches of similar lengths."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from rdpgraph._core import tuning
from rdpgraph._core.masked import filled, present
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import EvidenceError

PaddedBatch = Mapping[str, Tensor]
"""Sequences: "observed" (B, T, columns), NaN where missing or beyond an end; "lengths" (B,);
"places" (B, 2), the number of the first step of each among all, and that of all; where some columns
are covariates, "covariates" (B, T, k), 0 beyond an end."""

_LLOYD, _SAMPLED, _SOFT = 10, 2**14, 0.1  # steps, rows, and the weight shared by all clusters


def sequences_of(given: Any, lengths: Any = None) -> list[Tensor]:
    """Sequences (steps, columns) of float64, NaN where an entry is missing.

    Given as all steps end to end (an array, tensor, DataFrame or list) with lengths (None: one
    sequence), or as a list of arrays.
    """
    # A list of arrays has one for each sequence.
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
    # All steps end to end, to be cut by the lengths.
    matrix = _matrix(given)
    if lengths is None:
        return [matrix]
    lengths = present("Lengths of sequences", lengths, EvidenceError)
    sizes: Any = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    sizes = list(sizes) if isinstance(sizes, Iterable) else [sizes]
    if not all(is_whole(size) for size in sizes) or sum(sizes) != len(matrix):
        raise EvidenceError(
            f"Lengths of sequences must add up to the {len(matrix)} steps of X; got {sizes!r:.80}."
        )
    return list(matrix.split(sizes))


def _matrix(given: Any) -> Tensor:
    """Convert a sequence to (steps, columns), NaN where an entry is missing."""
    try:
        given = filled(given, math.nan)
        if isinstance(given, Tensor):
            matrix = given.detach().to(torch.float64)
        else:
            import numpy as np

            if np.iscomplexobj(given):
                raise TypeError("Complex data not supported")
            matrix = torch.from_numpy(np.array(given, dtype=np.float64))  # None becomes NaN
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvidenceError(
            "Sequences need numbers in shape (steps, columns), NaN or None where one is missing. "
            f"Give several as a list of arrays, or with lengths: {error}."
        ) from None
    matrix = matrix.unsqueeze(1) if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise EvidenceError(f"A sequence needs shape (steps, columns); got {tuple(matrix.shape)}.")
    if bool(matrix.isinf().any()):
        row = int(matrix.isinf().any(1).nonzero()[0])
        raise EvidenceError(
            f"Row {row} of X holds an infinity; write NaN where an entry is missing."
        )
    return matrix


def batches_of(
    sequences: Sequence[Tensor], width: int, aim: int, covariates: Sequence[int] = ()
) -> Iterator[tuple[PaddedBatch, list[int]]]:
    """Batches of sequences, long ones first, with their numbers.

    A step takes ``width`` log-likelihoods; a batch on a CPU aims at ``aim`` of them. Its shortest
    sequence has half the steps of its longest or more, or all of it takes ``aim`` at most.
    """
    sizes = [len(each) for each in sequences]
    begins = [0, *accumulate(sizes)]
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    aim = aim if sequences[0].device.type == "cpu" else tuning.BLOCK
    while order:
        longest = sizes[order[0]]
        cells = max(1, longest * width)
        count = max(1, min(max(tuning.LEARNED_SEQUENCES, aim // cells), tuning.BLOCK // cells))
        least = longest / 2 if count * cells > aim else 0
        count = sum(sizes[number] >= least for number in order[:count])
        chosen, order = order[:count], order[count:]
        places = [begins[number] for number in chosen]
        few = [sequences[n] for n in chosen]
        yield as_rows(few, places, max(1, begins[-1]), covariates), chosen


def as_rows(
    sequences: Sequence[Tensor], places: Sequence[int] = (0,), total: int = 0,
    covariates: Sequence[int] = (),
) -> PaddedBatch:  # fmt: skip
    """A padded batch of sequences (steps, columns), with the place of each first step among all.

    Some of their columns may be covariates.
    """
    lengths = [len(each) for each in sequences]
    device = sequences[0].device
    padded = pad_sequence(list(sequences), batch_first=True, padding_value=math.nan)
    driving: dict[str, Tensor] = {}
    if covariates:
        driving["covariates"] = padded[..., [*covariates]].nan_to_num(0.0)
        padded = padded[..., without(covariates, padded.shape[2])]
    return driving | {
        # One column after the other in memory, as emissions sum over steps.
        "observed": padded.movedim(2, 0).contiguous().movedim(0, 2),
        "lengths": torch.tensor(lengths, device=device),
        "places": torch.tensor([(at, total or sum(lengths)) for at in places], device=device),
    }


def without(covariates: Sequence[int], columns: int) -> list[int]:
    """The columns that are no covariates."""
    return [column for column in range(columns) if column not in covariates]


def clusters(observed: Tensor, states: int, generator: torch.Generator) -> Tensor:
    """(rows, states) softened indicators of clusters, by k-means++ and Lloyd's steps.

    Columns are scaled; missing entries count as their mean. Of many rows a random part finds the
    centres. Arthur and Vassilvitskii 2007, "k-means++".
    """
    known = observed[~observed.isnan().all(1)]
    if not len(known):
        raise EvidenceError(
            "Starting emissions are drawn from the data, and all of its entries are missing."
        )
    # Columns of unit variance, so that none decides the distances by its unit; a gap counts as the
    # mean.
    means = known.nanmean(0)
    scale = (known - means).square().nanmean(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    points = ((known - means) / scale).nan_to_num(0.0)
    picked = torch.randperm(len(points), generator=generator)[:_SAMPLED].to(points.device)
    points = points[picked]
    # Centres as k-means++ draws them (Arthur and Vassilvitskii 2007): each with probability
    # proportional to the squared distance to the nearest one so far.
    centres = points[:1]
    for _ in range(states - 1):
        gaps = torch.cdist(points, centres).amin(1).square()
        gaps = gaps if bool(gaps.sum() > 0) else torch.ones_like(gaps)
        centres = torch.cat(
            [centres, points[torch.multinomial(gaps.cpu(), 1, generator=generator)]]
        )
    # A few rounds of Lloyd; a cluster without points keeps its centre.
    for _ in range(_LLOYD):
        assigned = one_hot(torch.cdist(points, centres).argmin(1), states).to(points)
        count = assigned.sum(0).unsqueeze(1)
        centres = torch.where(count > 0, assigned.mT @ points / count.clamp(min=1.0), centres)
    # Assignments are softened: no state starts with probability zero.
    nearest = torch.cdist(((observed - means) / scale).nan_to_num(0.0), centres).argmin(1)
    hard = one_hot(nearest, states).to(observed)
    return (1 - _SOFT) * hard + _SOFT / states
