"""The randomized estimator, from model to answers about all of its states."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Posterior, Randomized
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
    Pilot,
    SoftmaxGlobal,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
    Uniform,
)
from rdpgraph.testing import brute_force
from tests.estimate.models import draw, estimate, kept_marginals, mixed, seeded

PROPOSALS = [
    Uniform(),
    Local(),
    Global(),
    SoftmaxGlobal(),
    LocalGlobal(),
    LocalGlobal(SoftmaxGlobal()),
    Landmark(4),
    Pilot(),
    Pilot(Local(), Threshold(2)),
    Mixture((Local(), Uniform()), (1.0, 1.0)),
    Oracle(),
]
SELECTIONS = [Top(3), TopTail(2, 1), TopSystematic(1, 2), Threshold(3)]


def name(value):
    return repr(value)


@pytest.mark.cover(1)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=name)
@pytest.mark.parametrize("selection", SELECTIONS, ids=name)
def test_one_seed_gives_one_answer(proposal, selection):
    graph = mixed(2)
    first, again = (estimate(graph, proposal, selection, seed=5) for _ in range(2))
    assert isinstance(first, Posterior)
    assert first.log_partition.shape == (2,)
    assert torch.equal(first.log_partition, again.log_partition)
    other = estimate(graph, proposal, selection, seed=6)
    random = not isinstance(selection, Top) or isinstance(proposal, Landmark | Pilot)
    if not random:
        assert torch.equal(first.log_partition, other.log_partition)
    if not isinstance(selection, Top):
        assert not torch.equal(first.log_partition, other.log_partition)
    for entry, marginal in first.marginals().items():
        assert marginal.shape == (2, *entry.shape, entry.size)
        assert torch.allclose(marginal.sum(-1), torch.ones(2, *entry.shape).double())


@pytest.mark.cover(1)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=name)
@pytest.mark.parametrize("selection", [Top(6), TopTail(3, 3), TopSystematic(0, 6), Threshold(1.0)])
def test_with_all_states_kept_every_answer_is_exact(proposal, selection):
    graph = mixed()
    truth = brute_force(graph)
    posterior = estimate(graph, proposal, selection, replicates=2)
    assert posterior.status.exact
    assert not posterior.status.biased
    assert posterior.status.standard_error == pytest.approx(0.0, abs=1e-12)
    assert torch.allclose(posterior.log_partition, truth.log_partition)
    assert torch.allclose(posterior.entropy(), truth.entropy)
    assert torch.allclose(graph.score(posterior.mode()), truth.maximum)
    assert bool(posterior.mode_is_consistent())
    for number in range(graph.num_variables):
        variable = graph.domain.variable(number)
        assert torch.allclose(posterior.marginal(variable), truth.joint((variable,)))
        # Numbers in different order of summation.
        assert torch.allclose(
            posterior.max_marginals()[variable],
            truth.max_marginal(variable),
        )


def restricted_truth(graph, posterior):
    """Brute force over each replicate's restricted model, and the scores without weights."""
    layout = posterior.solution.restriction.layout
    return [
        layout.model.restrict(
            {
                entry: rg.extend.Support(s.states[number], s.log_weights[number].to(graph.dtype))
                for entry, s in zip(layout.model.variables, layout.expanded, strict=True)
            }
        )
        for number in range(layout.replicates)
    ]


@pytest.mark.parametrize("selection", SELECTIONS, ids=name)
def test_answers_are_those_of_the_replicates_weighted_by_z(selection):
    graph = mixed()
    xs = graph.variables[0]
    posterior = estimate(graph, Local(), selection, replicates=3, seed=2)
    parts = [brute_force(part) for part in restricted_truth(graph, posterior)]
    log_z = torch.stack([part.log_partition for part in parts])
    assert torch.allclose(posterior.log_partitions, log_z)
    assert torch.allclose(posterior.log_partition, log_z.logsumexp(0) - math.log(3))
    share = log_z.softmax(0)
    z = log_z.exp()
    assert float(posterior.standard_error) == posterior.status.standard_error == math.inf
    assert torch.allclose(posterior.effective_sample_size, z.sum() ** 2 / (z**2).sum())
    assert posterior.status.effective_sample_size == pytest.approx(
        float(z.sum() ** 2 / (z**2).sum())
    )
    support = posterior.solution.restriction.supports[0]
    entropy = posterior.log_partition.clone()
    marginals = torch.zeros(3, 6, dtype=torch.float64)
    pair = torch.zeros(6, 6, dtype=torch.float64)
    for number, part in enumerate(parts):
        states = support.states[number]
        chosen = {xs: states[torch.arange(3), part.configurations[:, :3]]}
        score = graph.score({**chosen, "a": part.configurations[:, 3]})
        p = share[number] * part.probabilities[:, 0]
        entropy -= (p * score).sum()
        for site in range(3):
            marginals[site].index_add_(0, chosen[xs][:, site], p)
        pair.index_put_((chosen[xs][:, 0], chosen[xs][:, 2]), p, accumulate=True)
    assert torch.allclose(posterior.entropy(), entropy)
    assert torch.allclose(posterior.marginal(xs), marginals)
    assert torch.allclose(posterior.marginal(xs[1:]), marginals[1:])
    assert torch.allclose(posterior.factor_marginal((xs[0], xs[2])), pair)
    assert torch.allclose(
        posterior.factor_marginal((xs[2], xs[1])).sum(0), posterior.marginal(xs[1])
    )


def test_samples_follow_the_marginals_and_are_kept_states():
    graph = mixed(2)
    xs = graph.variables[0]
    posterior = estimate(graph, Local(), TopTail(1, 2), replicates=4)
    drawn = posterior.sample(20_000, generator=seeded(1))
    assert drawn[xs].shape == (20_000, 2, 3)
    found = torch.nn.functional.one_hot(drawn[xs], 6).double().mean(0)
    expected = posterior.marginal(xs)
    assert bool((found[expected == 0] == 0).all())
    assert bool(((found - expected).abs() < 5 * (expected / 20_000).sqrt() + 1e-12).all())


def test_the_mode_is_the_best_of_the_states_kept_and_ignores_their_weights():
    graph = mixed()
    xs = graph.variables[0]
    for seed in range(5):
        posterior = estimate(graph, Uniform(), TopTail(1, 2), replicates=3, seed=seed)
        (support, _) = posterior.solution.restriction.supports
        best = -math.inf
        truth = brute_force(graph)
        for states in support.states:
            allowed = torch.ones(len(truth.configurations), dtype=torch.bool)
            for site in range(3):
                allowed &= torch.isin(truth.configurations[:, site], states[site])
            best = max(best, float(truth.scores[allowed].max()))
        mode = posterior.mode()
        assert float(graph.score(mode)) == pytest.approx(best)
        assert float(posterior.max_marginals()[xs].max()) == pytest.approx(best)
        assert not bool(posterior.mode_is_consistent())


def test_gradients_reach_the_potentials_of_kept_states():
    unary, left = 2 * draw(3, 6), draw(6, 2, seed=1)
    xs = rg.VariableArray("x", (3,), 6)

    def asked(unary, left):
        graph = rg.FactorGraph(
            [
                rg.FactorBlock((xs,), rg.Table(unary)),
                rg.FactorBlock((xs[:-1], xs[1:]), Bilinear(left, left)),
            ]
        )
        # Uniform scores: a step of finite differences does not move the choice.
        return estimate(graph, Uniform(), TopTail(0, 3), replicates=2)

    def answers(unary, left):
        posterior = asked(unary, left)
        return posterior.log_partition, posterior.entropy(), posterior.marginal(xs)

    inputs = (unary.requires_grad_(), left.requires_grad_())
    assert torch.autograd.gradcheck(answers, inputs, fast_mode=True)
    posterior = asked(*inputs)
    (gradient,) = torch.autograd.grad(posterior.log_partition, unary, retain_graph=True)
    assert torch.allclose(gradient.flatten(), kept_marginals(posterior)[0])


@pytest.mark.long
@pytest.mark.parametrize("proposal", [Local(), Landmark(3), Pilot(), Oracle()], ids=name)
def test_evidence_of_every_kind(proposal):
    """A whole variable, one member of an array, some rows only."""
    graph = mixed()
    xs = graph.variables[0]
    evidence = [
        {"a": "v"},
        {xs[1]: 4},
        {xs[0]: torch.tensor([2, -1, 5]), "a": "v"},
        {xs: torch.tensor([1, 2, 3])},
        {xs: torch.tensor([1, 2, 3]), "a": torch.tensor(0)},
    ]
    for given in evidence:
        conditioned = graph.condition(given)
        exact = rg.infer(conditioned)
        whole = estimate(conditioned, proposal, Top(6))
        assert torch.allclose(whole.log_partition, exact.log_partition)
        assert torch.allclose(whole.entropy(), exact.entropy())
        for entry, marginal in exact.marginals().items():
            assert torch.allclose(whole.marginals()[entry], marginal)
        few = estimate(conditioned, proposal, Threshold(3), replicates=2)
        drawn = few.sample(5, generator=seeded())
        assert bool((conditioned.score(drawn) > -math.inf).all())
        assert bool((conditioned.score(few.mode()) > -math.inf).all())


def test_what_is_observed_speaks_for_its_neighbours():
    """Through a factor, evidence is as good as a unary potential to a proposal."""
    hidden, seen = rg.VariableArray("h", (2,), 8), rg.VariableArray("s", (2,), 5)
    table = 4 * draw(8, 5)
    emission = rg.FactorBlock((hidden, seen), rg.Table(table))
    transition = rg.Factor((hidden[0], hidden[1]), rg.Table(draw(8, 8)))
    evidence = torch.tensor([3, 1])
    given = rg.FactorGraph([emission, transition]).condition({seen: evidence})
    unary = rg.FactorBlock((hidden,), rg.Table(table[:, evidence].T))
    direct = rg.FactorGraph([unary, transition])
    one, two = (estimate(graph, Local(), Top(2)) for graph in (given, direct))
    assert torch.allclose(one.log_partition, two.log_partition)
    assert torch.equal(one.mode()[hidden], two.mode()[hidden])


def test_replicates_of_no_mass_are_passed_over():
    """Two sites that must agree: some choices have no state in common."""
    sites = rg.VariableArray("x", (2,), 6)
    same = torch.full((6, 6), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    graph = rg.FactorGraph([rg.Factor((sites[0], sites[1]), rg.Table(same))])
    posterior = estimate(graph, Uniform(), TopTail(0, 2), replicates=20)
    dead = posterior.log_partitions == -math.inf
    assert bool(dead.any())
    assert not bool(dead.all())
    assert not bool(posterior.entropy().isnan())
    drawn = posterior.sample(200, generator=seeded())[sites]
    assert bool((drawn[:, 0] == drawn[:, 1]).all())
    mode = posterior.mode()[sites]
    assert mode[0] == mode[1]
    assert torch.allclose(posterior.marginal(sites).sum(-1), torch.ones(2).double())
    alone = estimate(graph, Uniform(), TopTail(0, 1), seed=1)
    if bool(alone.log_partition == -math.inf):
        assert bool((alone.marginal(sites) == 0).all())
        assert float(alone.entropy()) == 0.0
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            alone.sample(1)


def test_log_z_of_top_is_a_lower_bound():
    graph = mixed()
    exact = rg.infer(graph).log_partition
    before = torch.tensor(-math.inf)
    for keep in range(1, 7):
        posterior = estimate(graph, Local(), Top(keep))
        assert bool(posterior.log_partition <= exact + 1e-12)
        assert bool(posterior.log_partition >= before)
        assert posterior.status.bound == ("lower" if keep < 6 else "")
        before = posterior.log_partition
    assert estimate(graph, Local(), Threshold(2)).status.bound == ""


@pytest.mark.long
def test_more_states_and_more_replicates_come_nearer():
    graph = mixed()
    exact = rg.infer(graph).log_partition.exp()
    for selection in (TopTail(1, 2), Threshold(3)):
        posterior = estimate(graph, Local(), selection, replicates=1000)
        error = float(posterior.standard_error) * float(exact)
        assert abs(float(posterior.log_partition.exp() - exact)) < 5 * error
        assert error < 0.4 * float(exact)


def test_loopy_messages_solve_the_restricted_model_too():
    graph = mixed()
    estimator = Randomized(Pilot(), Threshold(4), replicates=2)
    posterior = rg.infer(graph, estimator=estimator, scheduler=rg.Loopy(), generator=seeded())
    assert not posterior.status.exact
    assert posterior.status.iterations > 0
    assert posterior.status.bound == ""
    xs = graph.variables[0]
    assert torch.allclose(posterior.marginal(xs).sum(-1), torch.ones(3).double(), atol=1e-5)


def test_the_status_names_the_estimator_and_what_solved_its_model():
    few = Randomized(Local(), Top(2))
    graph = mixed()
    for scheduler, method in (
        (rg.Contraction(), "randomized"),
        (rg.Loopy(), "randomized, by loopy"),
    ):
        posterior = rg.infer(graph, estimator=few, scheduler=scheduler)
        assert posterior.status.method == method
        assert posterior.status_of("mode").method == method
        assert f"method      {method}" in str(posterior.status)
    every = rg.infer(graph, estimator=Randomized(Local(), Top(100)), scheduler=rg.Loopy())
    assert every.status.method == "loopy"  # nothing was left out


def test_a_single_replicate_has_no_error_bar():
    posterior = estimate(mixed())
    assert posterior.status.standard_error is None
    assert posterior.status.effective_sample_size is None
    assert math.isinf(posterior.standard_error)
    assert posterior.status.biased


def test_many_states_in_float32():
    generator = seeded()
    embeddings = 0.5 * torch.randn(20_000, 8, generator=generator)
    unary = 3 * torch.randn(4, 20_000, generator=generator)
    embeddings.requires_grad_()
    xs = rg.VariableArray("x", (4,), 20_000)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(unary)),
            rg.FactorBlock((xs[:-1], xs[1:]), Bilinear(embeddings, embeddings)),
        ]
    )
    posterior = rg.infer(
        graph,
        estimator=Randomized(LocalGlobal(), TopSystematic(100, 100), replicates=2),
        generator=generator,
    )
    assert posterior.log_partition.dtype == torch.float32
    (gradient,) = torch.autograd.grad(posterior.log_partition, embeddings)
    assert bool(gradient.isfinite().all())
    assert posterior.marginal(xs).shape == (4, 20_000)
    assert posterior.sample(3, generator=generator)[xs].shape == (3, 4)


def test_weights_of_replicates_do_not_round_as_a_large_log_z_does():
    x, y = rg.Variable("x", 3), rg.Variable("y", 3)
    values = draw(3, 3).float() + 5000.0
    graph = rg.FactorGraph([rg.Factor((x, y), rg.Table(values))])
    posterior = estimate(graph, Uniform(), Top(1.0), replicates=3)
    assert float((posterior.marginal(x).sum() - 1).abs()) < 1e-5
    assert float((posterior.entropy() - rg.infer(graph).entropy()).abs()) < 1e-2


def test_questions_without_an_answer():
    with pytest.raises(rg.errors.UnsupportedError, match="Exact"):
        estimate(mixed()).marginal_mode(["a"])


def on_support(model, shape, replicates):
    """The posterior of a model on the same states in all replicates, as a support of dims."""
    states = torch.tensor([3, 1]).expand(*shape, 2)
    support = rg.extend.Support(states, torch.zeros((*shape, 2), dtype=torch.float64))
    count = len(model.variables) if isinstance(model, rg.FactorGraph) else 1
    supports = (support,) + (None,) * (count - 1)
    lift = rg.extend.Restriction(model, supports, rg.infer, replicates=replicates)
    return lift(lift.solved())


def batched(kind):
    xs = rg.VariableArray("x", (5,), 4)
    if kind == "chain":
        return rg.Chain(draw(3, 5, 4), draw(4, 4, seed=1))
    if kind == "array":
        blocks = (xs[:-1], xs[1:]), rg.Table(draw(3, 4, 4, 4))
        return rg.FactorGraph([rg.FactorBlock(*blocks)])
    a, b = rg.Variable("a", 4), rg.Variable("b", 4)
    return rg.FactorGraph([rg.Factor((a, b), rg.Table(draw(3, 4, 4)))])


@pytest.mark.parametrize("kind", ["chain", "array", "single"])
@pytest.mark.parametrize("replicates", [1, 2])
def test_supports_broadcast_to_replicates_and_batch(kind, replicates):
    model = batched(kind)
    shape = () if kind == "single" else (5,)
    full = on_support(model, (replicates, 3, *shape), replicates)
    for lead in ((), (3,), (1,), (1, 1), (1, 3), (replicates, 1)):
        some = on_support(model, (*lead, *shape), replicates)
        assert torch.allclose(some.log_partitions(), full.log_partitions())
        assert torch.allclose(some.variable_marginals(), full.variable_marginals())
        assert torch.equal(some.mode(), full.mode())


@pytest.mark.parametrize("kind", ["chain", "array", "single"])
def test_supports_that_do_not_broadcast_are_refused(kind):
    model = batched(kind)
    shape = () if kind == "single" else (5,)
    for lead, replicates in (((2,), 1), ((2,), 2), ((2, 3), 1), ((2, 3), 3), ((2, 2), 2)):
        with pytest.raises(rg.errors.ModelError, match="broadcast"):
            on_support(model, (*lead, *shape), replicates)
    if kind != "chain":
        support = rg.extend.Support(torch.zeros(2, *shape, 1).long(), torch.zeros(2, *shape, 1))
        with pytest.raises(rg.errors.ModelError, match="broadcast"):
            model.restrict({model.variables[0]: support})
        with pytest.raises(rg.errors.ModelError, match="got 0"):
            rg.extend.Restriction(model, (), rg.infer)
