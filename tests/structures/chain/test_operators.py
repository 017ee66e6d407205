"""Transitions applied without a table: bands, diagonals beside low rank, products of blocks."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.testing import check_potential, check_structure


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def low_rank(states=4):
    return rg.LowRank(draw(states, 2, seed=2), draw(states, 2, seed=3))


KINDS = {
    "band": lambda: rg.Banded(draw(4, 3), (-1, 0, 2)),
    "one offset": lambda: rg.Banded(draw(4, 1), (1,)),
    "diagonal and low rank": lambda: rg.Banded(draw(4, 1), (0,), low_rank()),
    "blocks": lambda: rg.Monarch(draw(2, 2, 2), draw(2, 2, 2, seed=1)),
    "oblong blocks": lambda: rg.Monarch(draw(1, 4, 2), draw(2, 1, 2, seed=1)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_the_potential_is_its_table(kind):
    potential = KINDS[kind]()
    check_potential(potential)
    torch.testing.assert_close(potential.turned().table(2), potential.table(2).mT)
    rows = draw(3, 4, seed=4)
    rows[0, 1:], rows[1] = -math.inf, -math.inf
    sums = (rows.unsqueeze(2) + potential.table(2)).logsumexp(1)
    torch.testing.assert_close(potential.sums(rows), sums)
    torch.testing.assert_close(potential.row_totals(), potential.table(2).logsumexp(1))


@each_kind
def test_chains_have_every_answer_of_enumeration(kind):
    check_structure(rg.Chain(draw(2, 3, 4, seed=5), KINDS[kind](), lengths=torch.tensor([3, 2])))


@each_kind
def test_hard_zeros_and_gradients_are_those_of_the_table(kind):
    given = KINDS[kind]()
    tensors = [part.clone() for part in given.tensors]
    tensors[0].reshape(-1)[:1] = -math.inf
    own = [part.requires_grad_() for part in tensors]
    unary = draw(2, 5, 4, seed=6)
    answers = []
    for potential in (given.replaced(own), given.replaced(own).table(2)):
        chain = rg.Chain(unary, potential)
        asked = chain.log_partition(), chain.entropy(), chain.filtered(), chain.marginals()
        weights = sum((draw(*part.shape) * part).sum() for part in asked)
        gradients = torch.autograd.grad(weights, own)
        answers.append([*asked, chain.max_marginals(), chain.k_best(9).scores, *gradients])
    torch.testing.assert_close(*answers)


@each_kind
def test_divergences_are_those_of_tables(kind):
    one = KINDS[kind]()
    other = one.replaced([part.flip(0) for part in one.tensors])
    unaries = draw(2, 2, 4, 4, seed=7)
    unaries[1, 0, 1, 1] = -math.inf  # the other forbids what the first item allows
    found, expected = (
        rg.Chain(unaries[0], left).kl_divergence(rg.Chain(unaries[1], right))
        for left, right in ((one, other), (one.table(2), other.table(2)))
    )
    torch.testing.assert_close(found, expected)
    assert found[0] == math.inf


def test_normalised_rows_make_a_hidden_markov_model():
    start, emission = torch.zeros(4).log_softmax(0), draw(4, 3).float().log_softmax(1)
    seen = torch.tensor([[0, 2, -1, 1]])
    for potential in (
        rg.Banded.normalised(draw(4, 2).float(), (0, 1), rg.LowRank(*draw(2, 4, 2).float())),
        rg.Monarch.normalised(*draw(2, 2, 2, 2).float()),
    ):
        chain = rg.Chain.hmm(start, potential, emission, seen)
        dense = rg.Chain.hmm(start, potential.table(2), emission, seen)
        torch.testing.assert_close(chain.log_partition(), dense.log_partition())
    with pytest.raises(ModelError, match="sum to one"):
        rg.Chain.hmm(start, rg.Banded(torch.zeros(4, 2), (0, 1)), emission, seen)
    with pytest.raises(ModelError, match="a possible second state"):
        rg.Banded.normalised(torch.zeros(4, 1), (1,))


@pytest.mark.parametrize("kind", ["band", "blocks"])
def test_many_states_are_answered_without_a_table(kind):
    width = 64
    states = width**2
    potential = {
        "band": lambda: rg.Banded(draw(states, 3), (-1, 0, 5)),
        "blocks": lambda: rg.Monarch(draw(width, width, width), draw(width, width, width, seed=1)),
    }[kind]()
    chain = rg.Chain(draw(3, states, seed=2), potential)
    best = chain.k_best(2)
    torch.testing.assert_close(chain.score(best.states), best.scores)
    torch.testing.assert_close(chain.score(chain.mode()), best.scores[0])
    torch.testing.assert_close(chain.max_marginals().amax(1), best.scores[0].expand(3))
    torch.testing.assert_close(chain.marginals().sum(1), torch.ones(3).double())
    drawn = chain.sample(400, torch.Generator().manual_seed(0))
    surprise = chain.log_prob(drawn)
    spread = surprise.std() / 20
    assert (surprise.mean() + chain.entropy()).abs() < 5 * spread
    assert chain.work() < 2 * states * 2.1 * width


def test_a_graph_of_them_is_recognised_as_a_chain():
    site = rg.VariableArray("x", (4,), 4)
    for potential in (KINDS["band"](), KINDS["blocks"]()):
        blocks = [rg.FactorBlock((site,), rg.Table(draw(4, 4)))]
        graph = rg.FactorGraph([*blocks, rg.FactorBlock((site[:-1], site[1:]), potential)])
        backwards = rg.FactorGraph([*blocks, rg.FactorBlock((site[1:], site[:-1]), potential)])
        for model, table in ((graph, potential.table(2)), (backwards, potential.table(2).mT)):
            found = rg.Chain.recognise(model).structure
            assert isinstance(found.transition, type(potential))
            expected = rg.Chain(draw(4, 4), table).log_partition()
            torch.testing.assert_close(found.log_partition(), expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rg.Banded(torch.zeros(3, 2), (0,)), ModelError, "D different offsets"),
        (lambda: rg.Banded(torch.zeros(3, 2), (0, 0)), ModelError, "D different offsets"),
        (lambda: rg.Banded(torch.zeros(3, 1), (3,)), ModelError, "between -N and N"),
        (lambda: rg.Banded(torch.zeros(3, 0), ()), ModelError, "D different offsets"),
        (lambda: rg.Banded(torch.zeros(3, 1), (0,), low_rank()), ModelError, "needs a rest"),
        (lambda: rg.Monarch(torch.zeros(2, 2, 2), torch.zeros(2, 2)), ModelError, "A B = K C"),
        (lambda: rg.Monarch(torch.zeros(2, 2, 2), torch.zeros(2, 2, 3)), ModelError, "A B = K C"),
        (lambda: rg.Chain(torch.zeros(2, 3), KINDS["band"]()), ModelError, "needs a transition"),
        (
            lambda: rg.Chain(
                torch.zeros(2, 40_000), rg.Banded(torch.zeros(40_000, 1), (0,))
            ).edge_marginals(),
            BudgetError,
            "a Banded, has 1,600,000,000 entries",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
