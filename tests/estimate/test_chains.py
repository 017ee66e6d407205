"""The randomized estimator on a structure: the same numbers as on its graph."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Randomized, StructuredPosterior
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Oracle,
    Pilot,
    SoftmaxGlobal,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
    Uniform,
)

PROPOSALS = [Local(), Global(), LocalGlobal(SoftmaxGlobal()), Landmark(3), Oracle()]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def embedded(*batch, steps=4, states=7):
    """A chain by embeddings, and the same with its transition as a table."""
    unary, left, right = (
        draw(*batch, steps, states),
        draw(states, 3, seed=1),
        draw(states, 3, seed=2),
    )
    potential = Bilinear(left, right)
    return rg.Chain(unary, potential), rg.Chain(unary, potential.table(2))


def estimate(model, proposal, selection, *, seed=0, **options):
    estimator = Randomized(proposal, selection, **options)
    return rg.infer(model, estimator=estimator, generator=seeded(seed))


@pytest.mark.cover(2)
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
@pytest.mark.parametrize("selection", [TopTail(2, 2), TopSystematic(2, 2), Threshold(4)], ids=repr)
def test_a_chain_and_its_graph_give_one_answer(batch, proposal, selection):
    chain, _ = embedded(*batch)
    graph = chain.factor_graph()
    fast = estimate(chain, proposal, selection, replicates=3)
    slow = estimate(graph, proposal, selection, replicates=3)
    assert isinstance(fast, StructuredPosterior)
    assert torch.allclose(fast.log_partitions, slow.log_partitions)
    assert torch.allclose(fast.log_partition, slow.log_partition)
    assert torch.allclose(fast.standard_error, slow.standard_error)
    assert torch.allclose(fast.effective_sample_size, slow.effective_sample_size)
    assert torch.allclose(fast.marginals(), slow.marginal("site"))
    assert torch.allclose(fast.entropy(), slow.entropy())
    sites = graph.variables[0]
    assert torch.allclose(graph.score({sites: fast.mode()}), graph.score(slow.mode()))
    assert torch.allclose(fast.max_marginals(), slow.max_marginals()[sites])
    assert fast.status.standard_error == pytest.approx(slow.status.standard_error)
    drawn = fast.sample(4000, generator=seeded(1))
    assert drawn.shape == (4000, *batch, 4)
    found = torch.nn.functional.one_hot(drawn, 7).double().mean(0)
    # Samples are of the states kept alone, each replicate in proportion to its Z.
    few = chain.restrict(fast.supports.states, fast.supports.log_weights)
    each = few.marginals() * fast.log_partitions.softmax(0).reshape(3, *batch, 1, 1)
    expected = torch.zeros(3, *batch, 4, 7).double().scatter_add(-1, fast.supports.states, each)
    expected = expected.sum(0)
    assert bool((found[expected == 0] == 0).all())
    assert bool(((found - expected).abs() < 5 * (expected / 4000).sqrt() + 1e-3).all())


def test_a_dense_transition_serves_every_proposal():
    _, chain = embedded(2)
    for proposal in (LocalGlobal(), Landmark(4), Pilot()):
        posterior = estimate(chain, proposal, Threshold(4), replicates=2)
        assert bool(posterior.log_partition.isfinite().all())


@pytest.mark.parametrize("lengths", [None, [4, 2], [1, 0]])
@pytest.mark.parametrize("tabulated", [False, True])
def test_masses_are_marginals_with_the_state_put_among_those_kept(lengths, tabulated):
    chain = embedded(2)[int(tabulated)]
    lengths = None if lengths is None else torch.tensor(lengths)
    chain = rg.Chain(chain.unary, chain.transition, lengths=lengths)
    support = Threshold(3).select(draw(3, 2, 4, 7, seed=5), seeded(6))
    masses = chain.sites().masses(support.states, support.log_weights)
    assert masses.shape == (3, 2, 4, 7)
    for site in range(4):
        # All states at one site, those kept at the others: the site's marginals.
        everything = torch.arange(7).expand(3, 2, 7)
        states = torch.zeros(3, 2, 4, 7, dtype=torch.long)
        weights = torch.full((3, 2, 4, 7), -math.inf, dtype=torch.float64)
        states[..., :3], weights[..., :3] = support.states, support.log_weights
        states[..., site, :], weights[..., site, :] = everything, 0.0
        expected = chain.restrict(states, weights).marginals()[..., site, :]
        for item in range(2):
            if lengths is None or site < lengths[item]:
                found = masses[:, item, site].softmax(-1)
                assert torch.allclose(found, expected[:, item])
            else:
                assert bool((masses[:, item, site] == -math.inf).all())


def test_masses_where_little_is_possible():
    same = torch.full((5, 5), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    chain = rg.Chain(torch.zeros(3, 5, dtype=torch.float64), same)
    kept = torch.tensor([[[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2], [1, 3]]])
    masses = chain.sites().masses(kept, torch.zeros_like(kept, dtype=torch.float64))
    # Nothing passes from the first to the last step: only a state that fits its own site has mass.
    assert bool((masses[0, 1] == -math.inf).all())
    assert torch.equal(masses[1, 1] > -math.inf, torch.tensor([False, True, False, False, False]))


@pytest.mark.long
@pytest.mark.parametrize("lengths", [None, [4, 1]])
def test_the_expectation_of_z_with_a_pilot_by_messages(lengths):
    lengths = None if lengths is None else torch.tensor(lengths)
    chain = rg.Chain(*_parts(embedded(2)[0]), lengths=lengths)
    truth = chain.log_partition()
    found = estimate(chain, Pilot(), TopSystematic(1, 2), replicates=1000).replicates
    assert bool(((found.log_partition - truth).abs() < 5 * found.standard_error).all())


def _parts(chain):
    return chain.unary, chain.transition


def test_all_states_kept_is_exact():
    chain, dense = embedded(2)
    posterior, exact = estimate(chain, Pilot(), Top(7), replicates=2), rg.infer(dense)
    assert posterior.status.exact
    assert not posterior.status.biased
    assert torch.allclose(posterior.log_partition, exact.log_partition)
    assert torch.allclose(posterior.marginals(), exact.marginals())
    assert torch.allclose(posterior.entropy(), exact.entropy())
    assert torch.equal(posterior.mode(), exact.mode())


def test_lengths():
    unary, transition = draw(3, 4, 6), draw(6, 6, seed=1)
    lengths = torch.tensor([4, 2, 0])
    chain = rg.Chain(unary, transition, lengths=lengths)
    exact = rg.infer(chain)
    whole = estimate(chain, Local(), Top(6), replicates=2)
    assert torch.allclose(whole.log_partition, exact.log_partition)
    assert torch.allclose(whole.marginals(), exact.marginals())
    assert torch.allclose(whole.entropy(), exact.entropy())
    few = estimate(chain, LocalGlobal(), TopTail(1, 2), replicates=2)
    beyond = torch.arange(4) >= lengths.unsqueeze(1)
    assert bool((few.marginals()[beyond] == 0).all())
    assert bool(((few.sample(5, generator=seeded()) == -1) == beyond).all())
    assert bool(((few.mode() == -1) == beyond).all())
    assert float(few.log_partition[2].abs()) < 1e-12


def test_relaxed_samples_are_on_the_kept_states():
    unary = draw(2, 4, 7).requires_grad_()
    chain = rg.Chain(unary, Bilinear(draw(7, 3, seed=1), draw(7, 3, seed=2)))
    posterior = estimate(chain, Local(), TopTail(2, 2), replicates=3)
    relaxed = posterior.rsample(temperature=0.5, generator=seeded(1))
    assert relaxed.shape == (2, 4, 7)
    assert torch.allclose(relaxed.sum(-1), torch.ones(2, 4).double())
    kept = torch.zeros(2, 4, 7, dtype=torch.bool)
    for states in posterior.supports.states:
        kept.scatter_(-1, states, torch.ones_like(states, dtype=torch.bool))
    assert bool((relaxed[~kept] == 0).all())
    (gradient,) = torch.autograd.grad((relaxed * draw(2, 4, 7, seed=3)).sum(), unary)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())
    assert bool((gradient[~kept] == 0).all())


def test_gradients_reach_the_embeddings():
    unary, left = draw(3, 6), draw(6, 2, seed=1)

    def answers(unary, left):
        chain = rg.Chain(unary, Bilinear(left, left))
        posterior = estimate(chain, Uniform(), TopTail(0, 3), replicates=2)
        return posterior.log_partition, posterior.entropy()

    # Scores that do not depend on the potentials: the choice and its weights stay.
    assert torch.autograd.gradcheck(
        answers, (unary.requires_grad_(), left.requires_grad_()), fast_mode=True
    )


@pytest.mark.parametrize("selection", [Top(3), TopTail(1, 2), TopSystematic(1, 2)], ids=repr)
def test_the_entropy_is_log_z_less_the_expected_score_without_the_weights(selection):
    unary, left = draw(3, 6).requires_grad_(), draw(6, 2, seed=1)
    posterior = estimate(rg.Chain(unary, Bilinear(left, left)), Uniform(), selection)
    score = posterior.solution.expected_score()[0]
    found = posterior.entropy(), posterior.log_partition - score
    assert torch.allclose(*found)
    slopes = (torch.autograd.grad(value, unary, retain_graph=True)[0] for value in found)
    assert torch.allclose(*slopes)


def test_without_weights_the_entropy_of_one_replicate_needs_no_log_z(monkeypatch):
    posterior = estimate(rg.Chain(draw(3, 6), draw(6, 6)), Local(), Top(3))
    monkeypatch.setattr(rg.Chain, "log_partition", lambda chain: pytest.fail("log Z is asked for"))
    assert bool(posterior.entropy().isfinite())


def test_replicates_of_no_mass_are_passed_over():
    same = torch.full((6, 6), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    chain = rg.Chain(torch.zeros(2, 6, dtype=torch.float64), same)
    posterior = estimate(chain, Local(), TopTail(0, 2), replicates=20)
    dead = posterior.log_partitions == -math.inf
    assert bool(dead.any())
    assert not bool(dead.all())
    drawn = posterior.sample(100, generator=seeded())
    assert bool((drawn[:, 0] == drawn[:, 1]).all())
    assert posterior.mode()[0] == posterior.mode()[1]
    relaxed = posterior.rsample(temperature=0.1, generator=seeded())
    assert torch.allclose(relaxed.sum(-1), torch.ones(2).double())
    for seed in range(20):
        alone = estimate(chain, Local(), TopTail(0, 1), seed=seed)
        if bool(alone.log_partition == -math.inf):
            break
    assert bool((alone.marginals() == 0).all())
    assert float(alone.entropy()) == 0.0
    for question in (alone.mode, lambda: alone.sample(1)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            question()


def test_a_million_states():
    generator = seeded()
    embeddings = 0.3 * torch.randn(1_000_000, 4, generator=generator)
    unary = 3 * torch.randn(3, 1_000_000, generator=generator)
    embeddings.requires_grad_()
    chain = rg.Chain(unary, Bilinear(embeddings, embeddings))
    estimator = Randomized(LocalGlobal(), TopSystematic(200, 200))
    posterior = rg.infer(chain, estimator=estimator, generator=generator)
    (gradient,) = torch.autograd.grad(posterior.log_partition, embeddings)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())


def test_divergences_on_one_support():
    """KL of the restricted, weighted chains, by every sequence of kept states."""
    chain = rg.Chain(draw(3, 5), draw(5, 5, seed=1))
    other = rg.Chain(draw(3, 5, seed=3), draw(5, 5, seed=4))
    supports = estimate(chain, Local(), TopTail(1, 2), replicates=2).supports
    places = torch.cartesian_prod(*[torch.arange(3)] * 3)
    site = torch.arange(3)

    def restricted(one, number):
        states = supports.states[number][site, places]
        weights = supports.log_weights[number][site, places].sum(-1)
        return (one.log_prob(states) + weights).log_softmax(0)

    kept = (supports.states, supports.log_weights)
    found = chain.restrict(*kept).kl_divergence(other.restrict(*kept))
    for number in range(2):
        p, q = restricted(chain, number), restricted(other, number)
        assert torch.allclose(found[number], (p.exp() * (p - q)).sum())
    whole = estimate(chain, Local(), Top(5)).supports
    kept = (whole.states, whole.log_weights)
    found = chain.restrict(*kept).kl_divergence(other.restrict(*kept))
    assert torch.allclose(found[0], chain.kl_divergence(other))
