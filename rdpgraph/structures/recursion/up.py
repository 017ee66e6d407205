"""Log-sums at a temperature from the leaves up, and scores of configurations.

The compiled machine runs programs on the CPU; torch all else, second derivatives included.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.program import Program, with_tensors
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.step import soft
from rdpgraph.structures.recursion.steps import Leaf, Pairs
from rdpgraph.structures.recursion.tape import Tape

_HELD = 2**20  # pairs of labels, and terms, that are stored for the way down
_MANY = 2**20  # potentials up to which they are read at once


def leaves(tape: Tape) -> Iterator[Tensor]:
    """(B or 1, P, K) of every leaf in turn; sites are read all at once unless they are many."""
    wanted = [step for step in tape.steps if isinstance(step, Leaf)]
    sites = [step.sites for step in wanted if step.sites is not None]
    flat = tape.unary.reshape(tape.batch, math.prod(tape.site_shape), tape.unary.shape[-1])
    if flat.numel() > _MANY and not flat.requires_grad:
        read = (flat.index_select(1, own).to(tape.dtype) for own in sites)
    else:
        numbers = torch.cat(sites) if sites else torch.zeros(0, dtype=torch.long)
        chosen = flat.index_select(1, numbers.to(flat.device)).to(tape.dtype)
        read = iter(chosen.split_with_sizes([len(own) for own in sites], 1))
    for step in wanted:
        yield next(read) if step.logs is None else step.logs.to(tape.dtype)


def last_read(tape: Tape) -> list[list[int]]:
    """The values that no later step reads, for each step."""
    last = dict[int, int]()
    for number, step in enumerate(tape.steps):
        last.update((value.number, number) for view in step.reads for value in view.pool)
    ended: list[list[int]] = [[] for _ in tape.steps]
    for value, number in last.items():
        ended[number].append(value)
    return ended


def up(tape: Tape, temperature: float = 1.0) -> Reader:
    """The values of all steps; the last is the goal. Differentiable any number of times.

    Args:
        tape: laid out.
        temperature: 1.0 for sums, 0.0 for maxima; any other one needs ``ranks=False``.
    """
    program = machine.program_of(tape) if temperature in (0.0, 1.0) else None
    if program is not None and not torch.is_grad_enabled():
        inputs = machine.inputs_of(tape, program)
        return _read(tape, program, machine.run(program, inputs, best=not temperature))
    given, held = leaves(tape), 0
    small = 0 if torch.is_grad_enabled() else _HELD // len(tape.steps)
    reader = Reader(temperature=temperature, small=small)
    for number, step in enumerate(tape.steps):
        leaf = isinstance(step, Leaf)
        reader.values.append(next(given) if leaf else step.up(reader, temperature))
        before = tape.steps[number - 1]
        # Large pairs are dropped after the next step has read them, and recomputed on demand.
        if isinstance(before, Pairs) and not torch.is_grad_enabled():
            pairs = reader.values[number - 1]
            held += pairs.numel()
            if held > _HELD:
                # A slice would hold the whole tensor.
                reader.values[number - 1] = pairs[:, :0].clone()
                reader.remade[number - 1] = before
    return reader


def log_sum(tape: Tape) -> Tensor:
    """(*lead,) the log-sum of all derivations; twice differentiable."""
    program = machine.program_of(tape)
    if program is None:
        return goal(tape, up(tape))
    given = machine.inputs_of(tape, program)
    if not torch.is_grad_enabled():
        return machine.run(program, given).goal.clone().reshape(tape.lead)
    return machine.log_sum(program, given, _by_torch(tape, program)).reshape(tape.lead)


def _by_torch(tape: Tape, program: Program) -> Callable[..., Tensor]:
    """A function of the inputs: (B,) the log-sum in operations that autograd records."""

    def summed(unary: Tensor, *given: Tensor) -> Tensor:
        own = unary.reshape(tape.unary.shape)
        other = Tape(own, tape.site_dims, ranks=tape.ranks, dtype=tape.dtype)
        other.steps.extend(with_tensors(tape.steps, program.slots, given)[0])
        return goal(other, up(other)).reshape(-1)

    return summed


def _read(tape: Tape, program: Program, done: machine.Run) -> Reader:
    """The values of a run as a reader."""
    reader = Reader(temperature=float(not done.best), small=_HELD // len(tape.steps))
    for number, step in enumerate(tape.steps):
        reader.values.append(done.value(number))
        if number in program.unstored:
            assert isinstance(step, Pairs)
            reader.remade[number] = step
    return reader


def goal(tape: Tape, reader: Reader) -> Tensor:
    """(*lead,) the value of the whole."""
    # Without sites the gradient in their potentials is zero, not None.
    value = reader.values[-1] + tape.unary[..., :0].sum().to(tape.dtype)
    return value.reshape(-1).expand(tape.batch).reshape(tape.lead)


def exhausting(tape: Tape, wanted: Tensor) -> Tensor:
    """(*lead,) the log-sum of the derivations that use a wanted number (*lead,) of sites.

    Among alternatives those that use most sites are summed; -inf if that is not the number. The
    tape has one state of each site of a configuration, at -inf where it is unused.
    """
    given, reader, counts = leaves(tape), Reader(), Reader()
    for step in tape.steps:
        if isinstance(step, Leaf):
            logs = next(given)
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
