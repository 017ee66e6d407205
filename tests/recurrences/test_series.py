"""Links in series keep probabilities from step to step: beside the interpreter and formulas."""

import math

import pytest
import torch

from rdpgraph import Input, Lengths, Recurrence
from tests.recurrences.reference import interpreted
from tests.structures.declared.models import Tags as Chain


class Words(Recurrence):
    """Scores of words, a prior of each step, and a first part whose rules differ."""

    unary, emission, transition = Input("T N"), Input("N W"), Input("N N")
    words, lengths = Input("T", whole=True), Lengths("T")
    rules = """
        a[t, n] += unary[t, n] if t < 2
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n] * emission[n, words[t]]
        goal    += a[lengths-1, n]
    """


KINDS = ("plain", "zeros", "far", "closed", "impossible")


def draw(kind: str, *shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Logs: of a few nats, with hard zeros, thousands of nats apart, or with a column of zeros."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.randn(shape, generator=generator, dtype=torch.float64)
    apart = torch.rand(shape, generator=generator)
    if kind == "far":
        logs = logs * 3000
    if kind == "zeros":
        logs = torch.where(apart < 0.4, -math.inf, logs)
    if kind == "closed":
        logs[..., 0] = -math.inf
    if kind == "impossible":
        logs[0] = -math.inf
    return logs.to(dtype)


def model(
    kind: str, batch: int, steps: int, states: int, dtype: torch.dtype = torch.float64
) -> Chain:
    unary = draw(kind, batch, steps, states, seed=steps + states, dtype=dtype)
    other = "plain" if kind == "impossible" else kind
    transition = draw(other, states, states, seed=batch, dtype=dtype)
    lengths = torch.arange(batch) * 5 % (steps + 1)
    lengths[0] = steps
    return Chain(unary, transition, lengths)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("batch", "steps", "states"), [(1, 9, 1), (7, 21, 5), (3, 11, 16), (7, 9, 40)]
)
def test_sums_and_gradients_are_those_of_the_interpreter(
    kind: str, batch: int, steps: int, states: int
) -> None:
    chain = model(kind, batch, steps, states)
    leaves = [x.clone().requires_grad_() for x in (chain.unary, chain.transition)]
    ours = Chain(*leaves, chain.lengths)
    theirs = interpreted(ours)
    torch.testing.assert_close(ours.log_partition(), theirs, rtol=1e-12, atol=1e-9)
    some = theirs > -math.inf
    weights = torch.linspace(1, 2, batch, dtype=torch.float64)
    own = torch.autograd.grad((ours.log_partition() * weights)[some].sum(), leaves)
    if some.any():
        known = torch.autograd.grad((theirs * weights)[some].sum(), leaves)
        for one, other in zip(own, known, strict=True):
            torch.testing.assert_close(one, other.nan_to_num(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("among", [(0,), (1,), (0, 1)])
def test_second_derivatives_of_many_states_are_those_of_the_interpreter(
    kind: str, among: tuple[int, ...]
) -> None:
    """Along directions among the gradients in scores of steps and of transitions."""
    chain = model(kind, 3, 7, 40)
    leaves = [x.clone().requires_grad_() for x in (chain.unary, chain.transition)]
    ours = Chain(*leaves, chain.lengths)
    log_z, theirs = ours.log_partition(), interpreted(ours)
    some = theirs > -math.inf
    said = [draw("plain", *x.shape, seed=9, dtype=x.dtype) for x in leaves]

    def turned(values: torch.Tensor) -> list[torch.Tensor]:
        first = torch.autograd.grad(values[some].sum(), leaves, create_graph=True)
        moved = sum((first[k].nan_to_num() * said[k]).sum() for k in among)
        assert isinstance(moved, torch.Tensor)
        return [x.nan_to_num() for x in torch.autograd.grad(moved, leaves)]

    for one, other in zip(turned(log_z), turned(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("states", [3, 20, 40])
def test_maxima_are_those_of_the_interpreter_and_modes_reach_them(kind: str, states: int) -> None:
    chain = model(kind, 5, 13, states, torch.float32)
    best = interpreted(chain, best=True)
    some = best > -math.inf
    torch.testing.assert_close(chain.by_input().best_score(), best, rtol=1e-5, atol=1e-3)
    possible = Chain(chain.unary[some], chain.transition, chain.lengths[some])
    scores = possible.score(possible.mode())
    torch.testing.assert_close(scores, best[some], rtol=1e-5, atol=1e-3)


def test_other_rules_before_a_series_and_entries_of_several_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    unary, emission, transition = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((3, 9, 4), (4, 6), (4, 4))
    )
    words = torch.randint(6, (3, 9), generator=generator)
    ours = Words(unary, emission, transition, words, torch.tensor([9, 1, 4]))
    joined = emission.T[words]
    before = [unary[:, 0]]
    for step in range(1, 9):
        arriving = (before[-1].unsqueeze(-1) + transition).logsumexp(1) + joined[:, step]
        if step < 2:
            arriving = arriving.logaddexp(torch.zeros(()))
        before.append(arriving + unary[:, step])
    known = torch.stack(before, 1).logsumexp(-1)[torch.arange(3), torch.tensor([8, 0, 3])]
    torch.testing.assert_close(ours.log_partition(), known)
    weights, given = torch.tensor([1.0, 2.0, 3.0]), (unary, emission, transition)
    own = torch.autograd.grad((ours.log_partition() * weights).sum(), given)
    for one, other in zip(own, torch.autograd.grad((known * weights).sum(), given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("states", [4, 40])
def test_float_keeps_its_digits_over_ten_thousand_steps(states: int) -> None:
    chain = model("plain", 1, 10_000, states, torch.float32)
    exact = Chain(chain.unary.double(), chain.transition.double())
    ours = Chain(chain.unary, chain.transition)
    torch.testing.assert_close(
        ours.log_partition().double(), exact.log_partition(), rtol=1e-7, atol=0.0
    )
    torch.testing.assert_close(ours.marginals().double(), exact.marginals(), rtol=0.0, atol=2e-5)
    assert (ours.marginals().sum(-1) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("states", [3, 40])
def test_draws_have_the_probabilities_of_sequences(states: int) -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 4, states, generator=generator) * 2
    unary[..., 3:] = -math.inf
    transition = torch.randn(states, states, generator=generator)
    chain = Chain(unary, transition, torch.tensor([4, 3]))
    drawn = chain.sample(4000, generator)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    expected = torch.stack([every, every], 1)
    expected[:, 1, 3] = -1
    expected = expected[: len(every)]
    for item, rows in enumerate((expected[:, 0], expected[:, 1].unique(dim=0))):
        counts = (drawn[:, item].unsqueeze(1) == rows).all(-1).sum(0)
        assert counts.sum() == 4000
        blank = torch.full((len(rows), 4), -1)
        both = torch.stack([rows if k == item else blank for k in range(2)], 1)
        log_probs = (chain.score(both) - chain.log_partition())[:, item]
        means = 4000 * log_probs.exp()
        assert ((counts - means).abs() < 5 * means.sqrt() + 3).all()


@pytest.mark.parametrize("states", [4, 40])
def test_a_second_backward_pass_has_the_same_gradients(states: int) -> None:
    chain = model("plain", 3, 9, states)
    unary = chain.unary.clone().requires_grad_()
    value = Chain(unary, chain.transition, chain.lengths).log_partition().sum()
    first, second = (torch.autograd.grad(value, unary, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)
