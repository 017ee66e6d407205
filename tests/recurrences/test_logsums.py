"""Log-sums by torch: what they cost, what they keep, and where they leave off."""

import math
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rdpgraph as rg
from rdpgraph import Input
from tests.recurrences import written
from tests.recurrences.binding import Recurrence
from tests.recurrences.cases import logs, small
from tests.recurrences.enumeration import Derivations
from tests.recurrences.test_answers import of_logs

close = torch.testing.assert_close


class Calls(TorchDispatchMode):
    """Counts calls of torch by name, and the largest tensor that one has made."""

    def __init__(self):
        super().__init__()
        self.counts, self.largest = Counter(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.counts[function.overloadpacket.__name__] += 1
        if isinstance(made, torch.Tensor):
            self.largest = max(self.largest, made.untyped_storage().nbytes() // made.itemsize)
        return made


def calls_of(recurrence, by_torch):
    """The calls of log Z and its gradient, once all that sizes decide is known."""
    inputs = [x for x in recurrence.given.values() if x is not None and x.requires_grad]

    def answer():
        torch.autograd.grad(recurrence.log_partition().sum(), inputs)

    by_torch(answer)
    with Calls() as calls:
        by_torch(answer)
    return calls


def chain(steps, labels=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 2, steps, labels), logs(g, labels, labels)
    return written.Chain(sites.to(dtype).requires_grad_(), transition.to(dtype).requires_grad_())


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (chain, 11),
        (lambda n: written.Segments(torch.zeros(2, n, 3, 4).requires_grad_(), torch.eye(4)), 60),
        (lambda n: written.Alignment(torch.zeros(2, n, n, 3).requires_grad_()), 90),
    ],
)
def test_a_step_is_some_calls_whatever_the_batch(made, most, by_torch):
    short, long = (sum(calls_of(made(n), by_torch).counts.values()) for n in (10, 20))
    assert (long - short) / 10 <= most


def test_a_link_is_made_once_for_each_place(by_torch):
    """Segments of up to 4 steps read each link 4 times; paths read each from 3 sides."""
    g = torch.Generator().manual_seed(0)
    segments = written.Segments(logs(g, 2, 12, 4, 3).requires_grad_(), logs(g, 3, 3))
    assert calls_of(segments, by_torch).counts["mm"] <= 2 * 12  # up and down
    paths = written.Paths(logs(g, 2, 6, 6, 3).requires_grad_(), logs(g, 3, 3))
    assert calls_of(paths, by_torch).counts["mm"] <= 2 * 11


def test_links_never_take_an_entry_for_each_step_and_pair_of_labels(by_torch):
    steps, labels = 50, 40
    calls = calls_of(chain(steps, labels), by_torch)
    assert calls.largest <= 2 * 2 * steps * labels


@pytest.mark.parametrize("name", ["Chain", "Segments", "Alignment", "Trees", "Projective", "Ctc"])
def test_second_derivatives(name, by_torch):
    function, inputs = of_logs(small(name), lambda recurrence: recurrence.log_partition())
    assert by_torch(lambda: torch.autograd.gradgradcheck(function, inputs, fast_mode=True))
    function, inputs = of_logs(small(name, 0.2), lambda recurrence: recurrence.entropy())
    gradients = by_torch(lambda: torch.autograd.grad(function(*inputs).sum(), inputs))
    assert all(bool(part.isfinite().all()) for part in gradients)


def test_items_that_are_all_empty_have_zeros(by_torch):
    chain = written.Chain(torch.randn(2, 4, 3), torch.randn(3, 3), torch.tensor([0, 0]))
    for name in ("log_partition", "best_score", "entropy"):
        assert by_torch(getattr(chain, name)).tolist() == [0.0, 0.0]
    assert not any(bool(x.any()) for x in by_torch(chain.marginals).values())


def test_third_derivatives(by_torch):
    function, inputs = of_logs(small("Chain"), lambda chain: chain.log_partition())

    def slopes(*values):
        return torch.autograd.grad(function(*values).sum(), values, create_graph=True)

    assert by_torch(lambda: torch.autograd.gradgradcheck(slopes, inputs, fast_mode=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_too_far_apart_for_products_are_summed_in_logs(dtype, by_torch):
    """Matrix products lose terms here, which is noticed."""
    g = torch.Generator().manual_seed(0)
    sites, transition = 500 * logs(g, 2, 4, 3), 2000 * logs(g, 3, 3)
    transition[0, 1] = -math.inf
    every = [Derivations(written.Chain(sites, transition), (item,)) for item in (0, 1)]
    parts = [sites.to(dtype).requires_grad_(), transition.to(dtype).requires_grad_()]

    def answer():
        log_z = written.Chain(*parts).log_partition()
        return log_z, *torch.autograd.grad(log_z.sum(), parts)

    log_z, *gradients = by_torch(answer)
    close(log_z, torch.stack([one.log_partition for one in every]).to(dtype), rtol=1e-5, atol=0)
    means = [one.marginals() for one in every]
    close(gradients[0], torch.stack([one["sites"] for one in means]).to(dtype), atol=1e-3, rtol=0)
    close(gradients[1], sum(one["transition"] for one in means).to(dtype), atol=1e-3, rtol=0)


def test_scores_that_change_in_opposite_ways_need_no_second_look(by_torch):
    """Spans of 200 words, of which each takes 10 nats: parts differ by 2000 nats."""
    words = 40
    sites = torch.full((1, words, words, 2), -50.0).requires_grad_()
    trees = written.Trees(sites, torch.zeros(2, 2, 2))
    log_z, count = by_torch(trees.log_partition), by_torch(trees.count)
    close(log_z.double(), count.log() - 50.0 * (2 * words - 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("steps", [600, pytest.param(10_000, marks=pytest.mark.long)])
def test_float32_keeps_its_digits(steps, by_torch):
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 1, steps, 4), logs(g, 4, 4)
    exact = rg.Chain(sites, transition)
    single = written.Chain(sites.float(), transition.float())
    log_z, marginals = by_torch(lambda: (single.log_partition(), single.marginals()["sites"]))
    close(log_z.double(), exact.log_partition(), rtol=1e-6, atol=0)
    close(marginals.double(), exact.marginals(), rtol=0, atol=3e-5)


def test_gradients_can_be_asked_for_again(by_torch):
    recurrence = chain(7)
    inputs = [recurrence.sites, recurrence.transition]

    def answer():
        log_z = recurrence.log_partition()
        ones = torch.ones_like(log_z)
        first = torch.autograd.grad(log_z, inputs, ones, retain_graph=True)
        twice = torch.autograd.grad(log_z, inputs, 2 * ones, retain_graph=True)
        several = torch.autograd.grad(
            log_z, inputs, torch.eye(2, dtype=ones.dtype), is_grads_batched=True
        )
        return first, twice, several

    check_batches(answer())
    check_batches(by_torch(answer))


def check_batches(gradients):
    first, twice, several = gradients
    for one, other, parts in zip(first, twice, several, strict=True):
        close(2 * one, other)
        close(parts.sum(0), one)


def test_inputs_written_to_before_the_gradient_are_refused(by_torch):
    recurrence = small("Chain")
    sites = recurrence.sites.clone().requires_grad_()
    held = sites * 1

    def ask():
        log_z = written.Chain(held, recurrence.transition, recurrence.lengths).log_partition()
        held.add_(1)
        log_z.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        by_torch(ask)


class Squares(Recurrence):
    """A recurrence whose products double in every step, all of them absent."""

    sites, ends = Input("T"), Input("T")
    rules = """
        a[0] += ends[0]
        a[t] += a[t-1] * a[t-1] * sites[t] + ends[t]
        goal += a[T-1]
    """


def test_what_is_absent_stays_absent_in_products_of_any_size(by_torch):
    """2^1000 factors of -inf, and one that is possible at the end."""
    ends = torch.full((1000,), -math.inf, dtype=torch.float64)
    ends[-1] = 0.5
    parts = [torch.zeros_like(ends).requires_grad_(), ends.clone().requires_grad_()]

    def answer():
        log_z = Squares(*parts).log_partition()
        return log_z, *torch.autograd.grad(log_z, parts)

    log_z, sites, given = by_torch(answer)
    assert log_z.item() == 0.5
    assert not bool(sites.any())
    assert given.nonzero().tolist() == [[999]]


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e100, 1e230])
def test_scores_of_any_size(scale, by_torch):
    """Finite scores are not absent, however low they are."""
    g = torch.Generator().manual_seed(0)
    sites = -scale * torch.rand(2, 4, 3, dtype=torch.float64, generator=g)
    recurrence = written.Chain(sites, torch.zeros(3, 3, dtype=torch.float64))
    wanted = sites.logsumexp(-1).sum(-1)
    close(by_torch(recurrence.log_partition), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["Chain", "Segments", "Ctc", "Trees", "KeptChain"])
def test_answers_on_a_gpu(name):
    recurrence = small(name, 0.2)
    given = {k: None if x is None else x.cuda() for k, x in recurrence.given.items()}
    other = type(recurrence)(**given)
    for answer in ("log_partition", "best_score", "entropy", "marginals", "max_marginals"):
        wanted, found = getattr(recurrence, answer)(), getattr(other, answer)()
        if isinstance(wanted, dict):
            for key, one in wanted.items():
                close(found[key].cpu(), one)
        else:
            close(found.cpu(), wanted)
    _, scores = other.k_best(5)
    close(scores.cpu(), recurrence.k_best(5)[1])
    assert other.sample(3)[next(iter(other.max_marginals()))].is_cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(6))
def test_series_of_links_lose_nothing(seed, dtype, by_torch):
    """Where states fall far below the best ones, and all others are forbidden afterwards."""
    g = torch.Generator().manual_seed(seed)
    spread = (1.0, 20.0, 60.0, 150.0, 400.0, 2000.0)[seed]
    sites, transition = spread * logs(g, 3, 8, 4, hard=0.2), logs(g, 4, 4, hard=0.3)
    sites[:, 4] += torch.tensor([0.0, -spread, -2 * spread, -3 * spread])
    sites[0, 6, :2] = -math.inf  # leaves what was far below at 4
    lengths = torch.tensor([8, 7, 0])

    def answer(*parts):
        parts = [x.detach().requires_grad_() for x in parts]
        log_z = written.Chain(*parts, lengths).log_partition()
        above = (log_z > -math.inf).to(log_z)
        return log_z.detach(), *torch.autograd.grad(log_z, parts, above)

    wanted = answer(sites.to(dtype).double(), transition.to(dtype).double())
    found = by_torch(lambda: answer(sites.to(dtype), transition.to(dtype)))
    rounding = torch.finfo(dtype).eps * 16
    close(found[0].double(), wanted[0], rtol=rounding, atol=rounding)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        close(one.double(), other, rtol=0, atol=rounding * 100 * spread)


def test_what_data_decide_is_worked_out_anew_when_they_are_written_to(by_torch):
    g = torch.Generator().manual_seed(0)
    rows, tails = torch.tensor([0, 0, 1, 3, 6]), torch.randint(2, (6, 2), generator=g)
    tails[0] = 0
    edges = logs(g, 6)

    def answer(data):
        return by_torch(written.Hypergraph(edges, rows, data).log_partition)

    first = answer(tails)
    tails[3:, 0] = 2
    again = answer(tails)
    assert first != again
    close(again, answer(tails.clone()))
    close(again, written.Hypergraph(edges, rows, tails).log_partition())
