"""Recursions by the compiled machine: as by torch, as by enumeration; kept layouts; ranges; NaN."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.tape.models import Segments, Spans, Tags, draw

INF = math.inf
PER_ITEM = {"dims": 2}
TABLES = "transition", "first", "shared", "wide", "both", "ranks", "rules"


@dataclass(frozen=True, eq=False)
class Walk(rg.extend.Recursion):
    """A walk over seven sites of two states by steps of every kind, to ends that an item has."""

    first: torch.Tensor = field(metadata=PER_ITEM)
    shared: torch.Tensor
    ranks: rg.LowRank
    rules: rg.trees.DenseRules
    ends: torch.Tensor = field(metadata={"dims": 1})

    def recursion(self, tape):
        sites = [tape.sites[place] for place in range(7)]

        def reached(place, entering):
            return tape.total((sites[place], entering))

        one = reached(1, tape.link(sites[0], self.first, to=sites[1]))
        two = reached(2, tape.pick(tape.link(one, self.shared), torch.tensor([1, 0]), to=sites[2]))
        three = reached(3, tape.link(tape.merge(one, two), self.shared, to=sites[3]))
        four = reached(4, tape.link(three, self.ranks, to=sites[4]))
        four = tape.total((four, tape.leaf(self.unary.new_full((1, 1, 1), -1.5))))
        parts = [tape.view(part, torch.tensor([[0]])) for part in (four, sites[5])]
        six = reached(6, tape.join(*parts, self.rules, to=sites[6]))
        other = tape.link(tape.link(three, self.shared), self.shared)
        places = [tape.states_as_places(six, 2), tape.sum(other)]
        return tape.total(tape.view(places, tape.flat(self.ends, 1).unsqueeze(-1)))


def walk(*lead, seed=0, dtype=torch.float64):
    """A walk of a batch whose items have places of their own, and none."""
    ends = torch.tensor([[0, 2], [1, -1], [0, 1]])
    parts = [draw(*lead, 7, 2, seed=seed), draw(*lead, 2, 2, seed=seed + 1)]
    parts += [draw(2, 2, seed=seed + 2), draw(2, 2, 2, seed=seed + 3)]
    ranks = rg.LowRank(*(draw(2, 3, seed=seed + own).to(dtype) for own in (4, 5)))
    unary, first, shared, rules = (part.to(dtype) for part in parts)
    own = ends[: lead[0]] if lead else ends[0]
    return Walk(unary, first, shared, ranks, rg.trees.DenseRules(rules), own)


@dataclass(frozen=True, eq=False)
class Items(Tags):
    """A chain, each item of which has a transition of its own."""

    transition: torch.Tensor = field(metadata=PER_ITEM)


@dataclass(frozen=True, eq=False)
class Steps(Tags):
    """A chain with a transition for each step, (*batch, T - 1, N, N)."""

    transition: torch.Tensor = field(metadata={"dims": 3})

    def recursion(self, tape):
        state = tape.sites[0]
        for step in range(1, tape.site_shape[0]):
            site = tape.sites[step]
            link = tape.link(state, self.transition, at=step - 1, to=site)
            state = tape.total((site, link))
        return tape.sum(state)


@dataclass(frozen=True, eq=False)
class Joints(rg.extend.Recursion):
    """Two sites that a third one follows, or the second alone, by labels that are no states."""

    wide: torch.Tensor
    both: torch.Tensor

    def recursion(self, tape):
        sites = [tape.sites[place] for place in range(3)]
        pairs = tape.link(tape.pairs(sites[0], sites[1]), self.both, to=sites[2])
        either = tape.link(tape.concatenate(sites[0], sites[1]), self.wide, to=sites[2])
        return tape.total((sites[2], pairs), (sites[2], either))


def models(dtype=torch.float64):
    """One of each kind."""

    def drawn(*shape, seed=0):
        return draw(*shape, seed=seed).to(dtype)

    lengths = torch.tensor([3, 0])
    hard = drawn(2, 2, seed=1).masked_fill(torch.eye(2) > 0, -INF)
    return {
        "walk": walk(2, dtype=dtype),
        "tags": Tags(drawn(2, 3, 2), drawn(2, 2, seed=1), lengths=lengths),
        "tables of items": Items(drawn(2, 3, 2), drawn(2, 2, 2, seed=1)),
        "hard tags": Tags(drawn(2, 3, 2), hard),
        "steps": Steps(drawn(2, 3, 2), drawn(2, 2, 2, seed=1)),
        "steps of items": Steps(drawn(2, 3, 2), drawn(2, 2, 2, 2, seed=1)),
        "low rank": Tags(drawn(3, 2), rg.LowRank(drawn(2, 3, seed=1), drawn(2, 3, seed=2))),
        "segments": Segments(drawn(2, 3, 2, 2), drawn(2, 2, seed=1), lengths=lengths),
        "spans": Spans(drawn(2, 3, 3, 2), rg.trees.DenseRules(drawn(2, 2, 2, seed=1))),
        "plain spans": Spans(drawn(2, 3, 3, 2), rg.trees.NoRules(), lengths=lengths),
    }


MODELS = models()
each = pytest.mark.parametrize("name", MODELS)


def leaves(model):
    """The tensors that a model's gradients are in."""
    parts = [model.unary]
    for name in TABLES:
        own = getattr(model, name, None)
        if isinstance(own, rg.LowRank):
            parts += [own.log_left, own.log_right]
        elif isinstance(own, rg.trees.Rules):
            parts += own.parts
        elif isinstance(own, torch.Tensor):
            parts.append(own)
    return parts


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


def joints(parts):
    """The log-sum of `Joints`, configuration by configuration."""
    unary, wide, both = parts
    one, two, three = unary.unbind(-2)
    total = (one.unsqueeze(-1) + two.unsqueeze(-2)).flatten(-2).unsqueeze(-1) + both
    alone = torch.cat([one, two], -1).unsqueeze(-1) + wide
    return (torch.cat([total, alone], -2) + three.unsqueeze(-2)).flatten(-2).logsumexp(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pairs_and_labels_beside_each_other(dtype):
    parts = [draw(*shape).to(dtype).requires_grad_() for shape in ((2, 3, 2), (4, 2), (4, 2))]
    for tables in (parts[1:], parts[1:2] * 2):  # two, or one that links both
        model = parts[0], *tables
        found, expected = Joints(*model).log_partition(), joints(model)
        assert_close(found, expected)
        assert_close(*(torch.autograd.grad(value.sum(), model) for value in (found, expected)))
    best = Joints(*parts).max_marginals().amax((1, 2)).double()
    assert_close(
        best, joints([1e5 * part.detach().double() for part in parts]) / 1e5, atol=1e-4, rtol=0
    )


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


def test_answers_are_those_of_enumeration():
    model = MODELS["walk"]
    states = torch.cartesian_prod(*[torch.tensor([-1, 0, 1])] * 7)
    scores = model.score(states.unsqueeze(1).expand(-1, 2, -1))
    assert_close(model.log_partition(), scores.logsumexp(0))
    shares = torch.nn.functional.one_hot(states + 1, 3)[..., 1:].double()
    assert_close(model.marginals(), torch.einsum("sb,stn->btn", scores.softmax(0), shares))
    drawn = model.sample(20, torch.Generator().manual_seed(0))
    assert_close(model.log_prob(drawn), model.score(drawn) - scores.logsumexp(0))


@each
def test_layouts_that_are_kept_give_what_new_ones_give(name, by_torch):
    model = MODELS[name]
    for seed in range(3):
        changes = [draw(*part.shape, seed=seed + 20) for part in leaves(model)]
        given = [part + change for part, change in zip(leaves(model), changes, strict=True)]
        other = rebuilt(model, given)
        assert_close(gradients(other), by_torch(lambda: gradients(other)))  # noqa: B023
        with torch.inference_mode():
            assert_close(rebuilt(model, given).log_partition(), other.log_partition())


def test_layouts_serve_other_batches_lengths_and_places(by_torch):
    asked = [walk(2), walk(3, seed=1), walk(), walk(1, seed=2), walk(2, seed=3)]
    for steps, lengths in ((3, [3, 0, 2]), (4, [1, 4]), (3, [3]), (4, None)):
        batch = (2,) if lengths is None else (len(lengths),)
        given = None if lengths is None else torch.tensor(lengths)
        asked.append(Tags(draw(*batch, steps, 2), draw(2, 2), lengths=given))
        asked.append(Items(draw(*batch, steps, 2), draw(*batch, 2, 2), lengths=given))
        asked.append(Segments(draw(*batch, steps, 2, 2), draw(2, 2), lengths=given))
        asked.append(Spans(draw(*batch, steps, steps, 2), rg.trees.NoRules(), lengths=given))
    for model in [*asked, *asked[:7]]:
        assert_close(gradients(model), by_torch(lambda: gradients(model)))  # noqa: B023


def test_configurations_in_blocks_have_the_scores_of_each(small_blocks):
    unary, transition = draw(2, 5, 3), draw(3, 3, seed=1)
    states = torch.randint(3, (7, 2, 5), generator=torch.Generator().manual_seed(0))
    expected = rg.Chain(unary, transition).score(states)
    small_blocks(2 * 2 * 5 * 3)
    assert_close(Tags(unary, transition).score(states), expected)


@dataclass(frozen=True, eq=False)
class Steered(rg.extend.Recursion):
    """A chain whose numbers say which steps it takes, and whose leaves come of them."""

    transition: torch.Tensor
    other: torch.Tensor
    skips: torch.Tensor

    def recursion(self, tape):
        state, number = tape.sites[0], 0
        for place in range(1, tape.site_shape[0]):
            site, table = tape.sites[place], self.other if place % 2 else self.transition
            gain = tape.leaf((self.transition.sum() * place).reshape(1, 1, 1))
            if self.skips[place] == 1:
                continue
            state = tape.total((site, tape.link(state, table, to=site), gain))
            number += 1
        bonus = tape.leaf(self.unary[..., 0, :1].reshape(-1, 1, 1) * number)
        return tape.total((tape.sum(state), bonus))


def test_recursions_that_their_data_steer(by_torch):
    generator = torch.Generator().manual_seed(0)
    table, other, skips = draw(2, 2, seed=1), draw(2, 2, seed=2), torch.zeros(4)
    same = [(table, table), (table, other), (other, other), (other, table)]
    for turn in range(12):
        # At first the steps stay as they are; then they are others each time.
        skips = torch.randint(2, (4,), generator=generator) if turn > 7 else skips
        model = Steered(draw(2, 4, 2, seed=turn), *same[turn % 4], skips)
        assert_close(gradients_of(model), by_torch(lambda: gradients_of(model)))  # noqa: B023


def gradients_of(model):
    """Gradients of a chain whose numbers are looked at, in its potentials and both tables."""
    parts = [part.clone().requires_grad_() for part in (model.unary, model.transition, model.other)]
    if model.transition is model.other:
        parts[2] = parts[1]
    value = Steered(*parts, model.skips).log_partition()
    found = torch.autograd.grad(value.sum(), parts, create_graph=True, materialize_grads=True)
    again = torch.autograd.grad(found[0].square().sum(), parts[0])
    return value, found, again


@pytest.mark.parametrize("name", ["walk", "tags", "segments", "spans"])
def test_gradients_and_their_gradients_with_hard_zeros(name):
    model = walk() if name == "walk" else MODELS[name]
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


def rebuilt(model, given):
    """The model on other tensors, in the order of `leaves`."""
    rest, changes = list(given), {"unary": given[0]}
    rest.pop(0)
    for name in TABLES:
        own = getattr(model, name, None)
        if isinstance(own, rg.LowRank):
            changes[name] = rg.LowRank(rest.pop(0), rest.pop(0))
        elif isinstance(own, rg.trees.Rules):
            changes[name] = own.with_parts([rest.pop(0) for _ in own.parts])
        elif isinstance(own, torch.Tensor):
            changes[name] = rest.pop(0)
    return replace(model, **changes) if len(changes) > 1 else model.with_unary(given[0])


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


@each
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
        "items": lambda: Items(unary, table.expand(2, 3, 3).clone()),
        "segments": lambda: Segments(unary.unsqueeze(2), table),
        "pairs": lambda: Joints(
            torch.tensor([[[-INF, 0.3], [0.1, -INF], [0.5, -0.5]]]),
            torch.tensor([[0.0, -INF], [low, low], [low, low], [-low, 0.0]]),
            torch.tensor([[-low, -low], [0.0, -low], [0.2, 0.1], [-low, -low]]),
        ),
    }[kind]()  # fmt: skip
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
def test_what_is_not_a_number_stays_none(name, by_torch):
    for part in leaves(MODELS[name]):
        model = MODELS[name]
        own = leaves(model)
        place = next(number for number, other in enumerate(own) if other is part)
        given = [other.clone() for other in own]
        other, fresh = rebuilt(model, given), rebuilt(model, given)  # laid out for torch below
        expected = rebuilt(model, [leaf.clone() for leaf in own]).log_partition()
        spoilt = leaves(other)[place]
        spoilt.view(-1)[-1] = math.nan  # what the last item has, or what all share
        found = other.log_partition()
        free = by_torch(fresh.log_partition).isnan()
        assert bool(found.isnan().any()), place
        assert bool(found[free].isnan().all())
        assert_close(found[~found.isnan()], expected[~found.isnan()])


@dataclass(frozen=True, eq=False)
class Made(rg.extend.Recursion):
    """A chain and a bonus of its own for each item."""

    transition: torch.Tensor
    bonus: torch.Tensor = field(metadata={"dims": 0})

    def recursion(self, tape):
        state = tape.link(tape.sites[0], self.transition, to=tape.sites[1])
        bonus = tape.leaf(tape.flat(self.bonus, 0).reshape(-1, 1, 1))
        return tape.total((state, tape.sites[1], bonus))


def test_numbers_that_a_recursion_makes_may_be_none(by_torch):
    """One item's leaf, or all of a table, is not a number: neither are log Z and its gradient."""
    parts = [draw(3, 2, 2), draw(2, 2), torch.tensor([0.0, math.nan, 1.0]).double()]
    value, found = Made(*parts).log_partition(), gradients(Made(*parts))
    assert value.isnan().tolist() == [False, True, False]
    assert_close(found, by_torch(lambda: gradients(Made(*parts))), equal_nan=True)
    assert bool(found[1][1].isnan().all())
    assert not bool(found[1][::2].isnan().any())
    model = Made(parts[0], parts[1], torch.zeros(3).double())
    parts[1][0, 1] = math.nan
    assert bool(gradients(model)[1].isnan().all())


@pytest.mark.parametrize("wide", [200.0, 5e3])
@pytest.mark.parametrize("states", [3, 40])
@pytest.mark.parametrize("make", [Tags, Steps])
def test_gradients_keep_their_digits_near_large_numbers(make, states, wide):
    """Single precision answers as double does, where large sums leave no digits of it."""
    shape = (states, states) if make is Tags else (4, states, states)
    parts = [(wide * draw(*part)).float() for part in ((2, 5, states), shape)]
    found = gradients(make(*parts))
    expected = gradients(make(*(part.double() for part in parts)))
    assert_close([part.double() for part in found], list(expected), rtol=1e-6, atol=1e-6)


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


def test_one_of_several_tables_is_there():
    for tables, at in (
        (torch.zeros(2, 3, 3), 2),
        (torch.zeros(3, 3), 0),
        (torch.zeros(2, 3, 3), -1),
    ):
        tape = Tags(torch.zeros(3, 3), torch.zeros(3, 3)).to_tape()
        with pytest.raises(rg.errors.ModelError, match=r"needs a tensor \(\*batch, S, N, M\)"):
            tape.link(tape.sites[0], tables, at=at, to=tape.sites[1])


@pytest.mark.parametrize("kind", ["tags", "items", "segments", "spans", "words apart", "ranked"])
def test_threads_and_items_one_by_one_agree(kind):
    lengths = torch.tensor([9, 1, 0, 8, 5])
    trees, rules = draw(5, 9, 9, 24), draw(24, 24, 24, seed=1)
    many = draw(5, 9, 4, 120)
    table, links = draw(120, 120, seed=1), draw(5, 120, 120, seed=1)
    ranks = rg.trees.LowRankRules(*(draw(24, 40, seed=seed) for seed in range(3)))

    def made(item):
        own = None if item is None else slice(item, item + 1)
        some = lengths[own] if own else lengths
        pick = (lambda whole: whole[own]) if own else (lambda whole: whole)
        return {
            "tags": lambda: Tags(pick(many[:, :, 0]), table, lengths=some),
            "items": lambda: Items(pick(many[:, :, 0]), pick(links), lengths=some),
            "segments": lambda: Segments(pick(many), table, lengths=some),
            "spans": lambda: rg.Hypertree(pick(trees), rg.trees.DenseRules(rules), lengths=some),
            "words apart": lambda: rg.Hypertree(
                pick(trees), rg.trees.DenseRules(rules[:20]), preterminals=4, lengths=some
            ),
            "ranked": lambda: rg.Hypertree(pick(trees), ranks, lengths=some),
        }[kind]()

    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(gradients(made(None)))
    finally:
        torch.set_num_threads(before)
    assert_close(*found)
    for item in range(5):
        value, single, *_ = gradients(made(item))
        assert_close((value, single), (found[0][0][item, None], found[0][1][item, None]))


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


FEW = {"tags", "tables of items", "steps", "steps of items", "hard tags", "low rank", "plain tags"}


@each
def test_choices_are_those_of_torch(name, by_torch):
    model = MODELS[name]

    def asked():
        fresh = replace(model)
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
