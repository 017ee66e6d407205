"""Goals by the interpreter, whatever compiled code serves."""

import torch

from rdpgraph import Recurrence
from rdpgraph.recurrences.evaluation import evaluate
from rdpgraph.recurrences.semirings import LogSum, Max


def interpreted(model: Recurrence, *, best: bool = False) -> torch.Tensor:
    """(items,) log Z of a model with one batch dim, or its best score."""
    bound = model.by_input()
    given = {}
    for array in bound.program.inputs:
        values = bound.given[array.name]
        lead = values.ndim - len(array.dims)
        given[array.name] = values if lead else values.unsqueeze(0)
    lengths = {name: bound.given[name] for name, _ in bound.program.lengths}
    return evaluate(bound.program, given, lengths, bound.sizes, Max() if best else LogSum())
