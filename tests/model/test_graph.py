"""Declaring models."""

import math
from itertools import pairwise

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force


def test_arrays_are_sliced_like_arrays():
    pixels = rg.VariableArray("pixel", (4, 6), 3)
    assert pixels[1:, ::2].shape == (3, 3)
    assert pixels[1:, ::2][0, 1] == pixels[1, 2]
    assert pixels[3, 4].name == "pixel[3, 4]"
    assert pixels[3, 4] == rg.Variable("pixel[3, 4]", 3)
    assert pixels[-1, -1] == pixels[3, 5]
    assert pixels[0] != pixels[1]
    with pytest.raises(IndexError, match="pixel"):
        pixels[9, 0]


def test_members_are_found_by_name():
    pixels = rg.VariableArray("pixel", (2, 3), 2)
    graph = rg.FactorGraph([rg.FactorBlock((pixels,), rg.Table(torch.randn(2, 3, 2)))])
    posterior = rg.infer(graph.condition({"pixel[1, 2]": 1, pixels[0, 0]: 0}))
    whole = posterior.marginal(pixels)
    assert whole.shape == (2, 3, 2)
    assert whole[1, 2].tolist() == [0.0, 1.0]
    assert torch.equal(posterior.marginal("pixel[0, 1]"), whole[0, 1])
    assert torch.equal(posterior.marginal(pixels[:, 1]), whole[:, 1])
    with pytest.raises(rg.errors.ModelError, match="outside array"):
        graph.condition({"pixel[5, 5]": 0})


def test_evidence_by_name_state_batch_and_absence():
    rain = rg.Variable("rain", ("no", "yes"))
    wet = rg.Variable("wet", 2)
    graph = rg.FactorGraph(
        [
            rg.Factor((rain,), rg.Table.from_probabilities(torch.tensor([0.8, 0.2]))),
            rg.Factor(
                (rain, wet), rg.Table.from_probabilities(torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
            ),
        ]
    )
    rows = graph.condition({"rain": ["yes", None, "no"], wet: torch.tensor([1, 1, -1])})
    expected = torch.tensor([0.16, 0.24, 0.8]).log()
    assert torch.allclose(rg.infer(rows).log_partition, expected)
    assert torch.allclose(rg.infer(rows).marginal(wet)[2], torch.tensor([0.9, 0.1]))
    assert rg.infer(rows).marginal(rain)[0].tolist() == [0.0, 1.0]
    with pytest.raises(rg.errors.EvidenceError, match="'rain' has no state 'maybe'"):
        graph.condition({"rain": "maybe"})
    with pytest.raises(rg.errors.EvidenceError, match="states 0 to 1"):
        graph.condition({"wet": 2})
    with pytest.raises(rg.errors.ModelError, match=r"did you mean 'rain'\?$"):
        graph.condition({"rainn": 0})
    with pytest.raises(rg.errors.EvidenceError, match="already observed"):
        graph.condition({wet: 1}).condition({wet: 0})


def test_soft_evidence_is_a_factor():
    a = rg.Variable("a", 3)
    graph = rg.FactorGraph([rg.Factor((a,), rg.Table(torch.zeros(3)))])
    soft = graph.with_factors(rg.Factor((a,), rg.Table(torch.tensor([1.0, 2.0, 5.0]).log())))
    assert torch.allclose(rg.infer(soft).marginal(a), torch.tensor([1.0, 2.0, 5.0]) / 8)


def test_a_shared_table_is_stored_once_and_like_ones_are_one_block():
    table = rg.Table(torch.randn(2, 2))
    chain = [rg.Variable(f"x{i}", 2) for i in range(50)]
    graph = rg.FactorGraph(rg.Factor(pair, table) for pair in pairwise(chain))
    assert len(graph.blocks) == 1
    assert graph.blocks[0].shared
    assert graph.blocks[0].select().table(2).data_ptr() == table.log_values.data_ptr()
    own = rg.FactorGraph(rg.Factor(pair, rg.Table(torch.randn(2, 2))) for pair in pairwise(chain))
    assert [block.count for block in own.blocks] == [49]


def test_constraints_that_are_alike_are_one_block():
    bits = [rg.Variable(f"b{i}", 2) for i in range(6)]
    pairs = list(pairwise(bits))
    learned = rg.Automaton(
        torch.tensor([[0, 1], [1, 0]]), torch.tensor([0.5, 0.0]).requires_grad_(), 2
    )
    others = [rg.Xor(2, parity=0), rg.Xor(2, dtype=torch.float64), rg.Or(2), learned, learned]
    graph = rg.FactorGraph(
        [rg.Factor(pair, rg.Xor(2)) for pair in pairs]
        + [rg.Factor(pair, other) for pair, other in zip(pairs, others, strict=True)]
    )
    assert sorted(block.count for block in graph.blocks) == [1, 1, 1, 2, 5]
    states = {bit: torch.tensor(i % 2) for i, bit in enumerate(bits)}
    assert graph.score(states) == -math.inf  # even
    both = rg.FactorGraph([rg.Factor(pair, rg.Xor(2)) for pair in pairs])
    assert both.score(states) == 0.0


def test_a_million_factors_are_a_few_blocks():
    pixels = rg.VariableArray("pixel", (708, 708), 2)
    coupling = torch.zeros(2, 2)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(coupling)),
            rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(torch.zeros(707, 708, 2, 2))),
        ]
    )
    assert graph.num_factors == 2 * 707 * 708 > 10**6
    assert len(graph.blocks) == 2
    score = graph.score({pixels: torch.zeros(708, 708, dtype=torch.long)})
    assert float(score) == 0.0


def test_scopes_of_a_block_become_tuples():
    x = rg.VariableArray("x", (3,), 2)
    single, pair = rg.Table(torch.zeros(2)), rg.Table(torch.zeros(2, 2))
    assert rg.FactorBlock(x, single).scopes == (x,)
    assert rg.FactorBlock(([x[0], x[1]] for _ in range(1)), single).scopes == ((x[0], x[1]),)
    assert rg.FactorBlock([x[1:], x[:-1]], pair).scopes == (x[1:], x[:-1])


def test_blocks_broadcast_tables_and_batches():
    sites = rg.VariableArray("s", (3,), 2)
    values = torch.randn(5, 1, 2, dtype=torch.float64)
    graph = rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(values))])
    assert graph.batch_shape == (5,)
    assert torch.allclose(rg.infer(graph).log_partition, 3 * values.logsumexp(-1).squeeze(1))
    with pytest.raises(rg.errors.ModelError, match="must broadcast"):
        rg.FactorBlock((sites,), rg.Table(torch.randn(5, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, b: rg.Factor((a, b), rg.Table(torch.zeros(3, 2))), r"shape \(2, 3\).*\(3, 2\)"),
        (lambda a, b: rg.Factor((a, a), rg.Table(torch.zeros(2, 2))), "names a variable twice"),
        (lambda a, b: rg.Factor((a,), torch.zeros(2)), r"Table\(log_values\)"),
        (lambda a, b: rg.Table(torch.tensor([math.nan, 0.0])), "NaN"),
        (lambda a, b: rg.Table(torch.tensor([math.inf, 0.0])), r"\+inf"),
        (lambda a, b: rg.Table(torch.tensor([1, 2])), "floating"),
        (lambda a, b: rg.Table.from_probabilities(torch.tensor([-0.1])), "values >= 0"),
        (lambda a, b: rg.Variable("x", 0), "at least one state"),
        (lambda a, b: rg.Variable("x", ("s", "s")), "twice"),
        (lambda a, b: rg.VariableArray("x", (), 2), "shape"),
        (
            lambda a, b: rg.FactorGraph(
                [rg.Factor((rg.Variable("a", 3),), rg.Table(torch.zeros(3)))], variables=[a]
            ),
            "Two variables named 'a'",
        ),
    ],
)
def test_what_cannot_be_built_says_why(make, message):
    with pytest.raises(rg.errors.ModelError, match=message) as caught:
        make(rg.Variable("a", 2), rg.Variable("b", 3))
    assert "\n" not in str(caught.value)


def test_probabilities_of_zero_have_no_nan_gradient():
    values = torch.tensor([0.0, 0.5, 0.5], requires_grad=True)
    a = rg.Variable("a", 3)
    graph = rg.FactorGraph([rg.Factor((a,), rg.Table.from_probabilities(values))])
    rg.infer(graph).log_partition.backward()
    assert values.grad.tolist() == [0.0, 1.0, 1.0]


def test_restriction_is_gathering():
    generator = torch.Generator().manual_seed(0)
    a, b, c = rg.Variable("a", 5), rg.Variable("b", 4), rg.Variable("c", 3)
    tables = {
        (a, b): torch.randn(5, 4, generator=generator, dtype=torch.float64),
        (b, c): torch.randn(4, 3, generator=generator, dtype=torch.float64),
        (a,): torch.randn(5, generator=generator, dtype=torch.float64),
    }
    graph = rg.FactorGraph([rg.Factor(s, rg.Table(t)) for s, t in tables.items()])
    states = torch.tensor([[4, 0, 4], [1, 2, 3]])
    weights = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    small = graph.restrict({"a": rg.extend.Support(states, weights)})
    assert small.batch_shape == (2,)
    for item in range(2):
        by_hand = rg.FactorGraph(
            [
                rg.Factor((rg.Variable("a", 3), b), rg.Table(tables[a, b][states[item]])),
                rg.Factor((b, c), rg.Table(tables[b, c])),
                rg.Factor(
                    (rg.Variable("a", 3),), rg.Table(tables[(a,)][states[item]] + weights[item])
                ),
            ]
        )
        expected = brute_force(by_hand).log_partition
        assert torch.allclose(rg.infer(small).log_partition[item], expected)
    with pytest.raises(rg.errors.ModelError, match="names state 9"):
        graph.restrict({"a": rg.extend.Support(torch.tensor([9]), torch.zeros(1))})


def test_a_graph_prints_for_people():
    a, b = rg.Variable("a", ("no", "yes")), rg.VariableArray("b", (2,), 7)
    pairs = rg.FactorBlock((b,), rg.Table(torch.zeros(7)))
    shown = repr(rg.FactorGraph([rg.Factor((a,), rg.Table(torch.zeros(2))), pairs]))
    assert shown.splitlines() == [
        "FactorGraph of 3 variables and 3 factors",
        "  variables: a (no, yes); b (2,) of 7 states",
        "  factors: 2 of shape (7,) (one table); 1 of shape (2,)",
    ]
