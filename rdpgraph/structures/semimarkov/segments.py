"""Segmentations laid out on a tape, and as a general graph over ages and labels."""

import math

import torch
from torch import Tensor

from rdpgraph._core.cache import remembered
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.chain.tensors import table_of
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value


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
    totals = [tape.one, *map(tape.sum, ends)]
    return tape.choose(totals, tape.lengths(lengths, steps))


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


def graph_of(segments: Tensor, transition: Tensor, lengths: Tensor) -> FactorGraph:
    """The chain whose site t has state ``age * N + label`` of the segment that t lies in.

    The age counts the steps since the segment's start. A segment's score stands on the step that
    ends it: from (age d, n) at t to (age 0, m) at t + 1 it is segments[t, d, n] + transition[n, m].
    Sites beyond the length are in state 0. Tables of O(T (D N)^2): for small models.

    Args:
        segments: (*batch, T, D, N).
        transition: (N, N), or (*batch, T - 1, N, N).
        lengths: (*batch,).
    """
    *batch, steps, durations, labels = segments.shape
    states = durations * labels
    sites = VariableArray("site", (steps,), states)
    if not steps:
        return FactorGraph([], variables=[sites])
    state = torch.arange(states, device=segments.device)
    age, label = state // labels, state % labels
    place = torch.arange(steps, device=segments.device)
    length = lengths.unsqueeze(-1)
    ending = segments.reshape(*batch, steps, states)

    last = (place == length - 1).unsqueeze(-1)
    unary = torch.where(last, ending, 0.0)
    unary = unary.masked_fill((place == 0).unsqueeze(1) & (age > 0), -math.inf)
    beyond = (place >= length).unsqueeze(-1)
    unary = torch.where(beyond, torch.where(state > 0, -math.inf, 0.0).to(unary), unary)

    goes_on = (age.unsqueeze(1) + 1 == age) & (label.unsqueeze(1) == label)
    kept = torch.where(goes_on, 0.0, -math.inf).to(segments)
    cut = ending[..., :-1, :].unsqueeze(-1) + transition[..., label.unsqueeze(1), label]
    reaches = (place[1:] < length).unsqueeze(-1).unsqueeze(-1)
    pairs = torch.where(age == 0, torch.where(reaches, cut, 0.0), kept)
    return FactorGraph(
        [
            FactorBlock((sites,), Table.from_logs(unary)),
            FactorBlock((sites[:-1], sites[1:]), Table.from_logs(pairs)),  # pyright: ignore
        ]
        if steps > 1
        else [FactorBlock((sites,), Table.from_logs(unary))]
    )
