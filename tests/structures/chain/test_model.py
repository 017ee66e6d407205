"""Chains as a model: every question against enumeration, and what is refused."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force, check_structure

D = torch.float64
SEED = 1  # of random hard zeros that leave every item possible


def chain(batch=(), length=4, states=3, *, per_step=None, lengths=None, zeros=0.0, seed=0):
    """A random chain; ``per_step``: the batch dims of transitions for each step."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(shape, generator=generator, dtype=D)
        return values.masked_fill(torch.rand(shape, generator=generator) < zeros, -math.inf)

    steps = () if per_step is None else (*per_step, max(length - 1, 0))
    return rg.Chain(draw(*batch, length, states), draw(*steps, states, states), lengths=lengths)


KINDS = {
    "one": chain(),
    "one state": chain(states=1),
    "a step": chain((2,), 1),
    "no step": chain((2,), 0),
    "own transitions": chain(per_step=()),
    "transitions shared by items": chain((2,), per_step=()),
    "transitions of each item": chain((2,), per_step=(2,)),
    "lengths": chain((4,), lengths=[0, 1, 3, 4]),
    "lengths and own transitions": chain((3,), 3, per_step=(3,), lengths=[3, 0, 2]),
    "two batch dims": chain((2, 2), 3, 2, per_step=(1, 2), lengths=torch.tensor([[0, 1], [2, 3]])),
    "a potential": rg.Chain(chain((2,)).unary, rg.Table(chain().transition), lengths=[2, 4]),
    "a potential per step": rg.Chain(chain((2,)).unary, rg.Table(chain(per_step=()).transition)),
    "hard zeros": chain((2,), 5, zeros=0.2, seed=SEED),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["one state", "no step", "lengths and own transitions", "two batch dims", "a potential",
     "a potential per step", "hard zeros"],
)  # fmt: skip
def test_conformance(kind):
    model = KINDS[kind]
    assert bool((model.log_partition() > -math.inf).all())
    check_structure(model)


@pytest.mark.parametrize("kind", KINDS)
def test_the_general_engine_agrees(kind):
    model = KINDS[kind]
    own = rg.infer(model)
    general = rg.infer(model.factor_graph(), scheduler=rg.Contraction())
    assert own.plan.route == "structure"
    assert torch.allclose(own.log_partition, general.log_partition)
    assert torch.allclose(own.entropy(), general.entropy())
    (sites,) = general.graph.variables
    present = own.mode() >= 0
    assert torch.allclose(own.marginals()[present], general.marginal(sites)[present])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_graph(kind):
    model = KINDS[kind]
    graph = model.factor_graph()
    drawn = model.sample(5, torch.Generator().manual_seed(0))
    expected = graph.score({graph.variables[0]: drawn.clamp(min=0)})
    assert model.score(drawn).shape == (5, *model.batch_shape)
    assert torch.allclose(model.score(drawn), expected)
    assert torch.allclose(model.log_prob(drawn), expected - model.log_partition())
    assert torch.allclose(model.score(drawn[0]), expected[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_k_best_sequences_are_those_of_enumeration(kind):
    model = KINDS[kind]
    truth = brute_force(model.factor_graph()).scores.sort(0, descending=True).values
    best = model.k_best(4)
    assert isinstance(best, rg.answers.KBest)
    assert best.states.shape == (4, *model.unary.shape[:-1])
    count = min(4, len(truth))
    assert torch.allclose(best.scores[:count].reshape(count, -1), truth[:count])
    assert bool((best.scores[count:] == -math.inf).all())
    possible = best.scores > -math.inf
    again = model.score(best.states.clamp(min=0))
    assert torch.allclose(again[possible], best.scores[possible])
    assert torch.equal(best.states[0], model.mode())


def prefix(model, steps):
    """The chain's first steps."""
    transition = model.transition if model.transition.ndim == 2 else model.transition[: steps - 1]
    return rg.Chain(model.unary[..., :steps, :], transition)


def test_filtered_states_know_the_past_alone():
    for model in (chain(), chain(per_step=()), chain(zeros=0.2, seed=SEED)):
        filtered = model.filtered()
        for step in range(4):
            assert torch.allclose(filtered[step], prefix(model, step + 1).marginals()[-1])


def test_an_impossible_item_has_no_answers_and_no_nan():
    unary = chain((3,)).unary.clone()
    unary[1, 2] = -math.inf
    unary.requires_grad_()
    model = rg.Chain(unary, chain().transition)
    log_z = model.log_partition()
    assert (log_z == -math.inf).tolist() == [False, True, False]
    answers = [model.marginals(), model.edge_marginals(), model.edge_counts(), model.entropy()]
    for answer in answers:
        assert not bool(answer.isnan().any())
        assert bool((answer[1] == 0).all())
        assert bool((answer[0] != 0).any())
    (gradient,) = torch.autograd.grad(log_z[log_z > -math.inf].sum(), unary, retain_graph=True)
    assert not bool(gradient.isnan().any())
    assert torch.allclose(gradient, model.marginals())
    assert model.log_prob(torch.zeros(3, 4, dtype=torch.long)).tolist()[1] == -math.inf
    for ask in (model.mode, lambda: model.sample(2)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError, match="no configuration is possible"):
            ask()


def test_marginals_are_differentiable_in_either_potential_alone():
    model = chain((2,))
    for name in ("unary", "transition"):
        values = getattr(model, name).clone().requires_grad_()
        tracked = rg.Chain(**{"unary": model.unary, "transition": model.transition, name: values})
        (gradient,) = torch.autograd.grad(tracked.marginals()[..., 0].sum(), values)
        assert bool((gradient != 0).any())
    with torch.no_grad():
        assert not rg.Chain(values, model.transition).marginals().requires_grad
    shared = chain(length=3).unary.clone().requires_grad_()
    tied = rg.Chain(shared, shared)  # the transition is made of the same tensor
    assert torch.allclose(tied.marginals(), rg.Chain(shared.detach(), shared.detach()).marginals())


def test_a_chain_kept_whole_is_itself():
    model = chain((2,), lengths=[4, 2])
    everything = torch.arange(3).expand(2, 4, 3)
    same = model.restrict(everything, torch.zeros(2, 4, 3, dtype=D))
    assert torch.allclose(same.log_partition(), model.log_partition())
    assert torch.allclose(same.marginals(), model.marginals())


@pytest.mark.parametrize("kind", ["one", "own transitions", "transitions of each item", "lengths"])
def test_a_restricted_chain_sums_over_the_states_kept(kind):
    model = KINDS[kind]
    generator = torch.Generator().manual_seed(1)
    shape = (3, *model.unary.shape[:-1], 2)  # three replicates; repeats stay apart
    states = torch.randint(3, shape, generator=generator)
    weights = torch.randn(shape, generator=generator, dtype=D)
    small = model.restrict(states, weights)
    assert small.batch_shape == (3, *model.batch_shape)
    total = torch.full(small.batch_shape, -math.inf, dtype=D)
    length = model.unary.shape[-2]
    longest = torch.full(model.batch_shape, length) if model.lengths is None else model.lengths
    for choice in itertools.product(range(2), repeat=length):
        places = torch.tensor(choice)
        inside = torch.arange(length) < longest.unsqueeze(-1)
        index = places.expand(shape[:-1]).unsqueeze(-1)
        score = model.score(states.gather(-1, index).squeeze(-1))
        score = score + torch.where(inside, weights.gather(-1, index).squeeze(-1), 0.0).sum(-1)
        # A sequence is counted once, not once for each choice beyond its length.
        once = (inside | (places == 0)).all(-1)
        total = torch.logaddexp(total, torch.where(once, score, -math.inf))
    assert torch.allclose(small.log_partition(), total)


def test_restriction_reaches_the_potentials():
    unary, transition = (x.clone().requires_grad_() for x in (chain().unary, chain().transition))
    states = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 2]])
    small = rg.Chain(unary, transition).restrict(states, torch.zeros(4, 2, dtype=D))
    small.log_partition().backward()
    marginals = small.marginals()
    assert torch.allclose(unary.grad, torch.zeros(4, 3, dtype=D).scatter_add(1, states, marginals))
    counts = torch.zeros(3, 3, dtype=D)
    edges = small.edge_marginals()
    left = states[:-1].unsqueeze(2).expand(3, 2, 2)
    right = states[1:].unsqueeze(1).expand(3, 2, 2)
    counts.index_put_((left, right), edges, accumulate=True)
    assert torch.allclose(transition.grad, counts)


class Counted(rg.extend.Potential):
    """A potential that must never be asked for all of itself."""

    shape = (10**6, 10**6)

    @property
    def dtype(self):
        return D

    def evaluate(self, states):
        left, right = states
        assert left.shape[-1] * right.shape[-1] <= 16
        return -((left.unsqueeze(-1) - right.unsqueeze(-2)).abs() / 1e6).to(D)


def test_a_large_potential_is_evaluated_where_it_is_kept():
    model = rg.Chain(torch.zeros(3, 10**6, dtype=D), Counted())
    with pytest.raises(rg.errors.BudgetError, match="written out"):
        model.log_partition()
    states = torch.tensor([[0, 999_999], [1, 999_999], [2, 999_999]])
    small = model.restrict(states, torch.zeros(3, 2, dtype=D))
    expected = torch.logsumexp(
        torch.stack([model.score(torch.tensor(s)) for s in itertools.product(*states.tolist())]), 0
    )
    assert torch.allclose(small.log_partition(), expected)


def test_draws_come_as_often_as_they_are_probable():
    model = chain(length=3, states=2)
    drawn = model.sample(40_000, torch.Generator().manual_seed(0))
    numbers = drawn @ torch.tensor([4, 2, 1])
    found = torch.bincount(numbers, minlength=8) / 40_000
    sequences = torch.tensor(list(itertools.product(range(2), repeat=3)))
    expected = model.log_prob(sequences).exp()
    assert torch.allclose(found.to(D), expected, atol=4 * 0.5 / 200)
    assert torch.allclose(expected.sum(), torch.ones((), dtype=D))


def test_a_posterior_gives_relaxed_draws():
    model = chain((2,), lengths=[4, 2])
    posterior = rg.infer(model)
    drawn = posterior.rsample(temperature=0.5, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == model.unary.shape
    hard = rg.straight_through(drawn)
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.sum(-1), (model.mode() >= 0).to(D))


def hmm_tables(states=2, symbols=3):
    generator = torch.Generator().manual_seed(5)
    shapes = [(states,), (states, states), (states, symbols)]
    return [torch.randn(s, generator=generator, dtype=D).log_softmax(-1) for s in shapes]


def test_hmm_likelihoods_sum_to_one_over_observations():
    start, transition, emission = hmm_tables()
    seen = torch.tensor(list(itertools.product(range(3), repeat=4)))
    hmm = rg.Chain.hmm(start, transition, emission, seen)
    one = torch.ones((), dtype=D)
    assert torch.allclose(hmm.log_partition().logsumexp(0).exp(), one)
    missing = rg.Chain.hmm(start, transition, emission, torch.tensor([[-1, -1, 2, -1], [-1] * 4]))
    at_two = hmm.log_partition()[seen[:, 2] == 2].logsumexp(0)
    assert torch.allclose(missing.log_partition(), torch.stack([at_two, one * 0]))
    unobserved = rg.Chain.hmm(start, transition, emission.mT[seen])
    assert torch.allclose(unobserved.log_partition(), hmm.log_partition())


def test_hmm_filtering_and_smoothing_are_those_of_enumeration():
    start, transition, emission = hmm_tables()
    seen = torch.tensor([2, 0, 1, 1])
    paths = torch.tensor(list(itertools.product(range(2), repeat=4)))
    prior = start[paths[:, 0]] + transition[paths[:, :-1], paths[:, 1:]].sum(1)
    terms = emission[paths, seen]
    hmm = rg.Chain.hmm(start, transition, emission, seen)
    for step in range(4):
        here = torch.nn.functional.one_hot(paths[:, step], 2).to(D)
        past = (prior + terms[:, : step + 1].sum(1)).softmax(0) @ here
        assert torch.allclose(hmm.filtered()[step], past)
        assert torch.allclose(hmm.marginals()[step], (prior + terms.sum(1)).softmax(0) @ here)


def test_an_hmm_of_lengths_ignores_what_comes_after():
    start, transition, emission = hmm_tables()
    seen = torch.tensor([[0, 1, 2], [0, 1, 0]])
    hmm = rg.Chain.hmm(start, transition, emission, seen, lengths=[0, 2])
    short = rg.Chain.hmm(start, transition, emission, seen[1, :2])
    expected = torch.stack([torch.zeros((), dtype=D), short.log_partition()])
    assert torch.allclose(hmm.log_partition(), expected)


def test_a_crf_scores_the_ends_of_each_item():
    generator = torch.Generator().manual_seed(0)
    emissions, transition = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(4, 4)
    start, end = torch.randn(2, 3, 4, generator=generator), torch.randn(3, 4)
    start[0, 1, 2] = -math.inf
    lengths = torch.tensor([[5, 1, 0], [2, 3, 4]])
    inputs = [part.requires_grad_() for part in (emissions, start, end)]

    def log_z(emissions, start, end, lengths):
        crf = rg.Chain.crf(emissions, transition, start=start, end=end, lengths=lengths)
        return crf.log_partition()

    together = log_z(*inputs, lengths)
    alone = torch.stack([
        log_z(emissions[i, j], start[i, j], end[j], int(lengths[i, j]))
        for i in range(2)
        for j in range(3)
    ]).reshape(2, 3)  # fmt: skip
    assert torch.allclose(together, alone)
    torch.testing.assert_close(
        torch.autograd.grad(together.sum(), inputs), torch.autograd.grad(alone.sum(), inputs)
    )
    every = torch.full((2, 3), 5)
    assert torch.allclose(log_z(*inputs, None), log_z(*inputs, every))


def test_a_crf_scores_its_ends():
    model = chain((3,))
    generator = torch.Generator().manual_seed(2)
    start, end = torch.randn(2, 3, generator=generator, dtype=D)
    crf = rg.Chain.crf(model.unary, model.transition, start=start, end=end, lengths=[4, 0, 1])
    tags = torch.tensor([[0, 1, 2, 1], [0, 0, 0, 0], [2, 0, 0, 0]])
    plain = rg.Chain(model.unary, model.transition, lengths=[4, 0, 1]).score(tags)
    more = torch.stack([start[0] + end[1], 0 * end[0], start[2] + end[2]])
    assert torch.allclose(crf.score(tags), plain + more)
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    total = crf.log_prob(every.unsqueeze(1).expand(-1, 3, -1)).exp().sum(0)
    # The sequences that differ beyond the length are one.
    assert torch.allclose(total, torch.tensor([1.0, 81.0, 27.0], dtype=D))
    no_lengths = rg.Chain.crf(model.unary, model.transition, end=end)
    assert torch.allclose(no_lengths.unary[:, -1], model.unary[:, -1] + end)


def test_the_plan_says_the_cost():
    plan = rg.explain(chain((2,), 5, 4, lengths=[5, 3]))
    assert (plan.route, plan.flops, plan.width) == ("structure", 6 * 16.0, 4.0)
    assert "Chain" in str(plan)


U, F = torch.zeros(2, 4, 3), torch.zeros(3, 3)
START, ROWS = torch.full((3,), 1 / 3).log(), torch.full((3, 3), 1 / 3).log()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rg.Chain(U[0, 0], F), "needs unary potentials of shape"),
        (lambda: rg.Chain(U.long(), F), "needs floating log-values"),
        (lambda: rg.Chain(U + math.nan, F), "got NaN"),
        (lambda: rg.Chain(U, F + math.inf), "got \\+inf"),
        (lambda: rg.Chain(U, F[:2]), r"of shape \(3, 3\) or \(\*batch, 3, 3, 3\)"),
        (lambda: rg.Chain(U, torch.zeros(4, 3, 3)), "needs a transition of shape"),
        (lambda: rg.Chain(U, torch.zeros(5, 3, 3, 3)), "needs a transition of shape"),
        (lambda: rg.Chain(U, rg.Table(F[:2])), "needs a transition of shape"),
        (lambda: rg.Chain(U, F, lengths=[5, 0]), "needs lengths 0 to 4; got 5"),
        (lambda: rg.Chain(U, F, lengths=[0, -1]), "needs lengths 0 to 4; got -1"),
        (lambda: rg.Chain(U, F, lengths=[1.0, 2.0]), "needs integer lengths"),
        (lambda: rg.Chain(U, F, lengths=[1]), "needs integer lengths of shape \\(2,\\)"),
        (lambda: rg.Chain.hmm(START, F, ROWS, U[0].long()), "sums to 3"),
        (lambda: rg.Chain.hmm(START, ROWS, ROWS[:2], U[0].long()), "emission of shape"),
        (lambda: rg.Chain.hmm(START[:2], ROWS, ROWS), "needs start"),
        (lambda: rg.Chain.hmm(START, ROWS, ROWS, torch.tensor([3])), "got 3"),
        (lambda: rg.Chain.crf(U, F, start=F), "start scores of shape"),
        (lambda: rg.Chain.crf(U, F, end=U[..., 0]), "end scores of shape"),
        (lambda: rg.Chain.crf(U, F, start=F[0] * math.nan), "NaN"),
        (lambda: rg.Chain(U, F).score(torch.zeros(4).long()), "integer states of shape"),
        (lambda: rg.Chain(U, F).score(torch.full((2, 4), 3)), "states 0 to 2"),
        (lambda: rg.Chain(U, F).score(torch.full((2, 4), -1)), "states 0 to 2"),
        (lambda: rg.Chain(U, F).k_best(0), "k >= 1"),
        (lambda: rg.Chain(U, F).sample(-1), "count of draws"),
        (lambda: rg.Chain(U, F).restrict(U.long(), U[0]), "needs states and log_weights"),
        (lambda: rg.Chain(U, F).restrict(U.long() + 3, U), "out of range"),
        (lambda: rg.Chain(U, F).kl_divergence(rg.Chain(U[:1], F)), "shapes and lengths agree"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(make, message):
    with pytest.raises(rg.errors.RdpgraphError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_inside_a_compiled_function():
    unary, transition = torch.randn(2, 5, 3, dtype=D), torch.randn(3, 3, dtype=D)
    unary.requires_grad_()

    def loss(unary, transition):
        return rg.Chain((2 * unary).tanh(), transition).log_partition().sum()

    compiled = torch.compile(loss, backend="eager")(unary, transition)
    expected = loss(unary, transition)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(
        torch.autograd.grad(compiled, unary), torch.autograd.grad(expected, unary)
    )


@pytest.mark.parametrize("low", [False, True])
def test_the_entropy_over_a_base_adds_its_expectation(low):
    generator = torch.Generator().manual_seed(3)
    unary, base = (torch.randn(2, 4, 3, generator=generator).double() for _ in range(2))
    unary[0, 1, 2] = base[0, 1, 2] = -math.inf
    unary.requires_grad_()
    table = torch.randn(2, 3, 3, 3, generator=generator).double().requires_grad_()
    transition = rg.LowRank(table, table.flip(-1)) if low else table
    chain = rg.Chain(unary, transition, lengths=torch.tensor([4, 2]))
    safe = torch.where(base > -math.inf, base, 0.0)
    expected = chain.entropy() + (chain.marginals() * safe).sum((-2, -1))
    found = chain.entropy_over(base)
    assert torch.allclose(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), (unary, table)),
        torch.autograd.grad(expected.square().sum(), (unary, table)),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_chains_without_steps_have_answers_whatever_their_tables(lead):
    model = rg.Chain(torch.zeros(*lead, 0, 2), torch.zeros(*lead, 0, 2, 2))
    shared = rg.Chain(torch.zeros(*lead, 0, 2), torch.zeros(2, 2))
    for ask in (
        rg.Chain.log_partition, rg.Chain.mode, rg.Chain.max_marginals, rg.Chain.entropy,
        lambda chain: chain.sample(3), lambda chain: chain.k_best(2).scores,
    ):  # fmt: skip
        torch.testing.assert_close(ask(model), ask(shared))
