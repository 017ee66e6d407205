"""Exact low rank is dense, to 1e-5 in single precision: every structure, every query."""

import math

import pytest
import torch

import rdpgraph as rg
from tests.questions import NUMBERS

WIDE = torch.float64


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=WIDE).to(dtype).requires_grad_()


def factors(*lead, dtype=torch.float32):
    left, right = drawn(*lead, 4, 2, seed=1, dtype=dtype), drawn(*lead, 4, 2, seed=2, dtype=dtype)
    with torch.no_grad():
        right[..., 1, 0] = -math.inf
    return rg.LowRank(left, right)


def chain(potential):
    return rg.Chain(drawn(3, 5, 4), potential, lengths=[5, 2, 0])


def chain_by_step(potential):
    steps = torch.arange(4, dtype=torch.float32).reshape(4, 1, 1)
    if isinstance(potential, rg.LowRank):
        potential = rg.LowRank(potential.log_left + steps, potential.log_right - 0.3 * steps)
    else:
        potential = potential + 0.7 * steps
    return rg.Chain(drawn(3, 5, 4), potential, lengths=[5, 2, 0])


def segments(potential):
    return rg.SemiMarkov(drawn(3, 5, 2, 4), potential, lengths=torch.tensor([5, 2, 0]))


SITES = rg.VariableArray("x", (5,), 4)
EDGES = {
    "path": [(0, 1), (1, 2), (2, 3), (3, 4)],
    "star": [(0, 1), (0, 2), (3, 0), (0, 4)],
    "tree": [(0, 1), (2, 1), (1, 3), (3, 4)],
    "cycle": [(0, 1), (1, 2), (2, 3), (3, 0), (1, 4)],
}


def graph(shape, *, own=False):
    """A graph over five variables; with a potential for each factor, or one for all."""

    def build(potential):
        ends = torch.tensor(EDGES[shape]).T
        if own:
            scale = torch.linspace(-1, 1, ends.shape[1]).reshape(-1, 1, 1)
            if isinstance(potential, rg.LowRank):
                potential = rg.LowRank(potential.log_left + scale, potential.log_right)
            else:
                potential = potential + scale
        potential = potential if isinstance(potential, rg.extend.Potential) else rg.Table(potential)
        pairs = rg.FactorBlock((SITES[ends[0]], SITES[ends[1]]), potential)
        return rg.FactorGraph([rg.FactorBlock((SITES,), rg.Table(drawn(2, 5, 4))), pairs])

    return build


def one(answers):
    (value,) = answers.values()
    return value


IN_CHAINS = NUMBERS | {
    "filtered": lambda m: m.filtered(),
    "mode": lambda m: m.mode(),
    "k best": lambda m: m.k_best(3).scores,
    "edges": lambda m: m.edge_marginals(),
    "counts": lambda m: m.edge_counts(),
    "score": lambda m: m.score(torch.arange(15).reshape(3, 5) % 4),
    "log-probability": lambda m: m.log_prob(torch.ones(3, 5).long()),
    "cross-entropy": lambda m: m.cross_entropy(rg.Chain(m.unary, 0.1 * m._parts().transition,
                                                        lengths=[5, 2, 0])),
    "divergence": lambda m: m.kl_divergence(rg.Chain(m.unary, drawn(4, 4), lengths=[5, 2, 0])),
    "kept": lambda m: m.restrict(torch.arange(4).expand(3, 5, 4), m.unary / 2).log_partition(),
    "masses": lambda m: m.sites().masses(torch.arange(4).expand(3, 5, 4), m.unary / 2).exp(),
    "graph": lambda m: rg.infer(m.factor_graph()).log_partition,
}  # fmt: skip
IN_SEGMENTS = NUMBERS | {
    "positions": lambda m: m.position_marginals(),
    "mode": lambda m: m.mode().labels,
    "k best": lambda m: m.k_best(3).scores,
    "log-probability": lambda m: m.log_prob(m.mode()),
    "cross-entropy": lambda m: m.cross_entropy(rg.SemiMarkov(m.unary / 2, m.transition,
                                                             lengths=m.lengths)),
    "divergence": lambda m: m.kl_divergence(rg.SemiMarkov(m.unary, drawn(4, 4),
                                                          lengths=m.lengths)),
    "kept": lambda m: m.restrict(torch.arange(4).expand(3, 5, 2, 4), m.unary / 2).log_partition(),
    "score": lambda m: m.score(rg.Segmentation(torch.arange(15).reshape(3, 5) % 3,
                                               torch.ones(3, 5).bool())),
    "graph": lambda m: rg.infer(m.factor_graph()).log_partition,
}  # fmt: skip
IN_GRAPHS = {
    "log Z": lambda p: p.log_partition,
    "marginals": lambda p: one(p.marginals()),
    "marginal": lambda p: p.marginal(SITES[1:]),
    "entropy": lambda p: p.entropy(),
    "max-marginals": lambda p: one(p.max_marginals()),
    "mode": lambda p: one(p.mode()),
    "is consistent": lambda p: p.mode_is_consistent(),
    "joint": lambda p: p.factor_marginal((SITES[1], SITES[0])),
    "own": lambda p: p.factor_marginal((SITES[1],)),
    "marginal mode": lambda p: one(p.marginal_mode([SITES[:2]])),
}
MODELS = {
    "chain": (chain, IN_CHAINS),
    "chain, by step": (chain_by_step, IN_CHAINS),
    "segments": (segments, IN_SEGMENTS),
    **{shape: (graph(shape), IN_GRAPHS) for shape in EDGES},
    **{f"{shape}, own": (graph(shape, own=True), IN_GRAPHS) for shape in EDGES},
}
CASES = [(name, query) for name, (_, queries) in MODELS.items() for query in queries]


@pytest.mark.long
@pytest.mark.parametrize(("name", "query"), CASES)
def test_low_rank_is_dense(name, query):
    build, queries = MODELS[name]
    ask, potential = queries[query], factors()
    table = potential.table(2).detach().requires_grad_()
    low, dense = build(potential), build(table)
    if isinstance(low, rg.FactorGraph):
        low = rg.infer(low, estimator=rg.LowRankFactors())
        dense = rg.infer(dense)
        assert low.status.exact
    found, expected = ask(low), ask(dense)
    if not found.is_floating_point():
        assert torch.equal(found, expected)
        return
    finite = expected > -math.inf
    assert torch.equal(found > -math.inf, finite)
    assert torch.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-5)


def test_draws_of_segments_go_by_the_ranks_and_have_the_marginals():
    model, count = segments(factors()), 20_000
    assert isinstance(model.transition, rg.LowRank)
    drawn_states = model.site_states(model.sample(count, torch.Generator().manual_seed(0)))
    shares = model.uses(drawn_states).double().mean(0)
    marginals = model.marginals().detach().double()
    error = (marginals * (1 - marginals) / count).clamp(min=0).sqrt()
    assert bool(((shares - marginals).abs() <= 5 * error + 1e-6).all())
    # Of pairs in turn, too, which the ranks tell apart.
    first = drawn_states[:, 0, 0, 0] >= 0
    given = model.with_unary(model.unary.detach().clone())
    given.unary[0, 1, 1] = -torch.inf  # a segment of one step comes first
    expected = given.marginals()[0, 1, 0].detach().double()
    shares = (drawn_states[first, 0, 1, 0].unsqueeze(1) == torch.arange(4)).double().mean(0)
    limit = 5 * (expected * (1 - expected) / int(first.sum())).sqrt()
    assert bool(((shares - expected).abs() <= limit).all())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_low_rank_are_those_of_dense(name):
    build, _ = MODELS[name]
    potential = factors(dtype=torch.float32)
    gradients = []
    for made in (build(potential), build(potential.table(2))):
        if isinstance(made, rg.FactorGraph):
            value = rg.infer(made, estimator=rg.LowRankFactors()).log_partition
        else:
            value = made.log_partition()
        sides = (potential.log_left, potential.log_right)
        gradients.append(torch.autograd.grad(value.sum(), sides, retain_graph=True))
    for own, other in zip(*gradients, strict=True):
        assert bool((other != 0).any())
        assert torch.allclose(own, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", EDGES)
def test_draws_by_ranks_have_the_frequencies_of_the_model(shape):
    """Within five standard errors for each of 40 frequencies."""
    posterior = rg.infer(graph(shape)(factors()), estimator=rg.LowRankFactors())
    count = 5000
    drawn = one(posterior.sample(count, generator=torch.Generator().manual_seed(0)))
    seen = torch.nn.functional.one_hot(drawn, 4).double().mean(0)
    p = one(posterior.marginals()).double()
    assert bool(((seen - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-6).all())


@pytest.mark.parametrize("shape", EDGES)
def test_evidence(shape):
    observed = graph(shape)(factors()).condition({"x": [[-1, 2, -1, 0, -1], [3, -1, -1, -1, -1]]})
    low, dense = rg.infer(observed, estimator=rg.LowRankFactors()), rg.infer(observed)
    for ask in (IN_GRAPHS["log Z"], IN_GRAPHS["marginals"], IN_GRAPHS["entropy"]):
        assert torch.allclose(ask(low), ask(dense), rtol=1e-5, atol=1e-5)
    assert torch.equal(one(low.mode()), one(dense.mode()))


def test_what_needs_the_whole_factor_says_so_where_that_is_beyond_exact_inference():
    """A grid of 60 states: 2 ranks at each edge are few, 60^9 configurations are not."""
    pixels = rg.VariableArray("pixel", (8, 8), 60)
    low = rg.LowRank(drawn(60, 1, seed=1), drawn(60, 1, seed=2))
    grid = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), low),
            rg.FactorBlock((pixels[:-1], pixels[1:]), low),
            rg.FactorBlock((pixels,), rg.Table(drawn(8, 8, 60))),
        ]
    )
    posterior = rg.infer(grid, estimator=rg.LowRankFactors())
    assert posterior.status.exact
    assert bool(posterior.log_partition.isfinite())
    with pytest.raises(rg.errors.BudgetError, match="full tables"):
        posterior.entropy()


def test_segments_by_ranks_hold_the_structure_suite():
    for shape, lengths in (((3, 2, 3), None), ((3, 3, 2, 3), [3, 0, 2])):
        generator = torch.Generator().manual_seed(0)
        unary, left, right = (
            torch.randn(size, generator=generator, dtype=WIDE) for size in (shape, (3, 2), (3, 2))
        )
        left[0, 1] = -math.inf
        lengths = None if lengths is None else torch.tensor(lengths)
        model = rg.SemiMarkov(unary, rg.LowRank(left, right), lengths=lengths)
        dense = rg.SemiMarkov(unary, model.transition.table(2), lengths=lengths)
        assert torch.allclose(model.log_partition(), dense.log_partition())
        for scale in (1.0, 300.0):
            wide = rg.LowRank(scale * left, scale * right)
            own = rg.SemiMarkov(scale * unary, wide, lengths=lengths).marginals()
            other = rg.SemiMarkov(scale * unary, wide.table(2), lengths=lengths).marginals()
            assert torch.allclose(own, other, atol=1e-9)


def test_the_gradient_by_ranks_between_segments():
    unary = drawn(4, 2, 3, dtype=WIDE)
    sides = [drawn(3, 2, seed=seed, dtype=WIDE) for seed in (1, 2)]

    def log_z(unary, left, right):
        return rg.SemiMarkov(unary, rg.LowRank(left, right)).log_partition()

    assert torch.autograd.gradcheck(log_z, (unary, *sides), fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, (unary, *sides), fast_mode=True)


@pytest.mark.long
def test_segments_of_a_hundred_thousand_labels():
    """No table of 10^10 entries is made."""
    low = rg.LowRank(drawn(100_000, 2, seed=1), drawn(100_000, 2, seed=2))
    model = rg.SemiMarkov(drawn(4, 2, 100_000), low)
    (gradient,) = torch.autograd.grad(model.log_partition(), low.log_left)
    assert bool(gradient.isfinite().all())
    drawn_labels = model.sample(2, torch.Generator().manual_seed(0)).labels
    assert bool(model.score(rg.Segmentation(drawn_labels, drawn_labels >= 0)).isfinite().all())
    with pytest.raises(rg.errors.BudgetError, match="SemiMarkov"):
        model.mode()


@pytest.mark.parametrize("turned", [False, True])
def test_a_graph_that_is_a_chain_keeps_its_ranks(turned):
    low = rg.LowRank(drawn(4, 2, seed=1), drawn(4, 2, seed=2))
    ends = (SITES[1:], SITES[:-1]) if turned else (SITES[:-1], SITES[1:])
    unary = rg.FactorBlock((SITES,), rg.Table(drawn(2, 5, 4)))
    model = rg.FactorGraph([unary, rg.FactorBlock(ends, low)])
    dense = rg.infer(rg.FactorGraph([unary, rg.FactorBlock(ends, rg.Table(low.table(2)))]))
    found = rg.infer(model)
    assert isinstance(rg.Chain.recognise(model).structure.transition, rg.LowRank)
    for ask in IN_GRAPHS.values():
        own, other = ask(found), ask(dense)
        assert torch.allclose(own.double(), other.double(), rtol=1e-5, atol=1e-5)


def test_segments_by_embeddings():
    embeddings = drawn(4, 2, seed=1).detach() * 0.4
    pairs = rg.Bilinear(embeddings, embeddings)
    model, dense = segments(pairs), segments(pairs.table(2))
    for query, ask in IN_SEGMENTS.items():
        own, other = ask(model), ask(dense)
        assert torch.allclose(own.double(), other.double(), rtol=1e-5, atol=1e-5), query
    generator = torch.Generator().manual_seed(0)
    low = rg.infer(model, estimator=rg.LowRankFactors(4096, shared=True), generator=generator)
    assert isinstance(low.solved.structure.transition, rg.LowRank)
    assert not low.status.exact
    assert torch.allclose(low.log_partition, dense.log_partition(), atol=0.1)


def test_a_star_of_a_hundred_thousand_states():
    """Linear by ranks; a table of 10^10 values is refused, and the way out is named."""
    low = rg.LowRank(drawn(100_000, 2, seed=1), drawn(100_000, 2, seed=2))
    hub, leaves = rg.Variable("hub", 100_000), rg.VariableArray("leaf", (3,), 100_000)
    star = rg.FactorGraph(
        [
            rg.FactorBlock((leaves,), rg.Table(drawn(3, 100_000))),
            rg.FactorBlock((hub, leaves), low),
        ]
    )
    posterior = rg.infer(star, estimator=rg.LowRankFactors())
    assert posterior.status.exact
    assert float(posterior.marginal(hub).detach().sum()) == pytest.approx(1.0, abs=1e-4)
    (gradient,) = torch.autograd.grad(posterior.log_partition, low.log_left)
    assert float(gradient.sum()) == pytest.approx(3.0, abs=1e-3)
    default = rg.infer(star)
    torch.testing.assert_close(default.log_partition, posterior.log_partition)
    for ask in (posterior.mode, posterior.entropy, default.mode, default.entropy):
        with pytest.raises(rg.errors.BudgetError, match="LowRankFactors"):
            ask()
