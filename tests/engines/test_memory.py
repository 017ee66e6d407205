"""Marginals of trees of large variables take the memory of messages, not that of all pairs."""

import pytest
import torch

import rdpgraph as rg
from tests.memory import peak_of_tensors
from tests.questions import NUMBERS

STATES, COUNT = 520, 15  # tables of more entries than the engine copies
TABLE = 4 * STATES**2  # bytes
CHILDREN = torch.arange(1, COUNT)
PARENTS = (CHILDREN - 1) // 2
SITES = rg.VariableArray("x", (COUNT,), STATES)
MADE = torch.Generator().manual_seed(0)
UNARY = torch.randn(COUNT, STATES, generator=MADE)
VECTORS = 0.5 * torch.randn(STATES, 6, generator=MADE)
PAIRS = VECTORS @ VECTORS.mT
EACH = torch.stack([PAIRS + number for number in range(COUNT - 1)])


def block(potential, rows=slice(None), *, turned: bool = False) -> rg.FactorBlock:
    """Pairs of parents and children."""
    scope = SITES[PARENTS[rows].tolist()], SITES[CHILDREN[rows].tolist()]
    return rg.FactorBlock(scope[::-1] if turned else scope, potential)


def listed() -> list[rg.Factor]:
    tables = rg.Table(PAIRS), rg.Table(PAIRS.mT + 1)
    edges = zip(PARENTS.tolist(), CHILDREN.tolist(), strict=True)
    return [rg.Factor((SITES[a], SITES[b]), tables[b % 2]) for a, b in edges]


# The pairs of a tree, and how many tables of one pair all of them take.
TREES = {
    "one potential": (lambda: [block(rg.Bilinear(VECTORS, VECTORS))], 1),
    "one table": (lambda: [block(rg.Table(PAIRS))], 1),
    "two tables": (listed, 2),
    "turned": (
        lambda: [
            block(rg.Bilinear(VECTORS, VECTORS), slice(6)),
            block(rg.Bilinear(VECTORS, VECTORS), slice(6, None), turned=True),
        ],
        2,
    ),
    "a table for each": (lambda: [block(rg.Table(EACH))], COUNT - 1),
}
ASKED = {
    **{name: ask for name, ask in NUMBERS.items() if name != "log_partition"},
    "one pair": lambda posterior: posterior.factor_marginal((SITES[0], SITES[1])),
}


def graph(tree: str, unary: torch.Tensor) -> rg.FactorGraph:
    return rg.FactorGraph([rg.FactorBlock((SITES,), rg.Table(unary)), *TREES[tree][0]()])


def gradient(tree: str) -> torch.Tensor:
    unary = UNARY.clone().requires_grad_()
    (marginals,) = torch.autograd.grad(rg.infer(graph(tree, unary)).log_partition, unary)
    return marginals


@pytest.mark.parametrize("tree", TREES)
def test_marginals_of_a_tree_are_its_gradient_and_take_no_more_memory(tree):
    by_gradient = peak_of_tensors(lambda: gradient(tree))
    by_marginals = peak_of_tensors(lambda: rg.infer(graph(tree, UNARY)).marginal(SITES))
    assert by_marginals < 1.5 * by_gradient
    marginals = rg.infer(graph(tree, UNARY)).marginal(SITES)
    torch.testing.assert_close(marginals, gradient(tree), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("tree", TREES)
def test_no_question_makes_the_joints_of_all_pairs(tree, question):
    tables = TREES[tree][1]
    taken = peak_of_tensors(lambda: ASKED[question](rg.infer(graph(tree, UNARY))))
    # The tables and their exponentials, and a few tables at a time.
    assert taken < (2 * tables + 10) * TABLE


def test_hard_zeros_of_variables_do_not_copy_the_table_of_all_pairs():
    unary = UNARY.clone()
    unary[torch.arange(COUNT), torch.arange(COUNT)] = -torch.inf  # another state of each
    unary[4] = torch.where(torch.arange(STATES) == 7, unary[4], -torch.inf)  # one state is left
    taken = peak_of_tensors(lambda: rg.infer(graph("one table", unary)).marginal(SITES))
    assert taken < 5 * TABLE
    posterior = rg.infer(graph("one table", unary))
    tracked = unary.clone().requires_grad_()
    log_z = rg.infer(graph("a table for each", tracked)).log_partition
    (expected,) = torch.autograd.grad(log_z, tracked)
    assert bool(expected.isfinite().all())
    torch.testing.assert_close(posterior.marginal(SITES), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        posterior.log_partition, log_z.detach() - sum(range(COUNT - 1)), atol=1e-2, rtol=1e-6
    )
    assert bool(posterior.entropy().isfinite())
    assert bool(graph("one table", unary).score(posterior.mode()) > -torch.inf)


def test_a_variable_without_a_factor_of_its_own_is_read_off_its_pair():
    parents = torch.arange(COUNT - 1).tolist()
    pairs = [(SITES[0], SITES[place + 1]) for place in parents]
    star = rg.FactorGraph([rg.Factor(pair, rg.Table(PAIRS)) for pair in pairs])
    taken = peak_of_tensors(lambda: rg.infer(star).marginal(SITES))
    assert taken < 4 * TABLE
    marginals = rg.infer(star).marginal(SITES)
    hub = (COUNT - 1) * PAIRS.double().logsumexp(1)
    leaf = (PAIRS + (hub - PAIRS.double().logsumexp(1)).unsqueeze(1)).logsumexp(0)
    expected = torch.stack([hub, *[leaf] * (COUNT - 1)]).softmax(-1)
    torch.testing.assert_close(marginals.double(), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_entropy_is_log_z_less_the_expected_score(scale):
    """With hard zeros and batches, in products and in logs: against sums over all joints."""
    generator = torch.Generator().manual_seed(1)
    x = [rg.Variable(f"x{number}", 3) for number in range(5)]
    tables = [scale * torch.randn(2, 3, 3, generator=generator).double() for _ in range(5)]
    tables[0][:, 0, 1] = -torch.inf
    scopes = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 0)]  # with a cycle
    factors = [
        rg.Factor((x[a], x[b]), rg.Table(table.requires_grad_()))
        for (a, b), table in zip(scopes, tables, strict=True)
    ]
    posterior = rg.infer(rg.FactorGraph(factors), rg.Contraction())
    score = sum(
        (posterior.factor_marginal((x[a], x[b])) * table.nan_to_num(neginf=0.0)).sum((1, 2))
        for (a, b), table in zip(scopes, tables, strict=True)
    )
    torch.testing.assert_close(posterior.entropy(), posterior.log_partition - score)
    (first,) = torch.autograd.grad(posterior.entropy().sum(), tables[0], retain_graph=True)
    (second,) = torch.autograd.grad((posterior.log_partition - score).sum(), tables[0])
    assert bool(first.isfinite().all())
    torch.testing.assert_close(first, second)


def test_some_rows_of_a_block_are_those_of_the_whole_block():
    whole = rg.infer(graph("a table for each", UNARY)).factor_marginal(block(rg.Table(EACH)))
    posterior = rg.infer(graph("a table for each", UNARY))
    for row in (0, 7, COUNT - 2):
        pair = SITES[int(PARENTS[row])], SITES[int(CHILDREN[row])]
        torch.testing.assert_close(posterior.factor_marginal(pair), whole[row])
    again = [3, 3, 5]
    repeated = posterior.factor_marginal(block(rg.Table(PAIRS), torch.tensor(again)))
    torch.testing.assert_close(repeated, whole[again])
