"""Inputs that are given as potentials: by their ranks, or at the states that are asked for.

A matrix of low rank is the sum over r of ``left[i, r] * right[j, r]``. For log Z and draws rules
read these factors in place of it, so that a sum over i costs as many terms as there are ranks.

On few states of each site rules read a matrix at places that are data, as in
``transition[states[t - 1, m], states[t, n]]``. A potential is then asked for these values alone,
which become an input of their own, ``transition_at0[t, m, n]``: nobody writes out the values of all
pairs of states.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.recurrences.affine import Affine, evaluate_form
from rdpgraph.recurrences.program import Array, Lookup, Program, Read, Rule


@functools.lru_cache(maxsize=256)
def with_ranks(program: Program, name: str) -> Program:
    """The program that sums over the ranks of a matrix, the last two dims of an input.

    In place of the input it has ``name_left`` and ``name_right``, whose last dim is the rank.
    """
    array = program.by_name[name]
    assert isinstance(array, Array)
    *before, rows, columns = array.dims
    size = Affine.of(f"Rank_{name}")
    factors = (
        Array(f"{name}_left", (*before, rows, size)),
        Array(f"{name}_right", (*before, columns, size)),
    )
    ranks: dict[str, Affine] = {}
    rules: list[Rule] = []
    for rule in program.rules:
        read: list[Read] = []
        over = [*rule.over]
        for factor in rule.factors:
            if factor.array != name:
                read.append(factor)
                continue
            # Each entry that a rule reads has ranks of its own.
            over.append(f"{name}_rank{len(over) - len(rule.over)}")
            ranks[over[-1]] = size
            *where, row, column = factor.index
            for part, at in zip(factors, (row, column), strict=True):
                read.append(Read(part.name, (*where, at, Affine.of(over[-1]))))
        rules.append(replace(rule, factors=tuple(read), over=tuple(over)))
    place = program.inputs.index(array)
    return replace(
        program,
        inputs=(*program.inputs[:place], *factors, *program.inputs[place + 1 :]),
        ranges={**program.ranges, **ranks},
        labels=program.labels | {*ranks},
        rules=tuple(rules),
    )


def factors_of(potential: LowRank, dims: int) -> tuple[Tensor, Tensor]:
    """The factors of a matrix of low rank, with all but its batch dims.

    Args:
        potential: the matrix.
        dims: how many dims it has after those of the batch.
    """
    before = potential.shape[len(potential.shape) - dims : -2]
    found: list[Tensor] = []
    for part in (potential.log_left, potential.log_right):
        lead = torch.broadcast_shapes(part.shape[:-2], before)
        found.append(part.expand(*lead, *part.shape[-2:]))
    return found[0], found[1]


@dataclass(frozen=True)
class MatrixRead:
    """The values of a matrix that some rules read.

    Attributes:
        name: of the input that has them.
        read: the entry of the matrix.
        both, first, second: the variables that both indices depend on, and those of one of them;
            the dims of the input, in this order.
        sizes: of all of them.
    """

    name: str
    read: Read
    both: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]
    sizes: Mapping[str, Affine]

    @property
    def dims(self) -> tuple[str, ...]:
        """All variables, in the order of the input's dims."""
        return (*self.both, *self.first, *self.second)


@functools.lru_cache(maxsize=256)
def read_at_data(program: Program, name: str) -> tuple[Program, tuple[MatrixRead, ...]] | None:
    """The program with inputs of the values of a matrix that it reads, in place of the matrix.

    Returns:
        None where the input is no matrix, or an index of it is not data.
    """
    array = program.by_name[name]
    reads = [f for rule in program.rules for f in rule.factors if f.array == name]
    if not isinstance(array, Array) or len(array.dims) != 2 or not all(map(_is_data, reads)):
        return None
    asked: dict[Read, MatrixRead] = {}
    for read in dict.fromkeys(reads):
        one, other = (
            [name for name in sorted(at.names) if name in program.ranges] for at in read.index
        )
        both = tuple(name for name in one if name in other)
        first = tuple(name for name in one if name not in both)
        second = tuple(name for name in other if name not in both)
        sizes = {name: program.ranges[name] for name in (*both, *first, *second)}
        asked[read] = MatrixRead(f"{name}_at{len(asked)}", read, both, first, second, sizes)
    inputs = [one for one in program.inputs if one is not array]
    made = [Array(one.name, tuple(one.sizes[n] for n in one.dims)) for one in asked.values()]
    rules = tuple(_reading(program, rule, asked) for rule in program.rules)
    changed = replace(program, inputs=(*inputs, *made), rules=rules)
    return changed, tuple(asked.values())


def _is_data(read: Read) -> bool:
    return all(isinstance(at, Lookup) for at in read.index)


def _reading(program: Program, rule: Rule, asked: Mapping[Read, MatrixRead]) -> Rule:
    """A rule that reads the values asked for, where the data that it read are there."""
    guards = [*rule.guards]
    factors: list[Read] = []
    for factor in rule.factors:
        if factor not in asked:
            factors.append(factor)
            continue
        factors.append(Read(asked[factor].name, tuple(map(Affine.of, asked[factor].dims))))
        for at in factor.index:
            assert isinstance(at, Lookup)
            data = program.by_name[at.array]
            assert isinstance(data, Array)
            # An index that is a variable is within its own range.
            for one, size in zip(at.index, data.dims, strict=True):
                guards += [] if one.bare is not None else [one, size - 1 - one]
    return replace(rule, factors=tuple(factors), guards=tuple(dict.fromkeys(guards)))


def sizes_of(arrays: Sequence[Array], given: Mapping[str, object]) -> dict[str, int]:
    """The sizes by name that tensors say, of which `Bound` checks that they agree."""
    sizes: dict[str, int] = {}
    for array in arrays:
        values = given[array.name]
        if isinstance(values, Tensor) and values.ndim >= len(array.dims):
            own = values.shape[values.ndim - len(array.dims) :]
            for dim, size in zip(array.dims, own, strict=True):
                for name, _ in dim.terms:
                    sizes.setdefault(name, size - dim.constant)
    return sizes


def evaluate_at(
    potential: Potential, asked: MatrixRead, sizes: Mapping[str, int], given: Mapping[str, Tensor]
) -> Tensor:
    """(*batch, *dims) the values of a matrix that are asked for.

    What is read outside of the data is some value, which no rule reads.

    Args:
        potential: of two slots, without dims before them.
        asked: what is read.
        sizes: of the inputs.
        given: the data, (*batch, *dims) of whole numbers.
    """
    ends = {name: size.evaluate(sizes) for name, size in asked.sizes.items()}
    shape = [ends[name] for name in asked.dims]
    sides = (asked.first, asked.second)
    if not math.prod(shape):
        return torch.zeros(shape, dtype=potential.dtype, device=potential.device)
    states: list[Tensor] = []
    for at, own in zip(asked.read.index, sides, strict=True):
        assert isinstance(at, Lookup)
        names = (*asked.both, *own)
        index = _index(given[at.array], at.index, names, ends, sizes)
        found = given[at.array][(..., *index)]
        states.append(found.flatten(found.ndim - len(own)) if own else found.unsqueeze(-1))
    values = potential.evaluate(states)
    lead = torch.broadcast_shapes(*(x.shape[:-1] for x in states))
    values = values.expand(*lead, *values.shape[-2:])
    return values.reshape(*lead[: len(lead) - len(asked.both)], *shape)


def _index(
    data: Tensor, forms: Sequence[Affine], names: Sequence[str], ends: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[Tensor]:  # fmt: skip
    """The index of data at all values of some variables, one dim for each of these."""
    points: dict[str, Tensor] = {}
    for place, name in enumerate(names):
        every = torch.arange(ends[name], device=data.device)
        points[name] = every.reshape(-1, *[1] * (len(names) - place - 1))
    shape = [ends[name] for name in names]
    found: list[Tensor] = []
    for form, size in zip(forms, data.shape[data.ndim - len(forms) :], strict=True):
        index = torch.as_tensor(evaluate_form(form, {**sizes, **points}), device=data.device)
        found.append(index.clamp(0, size - 1).expand(shape))
    return found
