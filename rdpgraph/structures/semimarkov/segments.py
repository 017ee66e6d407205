"""Segmentations laid out on a tape."""

import torch
from torch import Tensor

from rdpgraph._cache import remembered
from rdpgraph.model.potential import Potential
from rdpgraph.structures.chain.tensors import table_of
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value


def laid_out(tape: Tape, transition: Tensor | Potential, lengths: Tensor | None) -> Value:
    """By position what enters the segments that start there, and all that end there.

    On all labels log Z costs O(T (D N + N^2)); on K labels of each segment O(T (D K)^2), or
    O(T D K r) with a `LowRank` transition.

    Args:
        tape: whose sites are segments, [last position, duration].
        transition: (N, N), or (*batch, T - 1, N, N).
        lengths: (*batch,), or None.
    """
    (steps, durations), free = tape.site_shape, tape.unary.new_zeros(transition.shape[-1])
    written = tape.states is None and not tape.ranks
    if isinstance(transition, Potential) and (written or len(transition.shape) > 2):
        transition = table_of(transition, of="SemiMarkov")
    entering, ends = list[Value](), list[Value]()
    places = _places(steps, durations, tape.device)
    for place, (starting, ending, ages) in enumerate(places):
        labels = tape.sites.labels(starting)
        if place:
            between = transition
            if isinstance(between, Tensor) and between.ndim > 2:
                between = between[..., place - 1, :, :]
            entering.append(tape.link(ends[-1], between, to=labels))
        else:
            entering.append(tape.lookup(free, to=labels))
        segments = tape.across(tape.sites.leaf(ending))
        ends.append(tape.merge((segments, tape.across(entering[-durations:], ages))))
    if lengths is None:
        return ends[-1] if ends else tape.one
    distinct, which = tape.lengths(lengths, steps).unique(return_inverse=True)
    last = [tape.sum(ends[length - 1]) if length else tape.one for length in distinct.tolist()]
    return tape.choose(last or [tape.one], which)


@remembered(16)
def _places(steps: int, durations: int, device: torch.device) -> list[tuple[Tensor, ...]]:
    """For each position the numbers of the sites that start there, and of those that end there.

    The latter the longest first, with their ages: which they are of those that start with them.
    """
    reach = torch.arange(durations, device=device)
    starting = reach * durations + reach
    places = list[tuple[Tensor, ...]]()
    for place in range(steps):
        ages = reach[: place + 1].flip(0)
        begun = starting[: steps - place] + place * durations
        places.append((begun, place * durations + ages, ages))
    return places
