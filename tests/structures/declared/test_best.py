"""The k best derivations: lists of the nodes asked for, and torch's lists of all entries."""

import pytest
import torch

import rdpgraph as rg
from tests.structures.declared.models import PAIRS, Segments, Spans, Tags, draw, leaves, rebuilt


def recursions():
    """Structures, and those on two of the states of each site, one of them twice."""
    for name, (ours, _) in PAIRS.items():
        yield name, ours
        shape = (*ours.unary.shape[:-1], 3)
        states = torch.tensor([0, 1, 1]).expand(shape)
        yield f"{name}, kept", ours.restrict(states, draw(*shape, seed=11))
    yield "alignment", rg.Alignment(draw(2, 3, 3, 3, seed=12))
    yield "bitext", rg.Bitext(draw(2, 3, 3, 3, 3, 2, seed=13), rg.trees.DenseRules(draw(2, 2, 2)))


@pytest.mark.parametrize("name", RECURSIONS := dict(recursions()))
def test_both_ways_find_the_same_lists(name, by_torch):
    model, k = RECURSIONS[name], 7
    ours, theirs = model.k_best(k).scores, by_torch(lambda: model.k_best(k)).scores
    torch.testing.assert_close(ours, theirs)
    assert bool((ours[:-1] >= ours[1:] - 1e-9).all())


TABLES = {
    "tags": Tags(draw(3, 4, 3), draw(3, 3, seed=1), lengths=torch.tensor([4, 0, 2])),
    "tags, tables of items": Tags(draw(3, 4, 3), draw(3, 3, 3, seed=1)),
    "segments": Segments(draw(3, 4, 2, 2), draw(2, 2, seed=1), lengths=torch.tensor([4, 0, 2])),
    "spans": Spans(draw(3, 4, 4, 2), draw(2, 2, 2, seed=1)),
    "one site": Tags(draw(3, 1, 3), draw(3, 3, seed=1)),
    "one state": Segments(draw(3, 1, 1, 1), draw(1, 1, seed=1)),
}


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("name", TABLES)
def test_scores_are_those_of_the_configurations_and_so_are_their_gradients(name, k, by_torch):
    model = TABLES[name]
    unary = model.unary.index_fill(-1, torch.tensor(0), -torch.inf) if k > 1 else model.unary
    unary = unary.clone().requires_grad_()
    table = leaves(model)[1].clone().requires_grad_()
    fresh = rebuilt(model, [unary, table])
    found = fresh.k_best(k)
    there = found.scores > -torch.inf
    configurations, _ = vars(found).values()
    again = torch.where(there, fresh.score(configurations), -torch.inf)
    by_lists = by_torch(lambda: fresh.k_best(k)).scores
    torch.testing.assert_close(found.scores, again)
    torch.testing.assert_close(found.scores, by_lists)
    weights = draw(*there.shape, seed=5)
    wanted, *others = (
        torch.autograd.grad((scores * weights)[there].sum(), (unary, table), allow_unused=True)
        for scores in (again, found.scores, by_lists)
    )
    for gradients in others:
        for ours, theirs in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_configuration_of_two_derivations_is_listed_with_the_score_of_each(by_torch):
    class Either(rg.Recurrence):
        """One of two chains, each with a transition of its own."""

        unary, transition, other = rg.Input("T N"), rg.Input("N N"), rg.Input("N N")
        rules = """
            a[0, n] += unary[0, n]
            a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
            b[0, n] += unary[0, n]
            b[t, n] += b[t-1, m] * other[m, n] * unary[t, n]
            goal    += a[T-1, n] + b[T-1, n]
        """

    unary, table = draw(3, 2), draw(2, 2, seed=1)
    one, other = Tags(unary, table).k_best(8).scores, Tags(unary, table / 2).k_best(8).scores
    both = torch.cat([one, other]).sort(descending=True).values
    either = Either(unary, table, table / 2)
    torch.testing.assert_close(either.k_best(16).scores, both)
    torch.testing.assert_close(by_torch(lambda: either.k_best(16)).scores, both)
