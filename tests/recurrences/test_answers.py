"""Answers of recurrences against all derivations, one by one."""

import math

import pytest
import torch

from tests.recurrences import written
from tests.recurrences.cases import NAMES, logs, small
from tests.recurrences.enumeration import Derivations

close = torch.testing.assert_close


@pytest.mark.parametrize("hard", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_all_derivations(name, hard):
    recurrence = small(name, hard)
    log_z, best, count = recurrence.log_partition(), recurrence.best_score(), recurrence.count()
    marginals, entropy = recurrence.marginals(), recurrence.entropy()
    for item in range(3):
        every = Derivations(recurrence, (item,))
        close(log_z[item], every.log_partition)
        close(best[item], every.scores.max())
        assert int(count[item]) == int((every.scores > -math.inf).sum())
        close(entropy[item], every.entropy(), atol=1e-12, rtol=1e-12)
        for array, means in every.marginals().items():
            close(marginals[array][item], means)


@pytest.mark.parametrize("name", NAMES)
def test_an_item_has_the_answers_that_it_has_alone(name):
    recurrence = small(name, 0.2)
    together = recurrence.log_partition()
    for item in range(3):
        alone = {}
        for key, value in recurrence.given.items():
            array = recurrence.program.by_name.get(key)
            rank = 0 if array is None else len(array.dims)
            alone[key] = value[item] if value is not None and value.ndim > rank else value
        close(type(recurrence)(**alone).log_partition(), together[item])


@pytest.mark.parametrize("name", NAMES)
def test_first_derivatives(name):
    recurrence = small(name)
    tensors = [value.requires_grad_() for value in recurrence._logs().values()]
    assert torch.autograd.gradcheck(recurrence._log_partition_of, tensors, fast_mode=True)


@pytest.mark.parametrize("name", ["Chain", "Segments", "Alignment", "Trees", "Projective", "Ctc"])
def test_second_derivatives(name):
    recurrence = small(name)
    tensors = [value.requires_grad_() for value in recurrence._logs().values()]
    assert torch.autograd.gradgradcheck(recurrence._log_partition_of, tensors, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_impossible_items_have_no_nan(name):
    recurrence = small(name, 1.0)
    tensors = [value.requires_grad_() for value in recurrence._logs().values()]
    log_z = recurrence.log_partition()
    assert bool(((log_z == -math.inf) | (log_z == 0)).all())  # 0: the empty derivation
    gradients = torch.autograd.grad(log_z.sum(), tensors, allow_unused=True)
    assert all(part is None or not bool(part.any()) for part in gradients)
    assert not bool(recurrence.entropy().any())


def test_sequences_apart_add_up_also_where_one_is_empty():
    g = torch.Generator().manual_seed(0)
    one, other = logs(g, 4, 3, 2), logs(g, 4, 2, 3)
    ends, more = torch.tensor([3, 0, 2, 0]), torch.tensor([2, 1, 0, 0])
    both = written.Apart(one, other, ends, more).log_partition()
    for item in range(4):
        parts = (
            one[item, : ends[item]].logsumexp(-1).sum(),
            other[item, : more[item]].logsumexp(-1).sum(),
        )
        close(both[item], parts[0] + parts[1])


def test_batch_dims_are_those_of_all_tensors_broadcast():
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 2, 1, 4, 3), logs(g, 5, 3, 3)
    log_z = written.Chain(sites, transition).log_partition()
    assert log_z.shape == (2, 5)
    for i in range(2):
        for j in range(5):
            close(written.Chain(sites[i, 0], transition[j]).log_partition(), log_z[i, j])
    assert written.Chain(sites[0, 0], transition[0]).log_partition().shape == ()


def test_scores_too_far_apart_for_products_are_summed_in_logs():
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        sites, transition = 500 * logs(g, 2, 4, 3), 2000 * logs(g, 3, 3)
        chain = written.Chain(sites.to(dtype), transition.to(dtype))
        wanted = torch.stack(
            [Derivations(written.Chain(sites, transition), (k,)).log_partition for k in (0, 1)]
        )
        close(chain.log_partition(), wanted.to(dtype), rtol=1e-5, atol=0)


def test_links_never_take_an_entry_for_each_step_and_pair_of_labels():
    """The largest tensor that autograd keeps is smaller than steps x labels x labels."""
    steps, labels = 50, 40
    g = torch.Generator().manual_seed(0)
    sites = logs(g, steps, labels).requires_grad_()
    chain = written.Chain(sites, logs(g, labels, labels).requires_grad_())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda part: kept.append((part.untyped_storage().data_ptr(), part.numel())) or part,
        lambda part: part,
    ):
        chain.log_partition().backward()
    assert sum(dict(kept).values()) < steps * labels * labels / 2
