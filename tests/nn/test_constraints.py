"""Constraints on labels, against the spelling of segments; and in the CRF, by enumeration."""

import math
from itertools import pairwise, product

import pytest
import torch

from rdpgraph.errors import ModelError
from rdpgraph.nn import CRF, Constraints, bio_constraints, bioes_constraints

BIO = ["O", "B-a", "I-a", "I-b", "B-b"]
BIOES = ["O", "B-a", "I-a", "E-a", "S-a", "S-b", "E-b", "B-b", "I-b"]


def spelled_bio(labels):
    """True if the labels spell out some segments."""
    open_kind = None
    for label in labels:
        letter, _, kind = label.partition("-")
        if letter == "I" and kind != open_kind:
            return False
        open_kind = None if letter == "O" else kind
    return True


def spelled_bioes(labels):
    open_kind = None
    for label in labels:
        letter, _, kind = label.partition("-")
        if (letter in "IE") != (open_kind is not None) or (letter in "IE" and kind != open_kind):
            return False
        if letter in "BI":
            open_kind = kind
        elif letter == "E":
            open_kind = None
    return open_kind is None


CASES = [(BIO, bio_constraints, spelled_bio), (BIOES, bioes_constraints, spelled_bioes)]


@pytest.mark.parametrize(("labels", "scheme", "spelled"), CASES)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_allowed_sequences_are_those_that_spell_segments(labels, scheme, spelled, length):
    allowed = scheme(labels)
    for tags in product(range(len(labels)), repeat=length):
        ok = bool(allowed.start[tags[0]]) and bool(allowed.end[tags[-1]])
        ok &= all(bool(allowed.transitions[pair]) for pair in pairwise(tags))
        assert ok == spelled([labels[tag] for tag in tags])


def test_letters_alone_are_one_kind():
    alone, named = bio_constraints(["O", "B", "I"]), bio_constraints(["O", "B-x", "I-x"])
    for part in ("start", "transitions", "end"):
        assert torch.equal(getattr(alone, part), getattr(named, part))


@pytest.mark.parametrize(("labels", "scheme", "spelled"), CASES)
def test_a_constrained_crf_is_the_free_one_given_that_segments_are_spelled(labels, scheme, spelled):
    crf = CRF(len(labels), batch_first=True, constraints=scheme(labels)).double()
    free = CRF(len(labels), batch_first=True).double()
    free.load_state_dict(crf.state_dict())  # the constraints are no part of it
    length = 3
    every = torch.tensor(list(product(range(len(labels)), repeat=length)))
    generator = torch.Generator().manual_seed(0)
    emissions = 3 * torch.randn(1, length, len(labels), generator=generator, dtype=torch.double)
    both = emissions.expand(len(every), -1, -1)
    scores = free.chain(both).score(every).detach()
    ok = torch.tensor([spelled([labels[tag] for tag in tags]) for tags in every.tolist()])
    expected = torch.where(ok, scores, -math.inf).log_softmax(0)
    found = crf(both, every, reduction="none")
    torch.testing.assert_close(found.detach(), expected)
    assert crf.decode(emissions) == [every[expected.argmax()].tolist()]
    found[ok].sum().backward()
    assert all(bool(part.grad.isfinite().all()) for part in crf.parameters())
    assert bool((crf.transitions.grad[~scheme(labels).transitions] == 0).all())


@pytest.mark.parametrize(
    "labels", [[], "BIO", ["O", "X-a"], ["O-a"], ["B-"], ["BI-a"], ["E-a"], ["B-a", "B-a"], [""]]
)
def test_other_labels_are_refused_in_a_line(labels):
    with pytest.raises(ModelError) as error:
        bio_constraints(labels)
    assert "\n" not in str(error.value)


def test_constraints_that_do_not_fit():
    yes = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ModelError, match="bools"):
        Constraints(yes, yes, yes)
    with pytest.raises(ModelError, match="bools"):
        Constraints(yes, torch.ones(3, 3), yes)
    with pytest.raises(ModelError, match="4 tags"):
        CRF(4, constraints=bio_constraints(["O", "B", "I"]))


def test_constraints_move_with_the_layer_and_not_into_checkpoints():
    crf = CRF(3, constraints=bio_constraints(["O", "B", "I"]))
    assert set(crf.state_dict()) == {"start_transitions", "end_transitions", "transitions"}
    assert len(list(crf.buffers())) == 3
