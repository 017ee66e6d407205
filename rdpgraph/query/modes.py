"""A marginal mode in words: what a solution says of some variables, for each of those asked for."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.engines.solution import Solution, meets
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.query.answers import Assignment


def marginal_mode(
    solution: Solution, domain: Domain, items: Sequence[Named], batch: tuple[int, ...]
) -> Assignment:
    """The most probable configuration of some variables and arrays, and what it is worth.

    Args:
        solution: of the model.
        domain: its variables.
        items: some of them, one at least.
        batch: the batch dims.
    """
    numbers = [domain.numbers(item).reshape(-1) for item in items]
    states = solution.marginal_mode(torch.cat(numbers))
    result: dict[Entry, Tensor] = {}
    parts = states.split([len(own) for own in numbers], 1)
    for item, own, part in zip(items, numbers, parts, strict=True):
        entry: Entry = domain.variable(int(own[0])) if isinstance(item, str) else item
        shape = tuple(domain.numbers(item).shape)
        if isinstance(item, str) and shape:
            entry = domain.entries[domain.place(item)]
        result[entry] = part.reshape([*batch, *shape])
    answer = Assignment(result, domain)
    score, bound = solution.marginal_mode_scores(torch.cat(numbers))
    answer.score, answer.bound = score.reshape(batch), bound.reshape(batch)
    answer.optimal = meets(answer.score, answer.bound)
    return answer
