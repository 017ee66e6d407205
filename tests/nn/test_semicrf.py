"""The semi-Markov CRF layer, against enumeration, and with sums made again against kept ones."""

from itertools import pairwise

import pytest
import torch

from rdpgraph import Segmentation
from rdpgraph.errors import (
    EvidenceError,
    ImpossibleEvidenceError,
    ModelError,
    UnsupportedError,
)
from rdpgraph.nn import Constraints, SemiCRF

LENGTHS = torch.tensor([5, 1, 3])
MASK = torch.arange(5) < LENGTHS.unsqueeze(1)
ONES = Segmentation(torch.zeros(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool))
RULES = Constraints(
    torch.tensor([True, True, False]),
    torch.tensor([[True, False, True], [True, True, True], [True, True, True]]),
    torch.tensor([True, False, True]),
)


@pytest.fixture(params=[False, True], ids=["kept", "streamed"])
def route(request, small_blocks):
    """Both ways to answer; pieces of two positions."""
    if request.param:
        small_blocks(2 * 3 * 2 * 3)


def layer(constraints=None):
    crf = SemiCRF(3, 2, constraints=constraints).double()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=source)
    return crf


def emissions():
    return torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def every(length, tags=3, durations=2, first=0):
    """All segmentations as lists of (tag, first, after the last)."""
    if first == length:
        return [[]]
    return [
        [(tag, first, stop), *rest]
        for stop in range(first + 1, min(first + durations, length) + 1)
        for tag in range(tags)
        for rest in every(length, tags, durations, stop)
    ]


def scored(crf, scores, segments, rules):
    """The score of segments by the definition."""
    tags = [tag for tag, _, _ in segments]
    total = crf.start_transitions[tags[0]] + crf.end_transitions[tags[-1]]
    for tag, first, stop in segments:
        total = total + scores[first:stop, tag].sum() + crf.durations[stop - first - 1, tag]
    for one, other in pairwise(tags):
        total = total + crf.transitions[one, other]
    fits = rules is None or (
        rules.start[tags[0]]
        and rules.end[tags[-1]]
        and all(rules.transitions[pair] for pair in pairwise(tags))
    )
    return total if fits else torch.tensor(-torch.inf, dtype=torch.float64)


def segmentation(rows):
    labels, starts = torch.full((3, 5), -100), torch.ones(3, 5, dtype=torch.bool)
    for item, segments in enumerate(rows):
        for tag, first, stop in segments:
            labels[item, first:stop] = tag
            starts[item, first:stop] = torch.arange(stop - first) == 0
    return Segmentation(labels, starts)


@pytest.mark.parametrize("rules", [None, RULES], ids=["free", "constrained"])
def test_likelihood_gradients_and_best_segments_by_enumeration(route, rules):
    crf, scores = layer(rules), emissions().requires_grad_()
    wrong = scores.masked_fill(~MASK.unsqueeze(-1), torch.nan)
    possible = [every(length) for length in LENGTHS.tolist()]
    rows = [each[7 % len(each)] for each in possible]
    logs = [
        torch.stack([scored(crf, scores[item], segments, rules) for segments in each])
        for item, each in enumerate(possible)
    ]
    expected = torch.stack([log[7 % len(log)] - log.logsumexp(0) for log in logs])
    found = crf(wrong, segmentation(rows), MASK, reduction="none")
    torch.testing.assert_close(found, expected)
    assert crf.decode(wrong, MASK) == [
        each[log.argmax()] for each, log in zip(possible, logs, strict=True)
    ]
    asked = [scores, *crf.parameters()]
    alive = expected > -torch.inf
    torch.testing.assert_close(
        torch.autograd.grad(found[alive].sum(), asked),
        torch.autograd.grad(expected[alive].sum(), asked),
    )


def test_reductions_and_the_chain_agree(route):
    crf, scores = layer(), emissions()
    given = segmentation([[(0, 0, 2), (1, 2, 3), (1, 3, 5)], [(2, 0, 1)], [(1, 0, 1), (0, 1, 3)]])
    each = crf(scores, given, MASK, reduction="none")
    chain = crf.chain(scores, MASK)
    torch.testing.assert_close(each, chain.score(given) - chain.log_partition())
    torch.testing.assert_close(crf(scores, given, MASK), each.sum())
    torch.testing.assert_close(crf(scores, given, MASK, reduction="mean"), each.mean())
    tokens = crf(scores, given, MASK, reduction="token_mean")
    torch.testing.assert_close(tokens, each.sum() / LENGTHS.sum())


def test_long_segments_are_impossible(route):
    crf, scores = layer(), emissions()
    given = segmentation([[(0, 0, 3), (1, 3, 5)], [(2, 0, 1)], [(1, 0, 1), (0, 1, 3)]])
    found = crf(scores, given, MASK, reduction="none")
    assert found[0] == -torch.inf
    assert found[1:].isfinite().all()


def test_second_derivatives_of_long_segmentations_are_refused(small_blocks):
    crf, scores = layer(), emissions()
    given = segmentation([[(0, 0, 2), (1, 2, 3), (1, 3, 5)], [(2, 0, 1)], [(1, 0, 1), (0, 1, 3)]])
    small_blocks(1)
    with pytest.raises(UnsupportedError, match="differentiable once"):
        torch.autograd.functional.hessian(lambda scores: crf(scores, given, MASK), scores)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_are_refused(route, wrong):
    scores = emissions()
    scores[1, 0, 0] = wrong
    with pytest.raises(ModelError, match=r"log-values below \+inf"):
        layer().decode(scores, MASK)
    layer().decode(emissions().masked_fill(~MASK.unsqueeze(-1), wrong), MASK)


def test_no_possible_segmentation_is_refused_in_a_line(route):
    crf = layer(Constraints(*(torch.zeros(shape, dtype=torch.bool) for shape in (3, (3, 3), 3))))
    with pytest.raises(ImpossibleEvidenceError) as caught:
        crf.decode(emissions())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: SemiCRF(0, 2), ModelError, "A SemiCRF needs one tag or more; got num_tags=0"),
        (lambda: SemiCRF(2, 0), ModelError, "one duration or more; got 0"),
        (lambda: SemiCRF(2, 2, constraints=RULES), ModelError, "A SemiCRF of 2 tags"),
        (lambda: layer()(emissions()[0], None), ModelError, r"must be \(batch, steps, 3\)"),
        (lambda: layer()(emissions(), MASK), EvidenceError, "needs a Segmentation"),
        (lambda: layer().decode(emissions()[:, :0]), ModelError, "one step or more"),
        (lambda: layer()(emissions(), ONES, reduction="all"), ModelError, "reduction must be"),
    ],
)
def test_bad_input_is_refused_in_a_line(ask, error, message):
    with pytest.raises(error, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)
