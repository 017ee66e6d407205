"""Answers and their statuses do not depend on what was asked before."""

import math
import warnings

import pytest
import torch

import rdpgraph as rg
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force
from tests.questions import QUESTIONS
from tests.routes import ROUTES, fixed, seeded

DOUBLE = torch.float64


def ladder(rungs=6, states=3, *, tracked=False):
    """A ladder with a leaf at each rung: to sum out its rails last leaves a table over all."""
    x, y = rg.VariableArray("x", (2, rungs), states), rg.VariableArray("y", (rungs,), states)
    shapes = ((2, rungs - 1), (rungs,), (rungs,))
    tables = [
        (1.5 * fixed(*shape, states, states, seed=seed)).requires_grad_(tracked)
        for seed, shape in enumerate(shapes)
    ]
    pairs = (x[:, :-1], x[:, 1:]), (x[0], x[1]), (x[0], y)
    blocks = [
        rg.FactorBlock(pair, rg.Table(table)) for pair, table in zip(pairs, tables, strict=True)
    ]
    return x, y, rg.FactorGraph(blocks)


def flat(answer):
    """The numbers of an answer as one vector; of a status all that it says."""
    if isinstance(answer, rg.Status):
        return str(answer), answer.trace
    if isinstance(answer, dict):
        more = [getattr(answer, name, None) for name in ("score", "bound", "optimal")]
        answer = (*answer.values(), *(part for part in more if part is not None))
    parts = answer if isinstance(answer, tuple) else (answer,)
    return torch.cat([torch.as_tensor(part).detach().double().reshape(-1) for part in parts])


def asked(ask, posterior):
    """The answer, or the error in its place."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return flat(ask(posterior))
        except rg.errors.RdpgraphError as error:
            return type(error).__name__, str(error)


def same(got, wanted, what):
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9, equal_nan=True, msg=what)
    else:
        assert got == wanted, what


ASKED = {
    "status": lambda p: p.status,
    **QUESTIONS,
    "bounds": lambda p: p.bounds(),
    "mode_bound": lambda p: p.mode_bound(),
    "status_of": lambda p: p.status_of("max_marginals"),
    "modes": lambda p: p.status_of("mode"),
}


def test_a_question_that_does_not_fit_falls_back_for_itself_alone():
    _, y, graph = ladder(tracked=True)
    needed = rg.explain(graph, rg.Contraction(memory=1e9)).stored_bytes
    scheduler = rg.Auto(memory=1.5 * needed)
    exact = rg.infer(graph, rg.Contraction(memory=1e9))
    before, after = (rg.infer(graph, scheduler) for _ in range(2))
    found = after.marginal_mode([y])
    assert not bool(found.optimal)  # it does not fit, and a search answers
    assert float(found.score) <= float(found.bound)
    assert asked(ASKED["status"], before) == asked(ASKED["status"], after)
    assert before.status == exact.status  # by another route
    for name in ("log_partition", "bounds", "marginals", "entropy", "max_marginals"):
        for posterior in (before, after):
            same(asked(ASKED[name], posterior), asked(ASKED[name], exact), name)
    tables = [block.potential.log_values for block in graph.blocks]
    for value in (lambda p: p.log_partition, lambda p: p.entropy(), lambda p: p.marginal("y[2]")):
        for posterior in (before, after):
            got, wanted = (
                torch.autograd.grad(value(p).square().sum(), tables, retain_graph=True)
                for p in (posterior, exact)
            )
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other)
    same(flat(before.marginal_mode([y])), flat(found), "a marginal mode asked last")


# Others that are short send the same messages, and keep states in the same way.
LONG = {"loopy, redrawn", "randomized ring"}


@pytest.mark.parametrize(
    "route",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in LONG))
        for name in ROUTES
        if name != "portfolio"
    ],
)
def test_every_answer_is_that_of_a_posterior_asked_nothing_else(route):
    build, options = ROUTES[route]
    model = build(0.8 * fixed(60))
    if isinstance(model, rg.FactorGraph):
        questions = ASKED
    else:
        names = ("status", "log_partition", "status_of", "marginals", "entropy", "max_marginals")
        questions = {name: ASKED[name] for name in names}

    def posterior():
        return rg.infer(model, generator=seeded(1), **options())

    # Operations are counted in place of time, so that limits of time fall alike.
    with clock.counted(clock.Counter()):
        last = posterior()
        alone = {name: asked(ask, posterior()) for name, ask in questions.items()}
        for name, ask in reversed(questions.items()):
            same(asked(ask, last), alone[name], f"{name} of {route}, after those below")
        for name, ask in questions.items():
            same(asked(ask, last), alone[name], f"{name} of {route}, after all")


@pytest.mark.long
@pytest.mark.parametrize("seconds", [None, 0.5])
def test_approximate_answers_are_those_of_a_posterior_asked_nothing_else(seconds):
    model = ladder(5, 2)[2]
    scheduler = rg.Auto(memory=300.0, seconds=seconds)
    with clock.counted(clock.Counter()):
        alone = {name: asked(ask, rg.infer(model, scheduler)) for name, ask in ASKED.items()}
        posterior = rg.infer(model, scheduler)
        assert posterior.plan.route in ("loopy", "join graph")
        for name, ask in reversed(ASKED.items()):
            same(asked(ask, posterior), alone[name], name)


def test_slices_have_all_of_the_time_for_every_answer(ticking):
    _, _, graph = ladder()
    plan = rg.explain(graph, rg.Contraction(memory=1e9))
    downwards = plan.stored_bytes - plan.peak_bytes  # small tables, in both, are always taken

    def sliced(seconds):
        posterior = rg.infer(graph, rg.Contraction(memory=downwards, seconds=seconds))
        assert posterior.plan.num_slices > 1
        return posterior

    patient = sliced(1e6)
    ticking()  # a second at each look at the clock
    begin = clock.now()
    wanted = patient.max_marginals()["y"]
    taken = clock.now() - begin
    posterior = sliced(1.5 * taken)
    for _ in range(3):  # together they take more than the limit, which is for each
        torch.testing.assert_close(posterior.max_marginals()["y"], wanted)


@pytest.mark.long
def test_a_marginal_mode_of_a_recognised_chain_is_searched_where_it_does_not_fit():
    steps, states = 5, 40
    x = rg.VariableArray("x", (steps,), states)
    pairs = fixed(steps - 1, states, states)
    graph = rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), rg.Table(pairs))])
    posterior = rg.infer(graph, rg.Auto(memory=30_000))
    assert posterior.plan.route == "structure"
    found = posterior.marginal_mode([x[0], x[2], x[4]])
    # The mass of all configurations of the three, by products of the tables.
    first, second = (pairs[n].exp() @ pairs[n + 1].exp() for n in (0, 2))
    masses = (first.unsqueeze(2) * second.unsqueeze(0)).log()
    place = tuple(int(states) for states in found.values())
    assert float(found.score) == pytest.approx(float(masses[place]))
    assert float(masses.max()) <= float(found.bound) + 1e-9
    assert bool(found.optimal) <= (float(masses[place]) > float(masses.max()) - 1e-9)
    assert posterior.status.exact
    total = masses.reshape(-1).logsumexp(0)
    torch.testing.assert_close(posterior.log_partition, total)


def test_a_mode_is_exact_where_it_is_proved():
    _, _, graph = ladder(5, 2)
    posterior = rg.infer(graph, rg.Auto(memory=300.0))
    assert not posterior.status.exact
    assert posterior.status_of("mode").exact == bool(posterior.mode_is_optimal())
    assert float(graph.score(posterior.mode())) <= float(brute_force(graph).maximum) + 1e-9


def test_what_is_approximate_beside_exact_sums_says_so():
    x = rg.VariableArray("x", (4,), 300)
    pairs = torch.combinations(torch.arange(4)).tolist()
    sides = fixed(len(pairs), 2, 300, 2)
    graph = rg.FactorGraph(
        [
            rg.Factor((x[i], x[j]), rg.LowRank(*own))
            for (i, j), own in zip(pairs, sides, strict=True)
        ]
    )
    posterior = rg.infer(graph)
    status = posterior.status
    with pytest.warns(UserWarning, match="entropy is approximate here"):
        posterior.entropy()
    assert not posterior.status_of("entropy").exact
    assert status.exact  # of log Z and marginals, which sum over ranks
    assert posterior.status == status
    other = rg.infer(graph, estimator=rg.LowRankFactors())
    torch.testing.assert_close(posterior.log_partition, other.log_partition)
    torch.testing.assert_close(posterior.marginal(x), other.marginal(x))


@pytest.mark.parametrize("wrong", ["marginal_mode", "log_z", 3, None])
def test_a_status_is_of_an_answer_that_there_is(wrong):
    posterior = rg.infer(ladder()[2])
    with pytest.raises(rg.errors.ModelError, match="status_of needs the name of an answer"):
        posterior.status_of(wrong)
    for name in ("log_partition", "marginals", "entropy", "max_marginals", "mode", "sample"):
        assert posterior.status_of(name).exact
    assert math.isfinite(posterior.log_partition)


def test_means_of_populations_have_as_much_time_whatever_was_asked_before():
    _, _, graph = ladder()
    found = []
    for first in (None, lambda p: p.log_partition):
        with clock.counted(clock.Counter()):
            posterior = rg.infer(graph, rg.MiniBuckets(memory=2e3, seconds=0.05))
            if first is not None:
                first(posterior)
            found.append(torch.cat([part.flatten() for part in posterior.marginals().values()]))
    same(found[1], found[0], "marginals after log Z")
