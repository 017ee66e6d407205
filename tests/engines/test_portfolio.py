"""Answers of `Auto` without a limit, by counts of operations, beside those of messages alone."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.answers import Move
from rdpgraph.loopy import Sweep
from rdpgraph.plan import clock

DOUBLE = torch.float64


def grid(side: int, scale: float, states: int = 2, seed: int = 0) -> rg.FactorGraph:
    """Couplings of either sign, and weak fields."""
    generator = torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (side, side), states)
    same = torch.eye(states, dtype=DOUBLE)

    def coupled(*shape: int) -> rg.Table:
        strengths = torch.randn(*shape, 1, 1, generator=generator, dtype=DOUBLE)
        return rg.Table(scale * strengths * same)

    fields = 0.5 * torch.randn(side, side, states, generator=generator, dtype=DOUBLE)
    return rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table(fields)),
        rg.FactorBlock((x[:, 1:], x[:, :-1]), coupled(side, side - 1)),
        rg.FactorBlock((x[1:], x[:-1]), coupled(side - 1, side)),
    ])  # fmt: skip


def code(bits: int, noise: float, seed: int) -> tuple[rg.FactorGraph, torch.Tensor]:
    """A random code of three checks for each bit, its zero word sent; (checks, 6) bits of each."""
    generator = torch.Generator().manual_seed(seed)
    checks = torch.cat([torch.randperm(bits, generator=generator).reshape(-1, 6) for _ in range(3)])
    flipped = torch.rand(bits, generator=generator) < noise
    ratio = torch.where(flipped, -1.0, 1.0) * math.log((1 - noise) / noise)
    x = rg.VariableArray("x", (bits,), 2)
    seen = rg.FactorBlock((x,), rg.Table(torch.stack([ratio, -ratio], -1).double() / 2))
    words = [rg.Factor(tuple(x[i] for i in row), rg.Xor(6, parity=0)) for row in checks.tolist()]
    return rg.FactorGraph([seen, *words]), checks


def violated(states: torch.Tensor, checks: torch.Tensor) -> int:
    return int((states[checks].sum(1) % 2).sum())


@pytest.mark.long
def test_answers_without_a_limit_look_at_no_clock(monkeypatch):
    graph = grid(4, 1.0)

    def answers():
        posterior = rg.infer(graph, scheduler=rg.Auto(memory=500))
        assert posterior.plan.route != "contraction"
        mode = graph.score({**posterior.mode()})
        return posterior.marginal("x"), mode, posterior.log_partition

    before = answers()
    ticks = itertools.count()
    monkeypatch.setattr(clock, "perf_counter", lambda: 1e3 * next(ticks))
    for one, other in zip(before, answers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_what_is_counted_ends_what_has_a_deadline():
    counter = clock.Counter()
    allowance = clock.Allowance(2.0, 0.0, counter)
    with allowance.spending():
        begin = clock.now()
        clock.count(3e8)
        assert 1.0 < clock.now() - begin < 1.01
    assert 1.0 < allowance.spent < 1.01
    assert counter.seconds < 1.01
    before = counter.seconds
    clock.count(3e8)  # outside, by nobody
    clock.now()
    assert counter.seconds == before


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_marginals_of_grids_are_no_further_from_exact_ones_than_plain_messages(scale):
    ours = theirs = 0.0
    for seed in range(2):
        graph = grid(8, scale, seed=seed)
        exact = rg.infer(graph, scheduler=rg.Contraction()).marginal("x")
        tight = rg.infer(graph, scheduler=rg.Auto(memory=6e3)).marginal("x")
        plain = rg.infer(graph, scheduler=rg.Loopy()).marginal("x")
        ours += float((tight - exact).abs().mean())
        theirs += float((plain - exact).abs().mean())
    assert ours <= theirs + 1e-4  # messages stop at a tolerance


@pytest.mark.long
@pytest.mark.parametrize(("noise", "seed"), [(0.04, 0), (0.08, 1)])
def test_no_more_checks_are_violated_than_by_plain_messages(noise, seed):
    graph, checks = code(60, noise, seed)
    ours, theirs = (
        rg.infer(graph, scheduler=one).marginal("x").argmax(-1)
        for one in (rg.Auto(memory=1e6), rg.Loopy())
    )
    assert violated(ours, checks) <= violated(theirs, checks)
    if noise < 0.05:
        assert violated(ours, checks) == 0


@pytest.mark.long
def test_seconds_are_for_plain_messages_until_they_end():
    graph, checks = code(60, 0.08, 17)
    theirs = rg.infer(graph, scheduler=rg.Loopy()).marginal("x").argmax(-1)
    with clock.counted(clock.Counter()):
        ours = rg.infer(graph, scheduler=rg.Auto(memory=1e5, seconds=0.5)).marginal("x").argmax(-1)
    assert violated(ours, checks) <= violated(theirs, checks)


def counted(graph: rg.FactorGraph, scheduler: rg.Auto | rg.Loopy) -> tuple[torch.Tensor, float]:
    """Marginals, and the seconds counted for them."""
    counter = clock.Counter()
    with clock.counted(counter):
        return rg.infer(graph, scheduler=scheduler).marginal("x"), counter.seconds


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_no_more_checks_are_violated_however_short_the_time(ratio):
    graph, checks = code(60, 0.06, 3)
    plain, seconds = counted(graph, rg.Loopy())
    ours = counted(graph, rg.Auto(memory=1e6, seconds=ratio * seconds))[0]
    theirs = counted(graph, rg.Loopy(seconds=ratio * seconds))[0] if ratio < 1.0 else plain
    assert violated(ours.argmax(-1), checks) <= violated(theirs.argmax(-1), checks)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_short_time_is_for_plain_messages(ratio):
    graph = grid(12, 1.0)
    plain, seconds = counted(graph, rg.Loopy())
    tight = counted(graph, rg.Auto(memory=1e4, seconds=ratio * seconds))[0]
    torch.testing.assert_close(tight, plain, atol=1e-3, rtol=0.0)


@pytest.mark.long
def test_modes_are_no_worse_than_those_that_messages_decode():
    graph, checks = code(18, 0.1, 1)
    modes = [rg.infer(graph, scheduler=rg.Auto(memory=1e4)).mode()]
    # What messages alone say: no search goes on from there.
    modes.append(rg.infer(graph, scheduler=rg.Loopy()).solution.mode().reshape(-1))
    ours, theirs = modes[0]["x"], modes[1]
    counts = [violated(states, checks) for states in (ours, theirs)]
    scores = [float(graph.score_states(states)) for states in (ours, theirs)]
    assert counts[0] <= counts[1]
    assert scores[0] >= scores[1] - 1e-9 or counts[0] < counts[1]


def image(side: int) -> rg.FactorGraph:
    """Noisy squares in four levels, and neighbours that like to be near."""
    level = torch.linspace(0.0, 1.2, 4, dtype=DOUBLE)
    row = torch.arange(side) // 12
    noise = torch.randn(side, side, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    seen = (row.unsqueeze(1) + row) % 2 + 0.8 * noise
    near = rg.Table(-0.9 * (3.0 * (level.unsqueeze(1) - level).abs()).clamp(max=1.0))
    x = rg.VariableArray("x", (side, side), 4)
    return rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table(-((seen.unsqueeze(-1) - level) ** 2) / 1.3)),
        rg.FactorBlock((x[1:], x[:-1]), near),
        rg.FactorBlock((x[:, 1:], x[:, :-1]), near),
    ])  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.6, 0.9])
def test_modes_of_images_are_no_worse_than_those_of_messages_in_half_the_time(seconds):
    graph = image(48)
    with clock.counted(clock.Counter()):
        ours = rg.infer(graph, scheduler=rg.Auto(memory=1e6, seconds=seconds)).mode()
    with clock.counted(clock.Counter()):
        theirs = rg.infer(graph, scheduler=rg.Loopy(seconds=seconds / 2)).mode()
    assert float(graph.score({**ours})) >= float(graph.score({**theirs})) - 1e-9


@pytest.mark.long
def test_progress_is_told_of_sweeps_and_moves():
    seen: list[Sweep | Move] = []
    graph = grid(8, 2.0)
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=2e3, progress=seen.append))
    posterior.marginal("x")
    assert any(isinstance(one, Sweep) for one in seen)
    mode = posterior.mode()
    moves = [one for one in seen if isinstance(one, Move)]
    assert [one.number for one in moves] == list(range(1, len(moves) + 1))
    assert moves[-1].score == pytest.approx(float(graph.score({**mode})))
    with pytest.raises(
        rg.errors.ModelError, match="Auto needs progress as a function or None; got 3"
    ):
        rg.Auto(progress=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.long
def test_a_search_begins_with_what_messages_say():
    graph = grid(16, 0.6, states=4)
    with clock.counted(clock.Counter()):
        found = rg.infer(graph, scheduler=rg.Search(seconds=0.5)).mode()
    said = rg.infer(graph, scheduler=rg.Loopy()).mode()
    assert float(graph.score({**found})) >= float(graph.score({**said})) - 1e-9


@pytest.mark.long
def test_a_plan_says_how_many_seconds_exact_answers_take():
    x, same = rg.VariableArray("x", (7, 30), 8), rg.Table(torch.eye(8))
    graph = rg.FactorGraph(
        [rg.FactorBlock((x[1:], x[:-1]), same), rg.FactorBlock((x[:, 1:], x[:, :-1]), same)]
    )
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=4e9))
    assert "exact inference would take about" in posterior.plan.why
    assert not posterior.status.exact
    named = float(posterior.plan.why.split("Auto(seconds=")[1].split(")")[0])
    assert named > 10.0
    assert f"Auto(seconds={named:.0f})" in posterior.status.remedy


@pytest.mark.long
def test_marginals_of_an_assignment_add_up_without_a_limit():
    size, generator = 40, torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (size, size), 2)
    weights = torch.zeros(size, size, 2)
    weights[..., 1] = torch.randn(size, size, generator=generator)
    once = rg.ExactlyOne(size)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(weights)),
            rg.FactorBlock(tuple(x[:, k] for k in range(size)), once),
            rg.FactorBlock(tuple(x[k] for k in range(size)), once),
        ]
    )
    chosen = rg.infer(graph).marginal(x)[..., 1]
    for dim in (0, 1):
        torch.testing.assert_close(chosen.sum(dim), torch.ones(size), atol=1e-2, rtol=0.0)


@pytest.mark.long
@pytest.mark.parametrize(("scale", "answers"), [(1.0, "join graph"), (3.0, "loopy")])
def test_a_plan_says_which_messages_are_first_and_which_others_may_answer(scale, answers):
    graph, scheduler = grid(5, scale), rg.Auto(memory=1e3, seconds=2.0)
    with clock.counted(clock.Counter()):
        plan = rg.explain(graph, scheduler)
        method = rg.infer(graph, scheduler).status_of("marginals").method
    assert plan.route == "join graph"
    assert "are used if those between clusters do not converge" in plan.why
    assert method == answers  # as only a run shows


def test_a_plan_does_not_depend_on_those_made_before():
    scheduler = rg.Auto(memory=1013.0)  # a budget that no other test has: nothing is cached
    first, again = (rg.explain(grid(6, 2.0), scheduler) for _ in range(2))
    assert again == first
