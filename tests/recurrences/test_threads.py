"""Items, or places of a few items, over threads: the answers are those of one thread."""

import pytest
import torch

from tests.recurrences import written
from tests.recurrences.cases import logs


@pytest.fixture
def by_threads():
    """Ask with one thread, and with several."""
    before = torch.get_num_threads()

    def asked(answer):
        for threads in (1, 3):
            torch.set_num_threads(threads)
            yield answer()

    yield asked
    torch.set_num_threads(before)


def large(name, dtype):
    """Recurrences of work enough for threads, of all lengths, with a shared matrix or one each."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.arange(14) * 2

    def r(*shape):
        return logs(g, *shape, hard=0.1).to(dtype)

    return {
        "shared": lambda: written.Chain(r(14, 28, 48), r(48, 48), lengths),
        "series": lambda: written.Chain(r(14, 28, 12), r(12, 12), lengths),
        "each": lambda: written.Chain(r(14, 28, 48), r(14, 48, 48), lengths),
        "steps": lambda: written.Steps(r(14, 28, 48), r(27, 48, 48), lengths),
        "trees": lambda: written.Trees(r(7, 12, 12, 8), r(8, 8, 8), lengths[:7]),
        "grid": lambda: written.Alignment(r(7, 40, 50, 3), 3 * lengths[:7], lengths[7:]),
    }[name]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["shared", "series", "each", "steps", "trees", "grid"])
def test_answers_do_not_depend_on_the_number_of_threads(name, dtype, by_threads):
    """Not in a bit, but for what is summed thread by thread, or in products of other rows.

    The gradients of what items share are the former, and entropies the latter: how a product rounds
    depends on how many rows are multiplied together.
    """
    recurrence = large(name, dtype)

    def answers():
        values = [recurrence.log_partition(), recurrence.best_score()]
        drawn = recurrence.sample(2, torch.Generator().manual_seed(1))
        uses, scores = recurrence.k_best(3)
        values.append(scores)
        for found in (drawn, recurrence.mode(), recurrence.max_marginals(), uses):
            values += found.values()
        rounded = recurrence.entropy(), *gradients(recurrence)
        return values, [*recurrence.marginals().values()], rounded

    (values, marginals, shared), *others = by_threads(answers)
    for other in others:
        assert all(map(torch.equal, values, other[0]))
        assert all(map(torch.equal, marginals, other[1]))
        for one, same in zip(shared, other[2], strict=True):
            torch.testing.assert_close(one, same)


def gradients(recurrence):
    given = {k: x for k, x in recurrence.given.items() if x is not None}
    leaves = {k: x.clone().requires_grad_() for k, x in given.items() if x.is_floating_point()}
    made = type(recurrence)(**(given | leaves))
    log_z, entropy = made.log_partition(), made.entropy()
    first = torch.autograd.grad(log_z[log_z.isfinite()].sum(), [*leaves.values()])
    return *first, *torch.autograd.grad(entropy.sum(), [*leaves.values()])


def chart(name, dtype):
    """Recurrences of one item, or two, whose steps have work enough for threads."""
    g = torch.Generator().manual_seed(2)

    def r(*shape):
        return logs(g, *shape, hard=0.1).to(dtype)

    return {
        "trees": lambda: written.Trees(r(1, 28, 28, 24), r(24, 24, 24)),
        "two items": lambda: written.Trees(
            r(2, 26, 26, 24), r(2, 24, 24, 24), torch.tensor([26, 22])
        ),
        "faint": lambda: written.Trees(20 * r(28, 28, 24), 20 * r(24, 24, 24)),
        "ranks": lambda: written.LowRankTrees(r(30, 30, 90), r(90, 80), r(90, 80), r(90, 80)),
        "words": lambda: written.WordLabels(r(24, 24, 22), r(20, 22, 22)),
        "kept": lambda: written.KeptTrees(
            r(20, 20, 10), r(40, 40, 40), None, torch.randint(40, (20, 20, 10), generator=g)
        ),
        "segments": lambda: written.Segments(r(40, 30, 64), r(64, 64)),
        "wide": lambda: written.Chain(r(5, 800), r(800, 800)),
        "wide, each": lambda: written.Chain(r(2, 5, 600), r(2, 600, 600), torch.tensor([5, 4])),
    }[name]()


# Trees of one item are divided as those of two and as faint ones.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name",
    [
        "trees", "ranks", "words", "kept", "segments", "wide", "wide, each",
        pytest.param("two items", marks=pytest.mark.long),
        pytest.param("faint", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_answers_for_few_items_are_equal_in_every_bit(name, dtype, by_threads):
    recurrence = chart(name, dtype)

    def answers():
        values = [recurrence.log_partition(), recurrence.best_score(), recurrence.entropy()]
        drawn = recurrence.sample(2, torch.Generator().manual_seed(1))
        for found in (drawn, recurrence.mode(), recurrence.marginals()):
            values += found.values()
        return [*values, *gradients(recurrence)]

    one, many = by_threads(answers)
    assert all(map(torch.equal, one, many))
