"""From the goal to the leaves: the best derivation, or draws."""

import math

import torch
from torch import Tensor

from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Reader


@torch.no_grad()
def descend(tape: Tape, reader: Reader, count: int, pick: Pick) -> Tensor:
    """(count, *lead, *sites) the states of the sites that derivations use, -1 where they do not.

    All nodes of one step go at once, over all derivations.

    Args:
        tape: laid out.
        reader: its values: sums for draws, maxima for the best.
        count: how many of each item.
        pick: one of the alternatives of each node.

    Raises:
        ImpossibleEvidenceError: an item has no derivation.
    """
    device, batch = tape.device, tape.batch
    if not bool((reader.values[-1] > -torch.inf).all()):
        raise ImpossibleEvidenceError(
            "There are no samples and no mode: at least one item has no possible configuration."
        )
    states = torch.full((count * batch, math.prod(tape.site_shape)), -1, device=device)
    trees = torch.arange(count * batch, device=device)
    waiting: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in tape.steps]
    waiting[-1] = [(trees, trees * 0, trees * 0)]
    for number in range(len(tape.steps) - 1, -1, -1):
        if not waiting[number]:
            continue
        step = tape.steps[number]
        own = waiting[number]
        tree, place, label = map(torch.cat, zip(*own, strict=True)) if len(own) > 1 else own[0]
        waiting[number] = []
        if isinstance(step, Leaf):
            if step.sites is not None:
                states[tree, step.sites[place]] = label
            continue
        item = tree % batch
        several = step.alternatives > 1
        chosen = pick(step.at(reader, item, place, label)) if several else label * 0
        for value, rows, places, labels in step.children(chosen, item, place, label):
            below = tree if rows is None else tree[rows]
            if len(below):
                waiting[value.number].append((below, places, labels))
    return states.reshape(count, *tape.lead, *tape.site_shape)
