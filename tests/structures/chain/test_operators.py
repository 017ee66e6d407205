"""Transitions applied without a table: bands, diagonals beside low rank, products of blocks."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
    "short blocks": lambda: rg.Monarch(draw(4, 1, 2), draw(2, 4, 2, seed=1)),
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


# Blocks of other shapes differ in their products alone, which the tests around this one compare.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.long] * (kind[-7:] == " blocks")) for kind in KINDS],
)
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


# Blocks that are cut to their greatest common divisor, and bands of all offsets of nine states.
WIDE = {
    "blocks of 3 and 2": lambda: rg.Monarch(draw(2, 3, 3), draw(3, 2, 2, seed=1)),
    "blocks of 4 and 6": lambda: rg.Monarch(draw(3, 4, 2), draw(2, 3, 6, seed=1)),
    "bands": lambda: rg.Banded(draw(9, 17), [*range(8, -9, -1)]),
    "bands of each step": lambda: rg.Banded(draw(2, 9, 17), [*range(-8, 9)]),
    "bands and one rank": lambda: rg.Banded(
        draw(2, 1, 17).expand(2, 9, 17), [*range(-8, 9)],
        rg.LowRank(draw(2, 9, 1, seed=2), draw(9, 1, seed=3)),
    ),
    "bands and ranks": lambda: rg.Banded(
        draw(9, 17), [*range(-8, 9)], rg.LowRank(*draw(2, 9, 2, seed=2))
    ),
}  # fmt: skip
each_wide = pytest.mark.parametrize("kind", WIDE)


@pytest.mark.long
@each_wide
def test_chains_of_wide_kinds_have_every_answer_of_enumeration(kind):
    potential = WIDE[kind]()
    unary = draw(2, 3, potential.shape[-1], seed=5)
    unary[0, 1, 2] = -math.inf
    check_structure(rg.Chain(unary, potential, lengths=torch.tensor([3, 2])))


@each_wide
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_of_wide_kinds_are_those_of_tables(kind, dtype):
    given = WIDE[kind]()
    tensors = [part.to(dtype, copy=True).contiguous() for part in given.tensors]
    tensors[0].reshape(-1)[7:9] = -math.inf
    own = [part.requires_grad_() for part in tensors]
    unary, lengths = draw(2, 4, given.shape[-1], seed=6).to(dtype), torch.tensor([4, 2])
    unary[1, 1, 2] = -math.inf
    if given.lead(2):
        unary, lengths = unary[:, :3], lengths.clamp(max=3)
    weights = [draw(*unary.shape, seed=seed).to(dtype) for seed in (7, 8)]

    def asked(potential):
        chain = rg.Chain(unary, potential, lengths=lengths)
        found = chain.log_partition(), chain.entropy(), chain.filtered(), chain.marginals()
        total = found[0].sum() + found[1].sum()
        total += sum((w * part).sum() for w, part in zip(weights, found[2:], strict=True))
        firsts = torch.autograd.grad(total, own, retain_graph=True)
        firsts += torch.autograd.grad(chain.log_partition().sum(), own, create_graph=True)
        turns = sum((draw(*one.shape).to(dtype) * one).sum() for one in firsts[len(own) :])
        best = chain.k_best(5).scores, chain.score(chain.mode()), chain.max_marginals()
        return [*found, *firsts, *torch.autograd.grad(turns, own), *best]

    found, expected = (asked(given.replaced(own)), asked(given.replaced(own).table(2)))
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected, **close)


@each_wide
def test_draws_of_wide_kinds_are_as_frequent_as_their_sequences(kind):
    potential = WIDE[kind]()
    chain = rg.Chain(draw(3, potential.shape[-1], seed=8), potential)
    drawn = chain.sample(20_000, torch.Generator().manual_seed(0))
    often = torch.nn.functional.one_hot(drawn, potential.shape[-1]).double().mean(0)
    torch.testing.assert_close(often, chain.marginals(), atol=0.015, rtol=0)


@each_wide
def test_wide_kinds_are_summed_by_compiled_code(kind):
    """The number of torch's operations does not grow with the 3 or 40 steps of a chain."""

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    given = WIDE[kind]()
    counts = []
    for total in (3, 40):
        potential = given
        if given.lead(2):
            rows = [
                part if part.ndim == 2 else part[..., :1, :, :].repeat_interleave(total - 1, -3)
                for part in given.tensors
            ]
            potential = given.replaced(rows)
        unary = draw(2, total, given.shape[-1]).requires_grad_()
        with Counted() as counted:
            chain = rg.Chain(unary, potential)
            torch.autograd.grad(chain.log_partition().sum(), unary)
            chain.sample(3, torch.Generator().manual_seed(0))
            if potential.maximises:
                chain.mode()
        counts.append(counted.count)
    assert abs(counts[0] - counts[1]) < 20


# Two items of three steps, with a potential for each step, for each item and step, or parts alike.
STEPS = {
    "bands": lambda: rg.Banded(draw(2, 4, 3), (-1, 0, 2)),
    "bands of each item": lambda: rg.Banded(draw(2, 2, 4, 1), (1,)),
    "diagonal and one rank": lambda: rg.Banded(
        draw(2, 1, 1).expand(2, 4, 1), (0,), rg.LowRank(draw(2, 4, 1, seed=2), draw(4, 1, seed=3))
    ),
    "copying": lambda: rg.Banded(
        draw(2, 1, 1).expand(2, 4, 1), (0,),
        rg.LowRank(draw(2, 1, 1, seed=2).expand(2, 4, 1), torch.zeros(1, 1).double().expand(4, 1)),
    ),
    "bands and one rank": lambda: rg.Banded(
        draw(4, 2), (1, -2), rg.LowRank(draw(4, 1, seed=2), draw(2, 2, 4, 1, seed=3))
    ),
    "diagonal and low rank": lambda: rg.Banded(
        draw(2, 1, 4, 1).expand(2, 2, 4, 1), (0,),
        rg.LowRank(draw(2, 4, 2, seed=2), draw(2, 4, 2, seed=3)),
    ),
}  # fmt: skip
each_step = pytest.mark.parametrize("kind", STEPS)


@pytest.mark.long
@each_step
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 2]), torch.tensor([0, 1])])
def test_potentials_of_each_step_have_every_answer_of_enumeration(kind, lengths):
    unary, potential = draw(2, 3, 4, seed=5), STEPS[kind]()
    unary[0, 1, 2] = -math.inf
    full = potential.replaced([part.clone() for part in potential.tensors])
    check_potential(full, 2)
    check_structure(chain := rg.Chain(unary, full, lengths=lengths))
    # Values that are one in memory for all states are read once.
    shared = rg.Chain(unary, potential, lengths=lengths)
    for one, other in ((shared, chain), (shared, rg.Chain(unary, full.table(2), lengths=lengths))):
        torch.testing.assert_close(one.log_partition(), other.log_partition())
        torch.testing.assert_close(one.marginals(), other.marginals())
        torch.testing.assert_close(one.max_marginals(), other.max_marginals())
        assert torch.equal(one.mode(), other.mode())


@each_step
@pytest.mark.parametrize("route", ["compiled", "torch"])
def test_answers_of_each_step_are_those_of_tables(kind, route, by_torch):
    given = STEPS[kind]()
    tensors = [part.clone() for part in given.tensors]
    tensors[0].reshape(-1)[:1] = -math.inf
    own = [part.requires_grad_() for part in tensors]
    unary, lengths = draw(2, 3, 4, seed=6), torch.tensor([3, 2])

    def asked(potential):
        chain = rg.Chain(unary, potential, lengths=lengths)
        found = chain.log_partition(), chain.entropy(), chain.filtered(), chain.marginals()
        weights = sum((draw(*part.shape) * part).sum() for part in found)
        gradients = torch.autograd.grad(weights, own)
        best = chain.k_best(9).scores, chain.score(chain.mode()), chain.max_marginals()
        few = chain.restrict(torch.arange(2).expand(2, 3, 2), torch.zeros(2, 3, 2).double())
        return [*found, *gradients, *best, few.log_partition()]

    potential = given.replaced(own)
    expected = asked(potential.table(2))
    found = by_torch(lambda: asked(potential)) if route == "torch" else asked(potential)
    torch.testing.assert_close(found, expected)
    singles = [
        rg.Chain(unary[i], potential.table(2).expand(2, 2, 4, 4)[i], lengths=lengths[i])
        for i in range(2)
    ]
    each = torch.stack([single.log_partition() for single in singles])
    torch.testing.assert_close(found[0], each)


def test_the_k_best_are_all_there_where_all_tie():
    """Each state is among the best: none may be left out."""
    nothing = torch.zeros(4, 1)
    for rest in (rg.LowRank(nothing, nothing), rg.LowRank(nothing, nothing + 1)):
        chain = rg.Chain(torch.zeros(2, 3, 4), rg.Banded(nothing - math.inf, (0,), rest))
        best = chain.k_best(70)
        assert len({tuple(row) for row in best.states[:64, 1].tolist()}) == 64
        assert bool((best.states[64:] == -1).all())
        torch.testing.assert_close(best.scores[:64], chain.score(best.states[:64]))


def test_rates_of_recombination_are_learned():
    """A chain that copies, as Li and Stephens wrote it: stay, or jump to any haplotype."""
    unary, rates = draw(6, 5), torch.rand(5, generator=torch.Generator().manual_seed(1)).double()
    unary[3, 1:] = -math.inf

    def log_z(rates):
        stay, jump = -rates, torch.log(-torch.expm1(-rates)) - math.log(5)
        left = jump.reshape(5, 1, 1).expand(5, 5, 1)
        rest = rg.LowRank(left, torch.zeros(5, 1).double())
        return rg.Chain(unary, rg.Banded(stay.reshape(5, 1, 1).expand(5, 5, 1), (0,), rest))

    def by_hand(rates):
        alpha = unary[0].exp()
        for rate, row in zip(rates, unary[1:], strict=True):
            alpha = (alpha * torch.exp(-rate) + alpha.sum() * -torch.expm1(-rate) / 5) * row.exp()
        return alpha.sum().log()

    rates.requires_grad_()
    torch.testing.assert_close(log_z(rates).log_partition(), by_hand(rates))
    gradients = [torch.autograd.grad(ask, rates) for ask in (
        log_z(rates).log_partition(), by_hand(rates)
    )]  # fmt: skip
    torch.testing.assert_close(*gradients)
    torch.autograd.gradgradcheck(lambda rates: log_z(rates).log_partition(), rates)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_chains_of_steps_keep_their_digits(dtype):
    total, states = 3000, 6
    generator = torch.Generator().manual_seed(0)
    rates = torch.rand(total - 1, generator=generator, dtype=torch.float64) * 0.1
    unary = 30 * torch.rand(total, states, generator=generator, dtype=torch.float64)
    left = (torch.log(-torch.expm1(-rates)) - math.log(states)).reshape(-1, 1, 1)
    stay = -rates.reshape(-1, 1, 1)
    wide = rg.Banded(
        stay.expand(-1, states, 1), (0,),
        rg.LowRank(left.expand(-1, states, 1), torch.zeros(states, 1).double()),
    )  # fmt: skip
    expected = rg.Chain(unary, wide.table(2))
    found = rg.Chain(unary.to(dtype), wide.replaced([part.to(dtype) for part in wide.tensors]))
    # Potentials were rounded to the type, so that scores differ by more than sums do.
    close = {"rtol": 1e-4, "atol": 2e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found.marginals().double(), expected.marginals(), **close)
    torch.testing.assert_close(found.log_partition().double(), expected.log_partition(), **close)
    assert (found.mode() == expected.mode()).double().mean() > 0.999


def test_drawn_sequences_of_each_step_are_as_likely_as_said():
    chain = rg.Chain(draw(3, 4), STEPS["diagonal and one rank"]())
    drawn = chain.sample(20_000, torch.Generator().manual_seed(0))
    shares = torch.nn.functional.one_hot(drawn, 4).double().mean(0)
    assert (shares - chain.marginals()).abs().amax() < 0.02
    pairs = torch.nn.functional.one_hot(drawn[:, 0] * 4 + drawn[:, 1], 16).double().mean(0)
    assert (pairs - chain.edge_marginals()[0].flatten()).abs().amax() < 0.02


def test_hidden_markov_models_take_transitions_of_each_step():
    start, emission = torch.zeros(4).double().log_softmax(0), draw(4, 3).log_softmax(1)
    seen = torch.tensor([0, 2, -1, 1])
    rest = rg.LowRank(*draw(2, 4, 1))
    steps = rg.Banded.normalised(draw(3, 4, 2), (0, 1), rest)
    chain = rg.Chain.hmm(start, steps, emission, seen)
    torch.testing.assert_close(steps.row_totals(), torch.zeros(3, 4).double())
    dense = rg.Chain.hmm(start, steps.table(2), emission, seen)
    torch.testing.assert_close(chain.log_partition(), dense.log_partition())
    with pytest.raises(ModelError, match="sum to one"):
        rg.Chain.hmm(start, draw(3, 4, 4), emission, seen)
    with pytest.raises(ModelError, match="needs a transition"):
        rg.Chain.hmm(start, steps, emission, seen[:3])


def test_many_states_of_each_step_are_answered_without_a_table():
    states, total = 20_000, 4
    stay = draw(total - 1, 1, 1).expand(-1, states, 1)
    left = draw(total - 1, 1, 1, seed=1).expand(-1, states, 1)
    rest = rg.LowRank(left, draw(states, 1, seed=2))
    chain = rg.Chain(draw(total, states, seed=3), rg.Banded(stay, (0,), rest))
    best = chain.k_best(2)
    torch.testing.assert_close(chain.score(best.states), best.scores)
    torch.testing.assert_close(chain.score(chain.mode()), best.scores[0])
    torch.testing.assert_close(chain.max_marginals().amax(1), best.scores[0].expand(total))
    torch.testing.assert_close(chain.marginals().sum(1), torch.ones(total).double())


def test_entropies_and_filtered_states_of_bands_form_no_table():
    """With 50,000 states, of which a table of all pairs takes 20 GB."""
    states, total = 50_000, 3
    unary, half = draw(total, states, seed=3), states // 2
    left, right = draw(total - 1, states, 1, seed=1), draw(states, 1, seed=2)
    absent = torch.full((total - 1, states, 1), -math.inf, dtype=torch.float64)
    copies = absent.clone()
    copies[:, half:] = 1.0
    for stay in (absent, copies):
        for part in (left, right):
            part[..., half:, :] = -math.inf if stay is copies else part[..., half:, :]
        chain = rg.Chain(unary, rg.Banded(stay, (0,), rg.LowRank(left, right)))
        # Each part has steps that are independent, or that all stay: its entropy has a closed form.
        free = unary[:, :half] if stay is copies else unary
        free = torch.stack([
            free[at]
            + (left[at, : free.shape[1], 0] if at < total - 1 else 0)
            + (right[: free.shape[1], 0] if at else 0)
            for at in range(total)
        ])  # fmt: skip
        log_z, nats = free.logsumexp(1).sum(), torch.distributions.Categorical(logits=free)
        entropy = nats.entropy().sum()
        if stay is copies:
            path = unary[:, half:].sum(0) + (total - 1)
            other = torch.distributions.Categorical(logits=path)
            which = torch.stack([log_z, path.logsumexp(0)])
            share = which.softmax(0)
            own = torch.distributions.Categorical(logits=which).entropy()
            entropy = own + share[0] * entropy + share[1] * other.entropy()
        torch.testing.assert_close(chain.entropy(), entropy)
        last = chain.filtered()[-1]
        torch.testing.assert_close(last, chain.marginals()[-1])


def test_entropies_of_bands_have_gradients_with_hard_zeros():
    band, left, right = draw(2, 4, 2), draw(4, 1, seed=1), draw(2, 4, 1, seed=2)
    band[0, 1, 0] = left[2, 0] = right[1, 3, 0] = -math.inf
    unary = draw(2, 3, 4, seed=3)
    unary[0, 1, 1] = -math.inf
    free = [part[part > -math.inf].requires_grad_() for part in (unary, band, left, right)]

    def entropies(*values):
        parts = [
            part.masked_scatter(part > -math.inf, own)
            for part, own in zip((unary, band, left, right), values, strict=True)
        ]
        steps = rg.Banded(parts[1], (0, -1), rg.LowRank(*parts[2:]))
        return rg.Chain(parts[0], steps, lengths=torch.tensor([3, 2])).entropy()

    assert torch.autograd.gradcheck(entropies, free, fast_mode=True)
    assert torch.autograd.gradgradcheck(entropies, free, fast_mode=True)


def test_blocks_of_bands_are_recognised_with_one_for_each_factor():
    site = rg.VariableArray("x", (4,), 4)
    single = rg.FactorBlock((site,), rg.Table(draw(4, 4)))
    potential = rg.Banded(draw(3, 4, 1), (0,), rg.LowRank(draw(4, 1), draw(3, 4, 1)))
    for pairs in ((site[:-1], site[1:]), (site[1:], site[:-1])):
        graph = rg.FactorGraph([single, rg.FactorBlock(pairs, potential)])
        posterior = rg.infer(graph)
        exact = rg.infer(graph, scheduler=rg.Contraction())
        torch.testing.assert_close(posterior.log_partition, exact.log_partition)
        torch.testing.assert_close(posterior.marginals()[site], exact.marginals()[site])


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
        (
            lambda: rg.Banded(
                torch.zeros(2, 4, 1), (0,), rg.LowRank(torch.zeros(3, 4, 1), torch.zeros(4, 1))
            ),
            ModelError,
            "leading dims that broadcast",
        ),
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


def test_draws_of_blocks_are_as_frequent_as_their_sequences():
    chain = rg.Chain(draw(2, 3, 4, seed=8), KINDS["blocks"](), lengths=torch.tensor([3, 2]))
    drawn = chain.sample(20_000, torch.Generator().manual_seed(0))
    often = torch.nn.functional.one_hot(drawn.clamp(min=0), 4) * (drawn >= 0).unsqueeze(-1)
    torch.testing.assert_close(often.double().mean(0), chain.marginals(), atol=0.015, rtol=0)
    pairs = drawn[..., :-1] * 4 + drawn[..., 1:]
    joint = torch.nn.functional.one_hot(pairs[:, 0], 16).double().mean(0)
    torch.testing.assert_close(joint, chain.edge_marginals()[0].flatten(1), atol=0.015, rtol=0)
