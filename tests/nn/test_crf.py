"""The CRF layer, against enumeration and pytorch-crf."""

from itertools import product

import pytest
import torch

from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.nn import CRF

STEPS, BATCH, TAGS = 5, 4, 3
LENGTHS = torch.tensor([5, 1, 3, 2])
REDUCTIONS = ("none", "sum", "mean", "token_mean")


def inputs(*, batch_first=False, dtype=torch.float32):
    source = torch.Generator().manual_seed(0)
    emissions = torch.randn(STEPS, BATCH, TAGS, generator=source, dtype=dtype)
    tags = torch.randint(TAGS, (STEPS, BATCH), generator=source)
    mask = torch.arange(STEPS).unsqueeze(1) < LENGTHS
    if batch_first:
        return emissions.transpose(0, 1), tags.t(), mask.t()
    return emissions, tags, mask


def layer(*, batch_first=False, dtype=torch.float32):
    crf = CRF(TAGS, batch_first=batch_first).to(dtype)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=source)
    return crf


def both(*, batch_first=False):
    """Our layer and pytorch-crf's with the same parameters."""
    torchcrf = pytest.importorskip("torchcrf")
    ours, theirs = layer(batch_first=batch_first), torchcrf.CRF(TAGS, batch_first=batch_first)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def enumerated(crf, emissions, length):
    """Every sequence of tags of one item, emissions (steps, tags), and its log-probability."""
    every = torch.tensor(list(product(range(TAGS), repeat=length)))
    scores = emissions[torch.arange(length), every].sum(-1)
    scores = scores + crf.transitions[every[:, :-1], every[:, 1:]].sum(-1)
    scores = scores + crf.start_transitions[every[:, 0]] + crf.end_transitions[every[:, -1]]
    return every, scores.log_softmax(0)


@pytest.mark.parametrize("batch_first", [False, True])
def test_every_answer_by_enumeration(batch_first):
    crf = layer(batch_first=batch_first, dtype=torch.float64)
    emissions, tags, mask = inputs(batch_first=batch_first, dtype=torch.float64)
    log_likelihood = crf(emissions, tags, mask, reduction="none")
    best, entropy = crf.decode(emissions, mask), crf.entropy(emissions, mask)
    marginals = crf.marginals(emissions, mask)
    assert marginals.shape == emissions.shape
    if not batch_first:
        emissions, tags, marginals = (
            value.transpose(0, 1) for value in (emissions, tags, marginals)
        )
    for item, length in enumerate(LENGTHS.tolist()):
        every, log_p = enumerated(crf, emissions[item], length)
        own = (every == tags[item, :length]).all(-1)
        torch.testing.assert_close(log_likelihood[item], log_p[own].squeeze())
        torch.testing.assert_close(entropy[item], -(log_p.exp() * log_p).sum())
        assert best[item] == every[log_p.argmax()].tolist()
        counts = torch.nn.functional.one_hot(every, TAGS).to(log_p)
        expected = torch.einsum("s,stn->tn", log_p.exp(), counts)
        torch.testing.assert_close(marginals[item, :length], expected)
        assert (marginals[item, length:] == 0).all()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masked", [None, torch.bool, torch.uint8])
def test_agrees_with_pytorch_crf(batch_first, masked):
    ours, theirs = both(batch_first=batch_first)
    emissions, tags, mask = inputs(batch_first=batch_first)
    mask = None if masked is None else mask.to(masked)
    reference = torch.ones_like(tags, dtype=torch.bool) if mask is None else mask.bool()
    close = {"atol": 1e-4, "rtol": 1e-5}
    for reduction in REDUCTIONS:
        torch.testing.assert_close(
            ours(emissions, tags, mask, reduction),
            theirs(emissions, tags, reference, reduction),
            **close,
        )
    assert ours.decode(emissions, mask) == theirs.decode(emissions, reference)
    found = [
        torch.autograd.grad(module(emissions, tags, given), list(module.parameters()))
        for module, given in ((ours, mask), (theirs, reference))
    ]
    torch.testing.assert_close(*found, **close)


def test_agrees_with_pytorch_crf_on_larger_inputs():
    torchcrf = pytest.importorskip("torchcrf")
    source = torch.Generator().manual_seed(2)
    steps, batch, count = 60, 16, 12
    ours, theirs = CRF(count, batch_first=True), torchcrf.CRF(count, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    emissions = 3 * torch.randn(batch, steps, count, generator=source)
    tags = torch.randint(count, (batch, steps), generator=source)
    lengths = torch.randint(1, steps + 1, (batch,), generator=source)
    mask = torch.arange(steps) < lengths.unsqueeze(1)
    own, reference = (
        module(emissions.double(), tags, mask, reduction="none")
        for module in (ours.double(), theirs.double())
    )
    torch.testing.assert_close(own, reference, atol=1e-4, rtol=0)
    assert ours.decode(emissions.double(), mask) == theirs.decode(emissions.double(), mask)


def test_starts_as_pytorch_crf_does_and_takes_its_checkpoints():
    torchcrf = pytest.importorskip("torchcrf")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = CRF(7)
        torch.manual_seed(0)
        theirs = torchcrf.CRF(7)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert all((parameter.abs() <= 0.1).all() for parameter in ours.parameters())
    assert layer().load_state_dict(torchcrf.CRF(TAGS).state_dict())


WRONG = {
    "two dimensions": lambda e, t, m: (e[0], t, m),
    "other tags": lambda e, t, m: (e[..., :2], t, m),
    "tags that do not fit": lambda e, t, m: (e, t[:2], m),
    "mask that does not fit": lambda e, t, m: (e, t, m[:2]),
    "first step masked": lambda e, t, m: (e, t, m.flip(0)),
    "reduction": lambda e, t, m: (e, t, m, "most"),
}


@pytest.mark.parametrize("what", WRONG)
def test_refuses_what_pytorch_crf_refuses(what):
    arguments = WRONG[what](*inputs())
    theirs = both()[1]
    with pytest.raises(ValueError, match=r"dimension|mask|reduction"):
        theirs(*arguments)
    with pytest.raises(ModelError) as error:
        layer()(*arguments)
    assert "\n" not in str(error.value)


def test_refuses_gaps_tags_out_of_range_and_no_tags():
    emissions, tags, mask = inputs()
    gap = mask.clone()
    gap[1, 0] = False
    with pytest.raises(ModelError, match="gaps"):
        layer()(emissions, tags, gap)
    with pytest.raises(EvidenceError, match=str(TAGS)):
        layer()(emissions, tags + TAGS, mask)
    with pytest.raises(ModelError, match="emissions must be"):
        layer()(emissions.detach().numpy(), tags, mask)
    with pytest.raises(ModelError, match="num_tags=0"):
        CRF(0)


def test_what_is_masked_changes_nothing():
    crf = layer()
    emissions, tags, mask = inputs()
    other = torch.where(mask.unsqueeze(-1), emissions, 100.0)
    padded = torch.where(mask, tags, -100)
    torch.testing.assert_close(crf(other, padded, mask), crf(emissions, tags, mask))
    assert crf.decode(other, mask) == crf.decode(emissions, mask)
    grown = other.clone().requires_grad_()
    crf(grown, padded, mask).backward()
    assert (grown.grad[~mask] == 0).all()


def test_scores_of_another_precision():
    emissions, tags, mask = inputs()
    crf = layer()
    exact = crf(emissions.double(), tags, mask)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), crf(emissions, tags, mask))
    assert crf(emissions.bfloat16(), tags, mask).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_likelihoods_in_half_precision_are_not_rounded_by_the_size_of_scores(dtype):
    crf, emissions = CRF(1).to(dtype), torch.linspace(40, 60, 7).reshape(7, 1, 1).to(dtype)
    likelihood = crf(emissions, torch.zeros(7, 1, dtype=torch.long))
    torch.testing.assert_close(likelihood, torch.tensor(0.0), rtol=0, atol=1e-4)


def test_learns_a_rule_that_emissions_do_not_show():
    """Tags alternate and nothing else tells: only the transitions can learn it."""
    crf = CRF(2, batch_first=True)
    tags = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]])
    emissions = torch.zeros(2, 6, 2)
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        (-crf(emissions, tags)).backward()
        optimizer.step()
    torch.testing.assert_close(
        crf.entropy(emissions).exp(), torch.full((2,), 2.0), atol=0.1, rtol=0
    )
    hint = torch.zeros(1, 6, 2)
    hint[0, 3, 0] = 1.0
    assert crf.decode(hint) == [[1, 0, 1, 0, 1, 0]]


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_order_of_batch_and_steps_is_named_where_another_fits(batch_first):
    generator = torch.Generator().manual_seed(0)
    wrong, right = CRF(3, batch_first=not batch_first), CRF(3, batch_first=batch_first)
    emissions = torch.randn(2, 5, 3, generator=generator)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    tags = torch.zeros(2, 5, dtype=torch.long)
    if not batch_first:
        emissions, mask, tags = (each.transpose(0, 1) for each in (emissions, mask, tags))
    # The whole batch in the other order: the mask has gaps then.
    for ask in (wrong.decode, wrong.marginals, lambda *given: wrong(given[0], tags, given[1])):
        with pytest.raises(ModelError, match=r"exchanged: .* batch_first of a CRF") as e:
            ask(emissions, mask)
        assert "\n" not in str(e.value)
    # A part of it in the other order.
    for crf in (wrong, right):
        for name, given in (("mask", (tags, mask.t())), ("tags", (tags.t(), mask))):
            match = rf"^{name} must .* the other order. With batch_first={crf.batch_first} "
            with pytest.raises(ModelError, match=match):
                crf(emissions, *given)
    # What the messages advise.
    assert right(emissions, tags, mask).isfinite()
    assert wrong(emissions.transpose(0, 1), tags.t(), mask.t()).isfinite()
    # A mask with gaps in both orders.
    holes = mask.clone()
    holes[1, 1] = False
    with pytest.raises(ModelError) as e:
        right.decode(emissions, holes)
    assert "exchanged" not in str(e.value)
