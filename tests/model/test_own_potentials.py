"""Methods of a user's potential that give what they must not: refused in one line by name."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import check_potential

N = 80
"""States of a slot: messages are asked for where a table would be large."""
FLAT = torch.zeros(N, N)
Part, Decomposition = rg.extend.Part, rg.extend.Decomposition


class Flat(rg.extend.Potential):
    """Zero everywhere."""

    @property
    def shape(self):
        return (N, N)

    def evaluate(self, states):
        return torch.zeros(*states[0].shape, states[1].shape[-1])


def at_one(value, shape=(N, N)):
    values = torch.zeros(shape)
    values.view(-1)[0] = value
    return values


def parts(*given, auxiliary=()):
    return lambda self: Decomposition(auxiliary, given)


def sent(first, second):
    return lambda self, incoming, *, temperature=1.0: (first, second)


WRONG = {
    "evaluate, NaN": ("evaluate", lambda self, states: at_one(math.nan), "got NaN"),
    "evaluate, +inf": ("evaluate", lambda self, states: at_one(math.inf), "got +inf"),
    "evaluate, yes and no": ("evaluate", lambda self, states: FLAT.bool(), "torch.bool"),
    "evaluate, a list": ("evaluate", lambda self, states: [0.0], "got [0.0]"),
    "table, NaN": ("table", lambda self, arity: at_one(math.nan), "got NaN"),
    "table, a shape": ("table", lambda self, arity: FLAT[:, :3], "got (80, 3)"),
    "table, a lead": ("table", lambda self, arity: FLAT.expand(2, N, N), "got (2, 80, 80)"),
    "table, None": ("table", lambda self, arity: None, "got None"),
    "messages, NaN": ("messages", sent(at_one(math.nan, N), FLAT[0]), "got NaN"),
    "messages, a shape": ("messages", sent(FLAT[0], FLAT[0, :3]), "got (3,)"),
    "messages, a lead": ("messages", sent(FLAT[0], FLAT[:7]), "got (7, 80)"),
    "messages, one": ("messages", lambda self, incoming, *, temperature=1.0: FLAT, "got tensor"),
    "messages, None": ("messages", lambda self, incoming, *, temperature=1.0: None, "got None"),
    "messages, lists": ("messages", sent([0.0], [0.0]), "got [0.0]"),
    "decompose, a list": ("decompose", lambda self: [FLAT], "got [tensor"),
    "decompose, no tuple": ("decompose", lambda self: Decomposition(2, ()), "got 2"),
    "decompose, no state": ("decompose", parts(Part((0, 1), FLAT), auxiliary=(0,)), "got (0,)"),
    "decompose, pairs": ("decompose", parts(((0, 1), FLAT)), "got ("),
    "decompose, a number": ("decompose", parts(Part((0, 7), FLAT)), "got [(0, 7)]"),
    "decompose, a negative": ("decompose", parts(Part((0, -1), FLAT)), "got [(0, -1)]"),
    "decompose, twice": ("decompose", parts(Part((0, 0), FLAT)), "got [(0, 0)]"),
    "decompose, not held": ("decompose", parts(Part((0, 1), FLAT), auxiliary=(2,)), "80, 80"),
    "decompose, a shape": ("decompose", parts(Part((0, 1), FLAT[:, :3])), "got (80, 3)"),
    "decompose, few dims": ("decompose", parts(Part((0, 1), FLAT[0])), "got (80,)"),
    "decompose, a lead": ("decompose", parts(Part((0, 1), FLAT.expand(5, N, N))), "got (5, 80"),
    "decompose, NaN": ("decompose", parts(Part((0, 1), at_one(math.nan))), "got NaN"),
    "decompose, lists": ("decompose", parts(Part((0, 1), [[0.0]])), "got [[0.0]]"),
}  # fmt: skip


def ring(potential):
    x, y, z = (rg.Variable(name, N) for name in "xyz")
    pairs = ((x, y), (y, z), (z, x))
    return rg.FactorGraph([rg.Factor(pair, potential) for pair in pairs])


@pytest.mark.parametrize("case", WRONG)
def test_a_method_that_gives_the_wrong_thing_is_named(case):
    name, method, got = WRONG[case]
    own = type("Mine", (Flat,), {name: method})()
    with pytest.raises(rg.errors.ModelError) as refused:
        _ = rg.infer(ring(own), scheduler=rg.Loopy(sweeps=2)).log_partition
    message = str(refused.value)
    assert message.startswith(f"Mine.{name}")
    assert " needs " in message
    assert got in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("scheduler", [rg.Auto(), rg.Loopy(), rg.Contraction()])
def test_whole_numbers_are_log_values(scheduler):
    def evaluate(self, states):
        return -(states[0].unsqueeze(-1) - states[1].unsqueeze(-2)).abs()

    own = type("Near", (Flat,), {"evaluate": evaluate})()
    x, y = rg.Variable("x", N), rg.Variable("y", N)
    answer = rg.infer(rg.FactorGraph([rg.Factor((x, y), own)]), scheduler=scheduler)
    states = torch.arange(N, dtype=torch.float64)
    exact = -(states.unsqueeze(1) - states).abs()
    torch.testing.assert_close(answer.log_partition.double(), exact.logsumexp((0, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_that_of_the_fields(dtype):
    """A potential that says no dtype is answered in that of its numbers."""

    class Near(rg.extend.Potential):
        shape = (3, 3)

        def __init__(self, rate):
            self.rate = rate

        def evaluate(self, states):
            return -self.rate * (states[0].unsqueeze(-1) - states[1].unsqueeze(-2)).abs()

    near = Near(torch.tensor(0.5, dtype=dtype))
    check_potential(near, 2)
    x = rg.VariableArray("x", (4,), 3)
    chain = rg.infer(rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), near)]))
    assert chain.log_partition.dtype == dtype
