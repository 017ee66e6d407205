"""A semi-Markov chain as a general graph: an ordinary chain over ages and labels."""

import math

import torch
from torch import Tensor

from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import VariableArray


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
    pairs = torch.where(age == 0, cut, kept)
    reaches = (place[1:] < length).unsqueeze(-1).unsqueeze(-1)
    pairs = torch.where(reaches, pairs, 0.0)
    return FactorGraph(
        [
            FactorBlock((sites,), Table.from_logs(unary)),
            FactorBlock((sites[:-1], sites[1:]), Table.from_logs(pairs)),  # pyright: ignore
        ]
        if steps > 1
        else [FactorBlock((sites,), Table.from_logs(unary))]
    )
