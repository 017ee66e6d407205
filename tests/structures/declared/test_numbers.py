"""Declared structures by compiled code: as by torch, as by enumeration; ranges of scores; NaN."""

import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.declared.models import (
    RANKS,
    Joints,
    PlainSpans,
    RankedSpans,
    Segments,
    Spans,
    Steps,
    Tags,
    agree_by_threads_and_items,
    draw,
    leaves,
    rebuilt,
)

INF = math.inf


def models(dtype=torch.float64):
    """One of each kind."""

    def drawn(*shape, seed=0):
        return draw(*shape, seed=seed).to(dtype)

    lengths = torch.tensor([3, 0])
    hard = drawn(2, 2, seed=1).masked_fill(torch.eye(2) > 0, -INF)
    return {
        "tags": Tags(drawn(2, 3, 2), drawn(2, 2, seed=1), lengths=lengths),
        "tables of items": Tags(drawn(2, 3, 2), drawn(2, 2, 2, seed=1)),
        "hard tags": Tags(drawn(2, 3, 2), hard),
        "steps": Steps(drawn(2, 3, 2), drawn(2, 2, 2, seed=1)),
        "steps of items": Steps(drawn(2, 3, 2), drawn(2, 2, 2, 2, seed=1)),
        "segments": Segments(drawn(2, 3, 2, 2), drawn(2, 2, seed=1), lengths=lengths),
        "spans": Spans(drawn(2, 3, 3, 2), drawn(2, 2, 2, seed=1)),
        "ranked spans": RankedSpans(drawn(2, 3, 3, 2), *(part.to(dtype) for part in RANKS)),
        "plain spans": PlainSpans(drawn(2, 3, 3, 2), lengths),
        "joints": Joints(drawn(2, 3, 2), drawn(2, 2, 2), drawn(2, 2, seed=1), drawn(2, 2, seed=2)),
    }


MODELS = models()
each = pytest.mark.parametrize("name", MODELS)


def gradients(model):
    """Log Z, and its gradient in all tensors."""
    parts = leaves(model)
    try:
        for part in parts:
            part.requires_grad_()
        value = model.log_partition()
        possible = torch.where(value == -INF, 0.0, value).sum()
        found = torch.autograd.grad(possible, parts, materialize_grads=True)
    finally:
        for part in parts:
            part.requires_grad_(requires_grad=False)
    return value.detach(), *found


def answers(model):
    """Answers of every kind that do not depend on how ties and draws fall."""
    drawn, own = model.sample(5, torch.Generator().manual_seed(0)), gradients(model)
    with torch.no_grad():
        return [
            model.log_partition(), *own, model.marginals(), model.entropy(),
            model.max_marginals(), model.score(model.mode()), model.k_best(3).scores,
            model.log_prob(drawn) - model.score(drawn),
        ]  # fmt: skip


@pytest.mark.long
@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_answers_are_those_of_torch(name, dtype, by_torch):
    model = models(dtype)[name]
    assert_close(answers(model), by_torch(lambda: answers(model)))


@each
def test_objects_of_one_program_answer_for_themselves(name, by_torch):
    model = MODELS[name]
    for seed in range(3):
        changes = [draw(*part.shape, seed=seed + 20) for part in leaves(model)]
        given = [part + change for part, change in zip(leaves(model), changes, strict=True)]
        other = rebuilt(model, given)
        assert_close(gradients(other), by_torch(lambda: gradients(other)))  # noqa: B023
        with torch.inference_mode():
            assert_close(rebuilt(model, given).log_partition(), other.log_partition())


def test_configurations_in_blocks_have_the_scores_of_each(small_blocks):
    unary, transition = draw(2, 5, 3), draw(3, 3, seed=1)
    states = torch.randint(3, (7, 2, 5), generator=torch.Generator().manual_seed(0))
    expected = rg.Chain(unary, transition).score(states)
    small_blocks(2 * 2 * 5 * 3)
    assert_close(Tags(unary, transition).score(states), expected)


@pytest.mark.parametrize("name", ["joints", "tags", "segments", "spans"])
def test_gradients_and_their_gradients_with_hard_zeros(name):
    model = MODELS[name]
    unary = model.unary.clone()
    unary.view(-1)[::5] = -INF
    given = [unary, *(part.clone() for part in leaves(model)[1:])]
    for part in given[1:]:
        part.view(-1)[-1] = -INF

    def log_z(*given):
        return torch.where((own := rebuilt(model, given).log_partition()) > -INF, own, 0.0)

    inputs = [part.requires_grad_() for part in given]  # differences leave -inf as it is
    assert torch.autograd.gradcheck(log_z, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, inputs, fast_mode=True)


@each
def test_what_is_impossible_has_no_gradient(name, by_torch):
    model = MODELS[name]
    unary = model.unary.clone()
    unary[..., 0] = -INF
    if unary.ndim > len(model.unary.shape) - 1 and model.batch_shape:
        unary[0] = -INF
    hard = model.with_unary(unary)
    value, *found = gradients(hard)
    assert_close((value, *found), by_torch(lambda: gradients(hard)))
    assert not any(bool(part.isnan().any()) for part in found)
    assert bool((found[0][unary == -INF] == 0).all())
    nothing = model.with_unary(torch.full_like(unary, -INF))
    value, *found = gradients(nothing)
    lengths = getattr(model, "lengths", None)
    empty = torch.zeros_like(value, dtype=torch.bool) if lengths is None else lengths == 0
    assert_close(value, torch.where(empty, 0.0, torch.full_like(value, -INF)))
    assert not any(bool(part.any()) for part in found)


@each
@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 1000.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_single_precision_holds_at_any_spread(name, spread, offset):
    model = models(torch.float32)[name]
    scaled = rebuilt(model, [spread * part for part in leaves(model)])
    scaled = scaled.with_unary(scaled.unary + offset)
    wide = rebuilt(scaled, [part.double() for part in leaves(scaled)])
    compared(scaled, wide)


def compared(narrow, wide):
    """Log Z to five digits of what its scores add up to; marginals as far as these tell them."""
    found, *parts = gradients(narrow)
    expected, *others = gradients(wide)
    least = 1e-5 * wide.unary[wide.unary > -INF].abs().max().clamp(min=1)
    assert_close(found.double(), expected, rtol=1e-5, atol=float(least))
    errors = float(least) * 10
    for part, other in zip(parts, others, strict=True):
        assert bool(part.isfinite().all())
        assert_close(part.double(), other, rtol=1e-3, atol=1e-4 + min(1.0, errors))


@pytest.mark.parametrize("kind", ["tags", "segments"])
def test_single_precision_holds_where_values_grow(kind):
    """Marginals have their digits however large log Z is: here some 2,000 nats."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    model = {
        "tags": lambda: Tags(drawn(200, 3), drawn(3, 3)),
        "segments": lambda: Segments(drawn(200, 2, 3), drawn(3, 3)),
    }[kind]()
    model = model.with_unary(model.unary + 8.0)
    _, *found = gradients(model)
    _, *expected = gradients(rebuilt(model, [part.double() for part in leaves(model)]))
    for part, other in zip(found, expected, strict=True):
        assert_close(part.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ranked spans"])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_modes_in_single_precision_are_the_best(name, spread):
    model = models(torch.float32)[name]
    scaled = rebuilt(model, [spread * part for part in leaves(model)])
    wide = rebuilt(scaled, [part.double() for part in leaves(scaled)])
    mode = scaled.mode()
    if torch.is_tensor(mode):
        assert_close(wide.score(mode), wide.k_best(1).scores[0], rtol=1e-5, atol=1e-6 * spread)


@pytest.mark.parametrize("lengths", [None, torch.tensor([1000, 700])])
def test_modes_keep_their_digits_where_values_grow(lengths):
    unary = torch.randn(2, 1000, 3, generator=torch.Generator().manual_seed(0)) + 8.0
    model = Tags(unary, draw(3, 3).float(), lengths=lengths)
    wide = rebuilt(model, [part.double() for part in leaves(model)])
    assert_close(wide.score(model.mode()), wide.score(wide.mode()), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("low", [-1e2, -1e3, -1e5])
@pytest.mark.parametrize("kind", ["tags", "items", "segments", "pairs"])
def test_faint_entries_are_exact(kind, low):
    """All that is possible goes by entries that are tiny beside the largest of their column."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    unary, table = drawn(2, 4, 3), drawn(3, 3)
    # Those of state 0 lead by far in all columns, and nothing is in state 0.
    unary[..., 0], table[0] = -INF, -low
    model = {
        "tags": lambda: Tags(unary, table),
        "items": lambda: Tags(unary, table.expand(2, 3, 3).clone()),
        "segments": lambda: Segments(unary.unsqueeze(2), table),
        "pairs": lambda: Joints(
            torch.tensor([[[-INF, 0.3], [0.1, -INF], [0.5, -0.5]]]),
            torch.tensor([[[-low, -low], [0.0, -low]], [[0.2, 0.1], [-low, -low]]]),
            torch.tensor([[0.0, -INF], [low, low]]),
            torch.tensor([[low, low], [-low, 0.0]]),
        ),
    }[kind]()
    compared(model, rebuilt(model, [part.double() for part in leaves(model)]))


def test_shares_of_faint_entries_reach_the_table():
    """A column whose weight all comes from an entry that a scaled product would lose."""
    unary = torch.tensor([[0.0, -500.0], [-600.0, 0.0]])
    table = torch.tensor([[0.0, -400.0], [0.0, 90.0]])
    value, marginals, shares = gradients(Tags(unary, table))
    expected = gradients(Tags(unary.double(), table.double()))
    assert_close(
        (value, marginals, shares), tuple(part.float() for part in expected), rtol=1e-4, atol=1e-4
    )


@each
def test_what_is_not_a_number_is_refused_by_its_name(name):
    model = MODELS[name]
    names = [name for name, one in model.declared if isinstance(one, rg.Input)]
    for place, wrong in enumerate(names):
        given = [part.clone() for part in leaves(model)]
        given[place].view(-1)[-1] = math.nan
        with pytest.raises(rg.errors.ModelError, match=f"{wrong} needs .* got NaN"):
            rebuilt(model, given)


@pytest.mark.parametrize("spread", [3.0, 12.0, 30.0])
@pytest.mark.parametrize("make", [Tags, Steps])
def test_gradients_hold_no_subnormal_numbers(make, spread):
    """Products of matrices that hold some take a hundred times as long."""
    shape = (50, 50) if make is Tags else (7, 50, 50)
    model = make(*((spread * draw(*part)).float() for part in ((8, 50), shape)))
    _, *found = gradients(model)
    for part in found:
        assert not bool(((part != 0) & (part.abs() < torch.finfo(part.dtype).tiny)).any())


@pytest.mark.parametrize("wide", [200.0, 5e3])
@pytest.mark.parametrize("states", [3, 40])
@pytest.mark.parametrize("make", [Tags, Steps])
def test_gradients_keep_their_digits_near_large_numbers(make, states, wide):
    """Single precision answers as double does, to the digits that its scores have."""
    shape = (states, states) if make is Tags else (4, states, states)
    parts = [(wide * draw(*part)).float() for part in ((2, 5, states), shape)]
    found = gradients(make(*parts))
    expected = gradients(make(*(part.double() for part in parts)))
    assert_close([part.double() for part in found], list(expected), rtol=0, atol=1e-6 * wide)


@pytest.mark.parametrize("lengths", [None, [6, 0, 3]])
def test_gradients_of_wide_chains_may_be_asked_twice(lengths):
    """Rows of links are made again in place of values, where products lost some entries, too."""
    given = [50 * draw(3, 6, 40), 20 * draw(40, 40, seed=1)]
    given[1][::2, ::3] -= 500
    lengths = None if lengths is None else torch.tensor(lengths)

    def gradients(dtype):
        inputs = [part.to(dtype).requires_grad_() for part in given]
        log_z = rg.Chain(*inputs, lengths=lengths).log_partition().sum()
        return [torch.autograd.grad(log_z, inputs, retain_graph=True) for _ in range(3)]

    first, *others = gradients(torch.float32)
    for other in others:
        assert_close(other, first, rtol=0, atol=0)
    assert_close(
        [part.double() for part in first], list(gradients(torch.float64)[0]), rtol=1e-3, atol=1e-4
    )


def test_threads_share_the_products_of_one_item():
    parts = draw(1, 3, 400), draw(400, 400, seed=1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(gradients(Tags(*parts)))
    finally:
        torch.set_num_threads(before)
    assert_close(*found)


@pytest.mark.parametrize("kind", ["tags", "items", "segments", "spans", "ranked"])
def test_threads_and_items_one_by_one_agree(kind):
    lengths = torch.tensor([9, 1, 0, 8, 5])
    trees, rules = draw(5, 9, 9, 24), draw(24, 24, 24, seed=1)
    many = draw(5, 9, 4, 120)
    table, links = draw(120, 120, seed=1), draw(5, 120, 120, seed=1)
    ranks = [draw(24, 40, seed=seed) for seed in range(3)]

    def made(item):
        own = None if item is None else slice(item, item + 1)
        some = lengths[own] if own else lengths
        pick = (lambda whole: whole[own]) if own else (lambda whole: whole)
        return {
            "tags": lambda: Tags(pick(many[:, :, 0]), table, lengths=some),
            "items": lambda: Tags(pick(many[:, :, 0]), pick(links), lengths=some),
            "segments": lambda: Segments(pick(many), table, lengths=some),
            "spans": lambda: Spans(pick(trees), rules, some),
            "ranked": lambda: RankedSpans(pick(trees), *ranks, some),
        }[kind]()

    agree_by_threads_and_items(lambda item: gradients(made(item)), len(lengths))


@pytest.mark.parametrize("low", [0.0, -1e3])
@pytest.mark.parametrize("make", [Tags, Steps])
def test_tables_of_items_serve_all_replicates(make, low):
    """Dims before those of the tables share them, as if each had one of the same numbers."""
    shape = (40, 40) if make is Tags else (3, 40, 40)
    unary, tables = draw(3, 2, 4, 40), draw(2, *shape, seed=1)
    tables[..., 0] += low  # entries near underflow
    parts = make(unary, tables.clone()), make(unary, tables.expand(3, 2, *shape).contiguous())

    def asked(model):
        own = model.unary.requires_grad_(), model.transition.requires_grad_()
        value = model.log_partition()
        grad = torch.autograd.grad(value.square().sum(), own, create_graph=True)
        turned = torch.autograd.grad((grad[0].square().sum(), (grad[1] * tables).sum()), own)
        table = (part.sum_to_size(tables.shape) for part in (grad[1].detach(), turned[1]))
        answers = model.entropy(), model.max_marginals(), model.mode()
        return [part.detach() for part in (value, grad[0], turned[0], *table, *answers)]

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert_close(*map(asked, parts))
    finally:
        torch.set_num_threads(before)


def tables_of(model):
    """The scores of all configurations, by number; and their states."""
    shape = model.unary.shape[model.unary.ndim - model._dims - 1 :]
    count = math.prod(shape[:-1])
    states = torch.cartesian_prod(*[torch.arange(-1, shape[-1])] * count).reshape(-1, *shape[:-1])
    lead = model.unary.shape[: model.unary.ndim - len(shape)]
    wide = states.reshape(len(states), *(1,) * len(lead), *shape[:-1]).expand(
        -1, *lead, *shape[:-1]
    )
    return model.score(wide), states


FEW = {"tags", "tables of items", "steps", "steps of items", "hard tags"}


@each
def test_choices_are_those_of_torch(name, by_torch):
    model = MODELS[name]

    def asked():
        fresh = rebuilt(model, leaves(model))
        modes, best = fresh.mode(), fresh.k_best(5)
        return (
            fresh.score(modes) if torch.is_tensor(modes) else None,
            best.scores,
            (fresh.max_marginals()),
        )

    for ours, theirs in zip(asked(), by_torch(asked), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_close(ours, theirs)


@pytest.mark.parametrize("name", sorted(FEW & set(MODELS)))
def test_draws_and_the_best_are_those_of_enumeration(name):
    model = MODELS[name]
    scores, states = tables_of(model)
    flat = scores.reshape(len(states), -1)
    best = model.k_best(4).scores.reshape(4, -1)
    assert_close(best, flat.sort(0, descending=True).values[:4])
    count = 4000
    drawn = model.sample(count, torch.Generator().manual_seed(3)).reshape(count, flat.shape[1], -1)
    size = model.unary.shape[-1] + 1
    weights = size ** torch.arange(states[0].numel() - 1, -1, -1)
    for item in range(flat.shape[1]):
        chances = flat[:, item].softmax(0)
        found = ((drawn[:, item] + 1) * weights).sum(-1).bincount(minlength=len(states))
        assert int(found[chances == 0].sum()) == 0
        expected = chances * count
        some = expected > 0
        excess = ((found - expected)[some] ** 2 / expected[some]).sum()
        assert float(excess) < 2.0 * int(some.sum()) + 30.0  # chi-square, far beyond its mean


def test_draws_depend_on_the_seed_alone():
    model = MODELS["spans"]

    def drawn(seed, count=50):
        return model.sample(count, torch.Generator().manual_seed(seed))

    before = torch.get_num_threads()
    alone = drawn(1)
    try:
        torch.set_num_threads(2)
        assert torch.equal(drawn(1), alone)
    finally:
        torch.set_num_threads(before)
    assert not torch.equal(drawn(2), alone)
