"""From the leaves upwards: log-sums at a temperature, and those of one configuration."""

import math

import torch
from torch import Tensor

from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Reader, soft


def leaves(tape: Tape) -> dict[int, Tensor]:
    """(B or 1, P, K) of every leaf, the sites' read all at once."""
    wanted = [(n, step) for n, step in enumerate(tape.steps) if isinstance(step, Leaf)]
    by_number: dict[int, Tensor] = {}
    sites = [(n, step.sites) for n, step in wanted if step.sites is not None]
    if sites:
        width = tape.unary.shape[-1]
        flat = tape.unary.reshape(tape.batch, math.prod(tape.site_shape), width)
        numbers = torch.cat([own for _, own in sites])
        chosen = flat.index_select(1, numbers).to(tape.dtype)
        parts = chosen.split([len(own) for _, own in sites], 1)
        by_number = {n: part for (n, _), part in zip(sites, parts, strict=True)}
    for n, step in wanted:
        if step.logs is not None:
            by_number[n] = step.logs.to(tape.dtype)
    return by_number


def up(tape: Tape, temperature: float = 1.0) -> Reader:
    """The values of all steps; the last is the goal. Differentiable any number of times.

    Args:
        tape: laid out.
        temperature: 1.0 for sums, 0.0 for maxima; any other one needs ``ranks=False``.
    """
    given, reader = leaves(tape), Reader()
    for number, step in enumerate(tape.steps):
        value = given[number] if number in given else step.up(reader, temperature)
        reader.values.append(value)
    return reader


def goal(tape: Tape, reader: Reader) -> Tensor:
    """(*lead,) the value of the whole."""
    # What uses no site has a gradient of zero in their potentials, not none.
    value = reader.values[-1] + tape.unary[..., :0].sum().to(tape.dtype)
    return value.reshape(-1).expand(tape.batch).reshape(tape.lead)


def exhausting(tape: Tape, wanted: Tensor) -> Tensor:
    """(*lead,) the log-sum of the derivations that use as many sites as are wanted.

    Of the alternatives those are summed whose derivations use most sites; -inf where that is not
    the number wanted.

    Args:
        tape: on one state of each site of a configuration; -inf at the others.
        wanted: (*lead,) the number of sites of the configuration.
    """
    given, reader, counts = leaves(tape), Reader(), Reader()
    for number, step in enumerate(tape.steps):
        if isinstance(step, Leaf):
            logs = given[number]
            used = torch.full_like(logs, float(step.sites is not None))
            counts.values.append(torch.where(logs.detach() > -math.inf, used, -math.inf))
            reader.values.append(logs)
            continue
        with torch.no_grad():
            uses = step.terms(counts, scores=False)
            most = uses.amax(step.dim, keepdim=True)
        terms = step.terms(reader)
        total = soft(torch.where(uses == most, terms, -math.inf), step.dim, 1.0)
        reader.values.append(total)
        counts.values.append(most.squeeze(step.dim))
    enough = goal(tape, counts) == wanted
    return torch.where(enough, goal(tape, reader), -math.inf)
