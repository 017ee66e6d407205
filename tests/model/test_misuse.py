"""Models and questions that cannot be meant, refused in one line."""

import itertools
import math
import re
import sys
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg

A, B, C = (rg.Variable(name, 2) for name in "abc")
LAMPS = rg.VariableArray("lamp", (3,), 2)


def table(*values):
    return rg.Table(torch.tensor(values))


def pair():
    return rg.FactorGraph(
        [
            rg.Factor((A, B), table([1.0, 0.0], [0.0, 2.0])),
            rg.FactorBlock((LAMPS,), table(1.0, 0.0)),
        ]
    )


def test_evidence_that_contradicts_itself():
    with pytest.raises(rg.errors.EvidenceError, match="two different states"):
        pair().condition({A: 0, "a": 1})
    missing = torch.full((3,), -1)
    for given in ({LAMPS[0]: 1, LAMPS: missing}, {LAMPS: missing, LAMPS[0]: 1}):
        observed = pair().condition(given).observed
        assert int((observed == 1).sum()) == 1


def test_a_variable_with_the_name_of_a_member():
    member = rg.Factor((rg.Variable("lamp[0]", 2),), table(5.0, 0.0))
    with pytest.raises(rg.errors.ModelError, match="member of array"):
        rg.FactorGraph([member, rg.FactorBlock((LAMPS,), table(1.0, 0.0))])
    alone = rg.FactorGraph([member])  # without the array it is a name like others
    assert rg.infer(alone).marginal("lamp[0]").shape == (2,)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    "table_of",
    [
        lambda part: part,
        lambda part: part.detach(),
        lambda part: part.view(2),
        lambda part: part[:],
    ],
)
def test_tables_changed_after_a_copy_was_taken(learned, table_of):
    parts = [torch.zeros(2, requires_grad=learned) for _ in range(2)]
    factors = [
        rg.Factor((v,), rg.Table(table_of(part))) for v, part in zip((A, B), parts, strict=True)
    ]
    both, lone = rg.FactorGraph(factors), rg.FactorGraph(factors[:1])
    added = rg.FactorGraph([]).with_factors(*factors)
    torch.testing.assert_close(rg.infer(both).marginal(A), torch.full((2,), 0.5))
    with torch.no_grad():
        parts[0].copy_(torch.tensor([3.0, 0.0]))
    for ask in (rg.infer, rg.explain):
        for graph in (both, added):
            with pytest.raises(rg.errors.ModelError, match="changed in place"):
                ask(graph)
    expected = torch.tensor([3.0, 0.0]).softmax(0)
    torch.testing.assert_close(rg.infer(lone).marginal(A), expected)


def calls(make):
    """Number of functions that are called."""
    count = 0

    def counted(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        make()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", [rg.Factor, rg.FactorBlock])
def test_a_factor_of_many_variables_is_declared_in_linear_time(kind):
    def work(arity):
        bits = [rg.Variable(f"bit{number}", 2) for number in range(arity)]
        return calls(lambda: rg.FactorGraph([kind(bits, rg.Xor(arity))]))

    assert work(400) < 2.5 * work(200)
    with pytest.raises(rg.errors.ModelError, match=r"'a' in slots 0 and 2|names a variable twice"):
        rg.FactorGraph([kind((A, B, A), rg.Xor(3))])


@pytest.mark.parametrize("arity", range(2, 7))
def test_a_block_names_the_variable_that_stands_in_two_slots(arity):
    bits = rg.VariableArray("bit", (arity + 3, 5), 2)
    for first, second in itertools.combinations(range(arity), 2):
        slots = [bits[place] for place in range(arity)]
        slots[second] = bits[[second] * 5, torch.tensor([0, 1, 2, 3, 4])]
        rg.FactorGraph([rg.FactorBlock(tuple(slots), rg.Xor(arity))])
        slots[second] = bits[torch.tensor([second, second, first, second, second]), torch.arange(5)]
        with pytest.raises(
            rg.errors.ModelError, match=rf"'bit\[{first}, 2\]' in slots {first} and {second}"
        ):
            rg.FactorGraph([rg.FactorBlock(tuple(slots), rg.Xor(arity))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: rg.Loopy(temperature=math.inf),
        lambda: rg.loopy.Fractional(math.inf),
        lambda: rg.Randomized(rg.randomized.Local, rg.randomized.Top(2)),
        lambda: rg.Randomized(rg.randomized.Local(), 2),
        lambda: rg.Randomized.default(keep=2, replicates=2.5),
        lambda: rg.infer(pair(), scheduler="loopy"),
        lambda: rg.infer(pair(), estimator="randomized"),
        lambda: rg.infer(pair(), generator=0),
        lambda: rg.infer(rg.FactorGraph([rg.Factor((A,), rg.Table(torch.zeros(0, 2)))])),
        lambda: rg.infer(pair()).marginal_mode("a"),
        lambda: rg.infer(pair()).factor_marginal("a"),
        lambda: rg.infer(pair()).factor_marginal(A),
        lambda: rg.infer(pair()).factor_marginal((LAMPS,)),
    ],
)
def test_what_cannot_be_meant(make):
    with pytest.raises(rg.errors.RdpgraphError) as error:
        make()
    assert "\n" not in str(error.value)


def test_logical_factors_move_without_a_table():
    lamps = rg.VariableArray("lamp", (40,), 2)
    graph = rg.FactorGraph(
        [
            rg.Factor(tuple(lamps[i] for i in range(40)), rg.Cardinality(40, at_least=3)),
            rg.FactorBlock((lamps,), rg.Table(torch.zeros(40, 2))),
        ]
    )
    moved = graph.to(torch.float64)
    expected = math.log(sum(math.comb(40, k) for k in range(3, 41)))
    assert abs(float(rg.infer(moved).log_partition) - expected) < 1e-9
    assert rg.infer(moved).log_partition.dtype == torch.float64
    with pytest.raises(rg.errors.UnsupportedError, match="written out"):
        next(graph.factors())


@dataclass(frozen=True, eq=False)
class Flat(rg.extend.Potential):
    """A potential that says a shape and gives values of another, or none."""

    shape: object = None
    values: object = None

    def evaluate(self, states):
        return self.values


@pytest.mark.parametrize("shape", [None, 2, [2, 2], (2.0, 2)])
def test_a_potential_whose_shape_is_no_tuple_of_sizes(shape):
    with pytest.raises(rg.errors.ModelError, match=r"Flat\.shape needs to be a tuple") as caught:
        rg.Factor((A, B), Flat(shape))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheduler", [rg.Auto(), rg.Loopy()])
@pytest.mark.parametrize(
    "values", [None, [[0.0] * 2] * 2, torch.zeros(2), torch.zeros(2, 1), torch.zeros(3, 2, 2)]
)
def test_a_potential_whose_values_are_not_those_of_the_grid(values, scheduler):
    graph = rg.FactorGraph([rg.Factor((A, B), Flat((2, 2), values))])
    with pytest.raises(
        rg.errors.ModelError, match=r"Flat\.evaluate, .* \(\*lead, 2, 2\)"
    ) as caught:
        rg.infer(graph, scheduler).log_partition  # noqa: B018
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        rg.Variable("a", 3),
        rg.Variable("a", ("off", "on")),
        rg.VariableArray("a", (3,), 2),
        rg.VariableArray("lamp", (3,), 3),
        rg.VariableArray("lamp", (3,), 3)[1],
        rg.Variable("lamp", 2),
    ],
)
def test_what_is_another_by_a_known_name(other):
    graph = pair()
    for ask in (rg.infer(graph).marginal, lambda name: graph.condition({name: 0})):
        with pytest.raises(rg.errors.ModelError, match="not what this graph has by that name"):
            ask(other)
    same = rg.Variable("a", 2)  # another object, equal in its name and states
    torch.testing.assert_close(rg.infer(graph).marginal(same), rg.infer(graph).marginal("a"))


def test_a_marginal_of_a_list_names_the_joint():
    with pytest.raises(rg.errors.ModelError, match=r"; joint takes a list of them; got \['a', 'b'"):
        rg.infer(pair()).marginal(["a", "b"])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: rg.Sparse(torch.tensor([[1, 2], [0, 5]]), torch.zeros(2), (2, 3)),
            "out of range, in configuration (0, 5)",
        ),
        (
            lambda: rg.Monarch(torch.zeros(2, 2, 2), torch.zeros(2, 2, 2).double()),
            "got torch.float32 and torch.float64",
        ),
        (
            lambda: rg.randomized.TopTail(1, 1).select(torch.tensor([math.nan, 0.0]), None),
            "got a NaN or +inf",
        ),
        (lambda: rg.extend.FORMATS.remove(".none"), "no file format with the suffix '.none'"),
        (lambda: rg.extend.REGISTRY.remove(int), "no structure 'int' to remove"),
    ],
)
def test_an_error_says_what_came(make, told):
    with pytest.raises(rg.errors.ModelError, match=re.escape(told)):
        make()
