"""Mistakes in a recursion of one's own are told in one line that names the step."""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from tests.structures.tape.models import Tags, draw

DENSE = rg.trees.DenseRules(draw(2, 2, 2))


def first(*index):
    return torch.tensor(index)


def halves(tape, *counts):
    return [tape.view([tape.sites[0]], torch.zeros(count, 1, dtype=torch.long)) for count in counts]


def joined(tape, rules, counts=(1, 1)):
    return tape.join(*halves(tape, *counts), rules, to=tape.sites[2])


@dataclass(frozen=True, eq=False)
class Odd(rg.extend.Potential):
    """A potential that gives one number for any states."""

    shape: object = None

    def evaluate(self, states):
        return torch.zeros(1)


STEPS = {
    "a recursion gives nothing": (lambda tape: None, "NoneType"),
    "a recursion gives a view": (lambda tape: tape.view([tape.one], first(0)), "View"),
    "no such site": (lambda tape: tape.sites[7], r"Tape.sites of shape \(3,\) has no 7"),
    "dims that sites lack": (lambda tape: tape.sites[0, 1], r"Tape.sites of shape \(3,\)"),
    "a sum of nothing": (lambda tape: tape.total(), "Tape.total needs at least one"),
    "a product of nothing": (lambda tape: tape.total(()), "Tape.total needs at least one"),
    "a sum of a tensor": (lambda tape: tape.total(tape.unary), "got Tensor"),
    "places of other items": (
        lambda tape: tape.view(tape.one, torch.zeros(3, 1, 1, dtype=torch.long)), "1 or 2 items"
    ),
    "a number for each state": (
        lambda tape: tape.total((tape.sites[0], tape.leaf(draw(1, 1, 2)))), "Tape.lookup"
    ),
    "alternatives of two sites": (
        lambda tape: tape.total(tape.view(tape.sites[:], first(0, 1).unsqueeze(1))),
        "different sites",
    ),
    "alternatives of two sites in one item": (
        lambda tape: tape.total(tape.view(tape.sites[:], first([[0], [0]], [[0], [1]]))),
        "different sites",
    ),
    "alternatives of another site": (
        lambda tape: tape.total(
            (tape.sites[1], tape.total(tape.view(tape.sites[:], first(0, 0).unsqueeze(1))))
        ),
        "different sites",
    ),
    "a sum of other places": (
        lambda tape: tape.total(
            tape.leaf(torch.zeros(1, 2, 1)), tape.leaf(torch.zeros(1, 3, 1))
        ),
        "equally many places",
    ),
    "a product of other alternatives": (
        lambda tape: tape.total(tuple(halves(tape, 2, 3))), "equally many alternatives"
    ),
    "nothing merged": (lambda tape: tape.merge(), "Tape.merge needs at least one"),
    "nothing concatenated": (lambda tape: tape.concatenate(), "concatenate needs at least one"),
    "no alternatives": (lambda tape: tape.total(tape.as_alternatives([])), "Tape.as_alternatives"),
    "a link of a tensor": (lambda tape: tape.link(tape.unary, draw(2, 2)), "got Tensor"),
    "a link to a view": (
        lambda tape: tape.link(tape.sites[0], draw(2, 2), to=tape.view([tape.one], first(0))),
        "got a View",
    ),
    "a table of other labels": (
        lambda tape: tape.link(tape.sites[0], draw(3, 2), to=tape.sites[1]), r"2, 2\).*\(3, 2\)"
    ),
    "a table to more labels": (
        lambda tape: tape.link(tape.sites[0], draw(2, 3), to=tape.sites[1]), r"2, 2\).*\(2, 3\)"
    ),
    "a table of one dim": (
        lambda tape: tape.link(tape.sites[0], draw(2), to=tape.sites[1]), r"got \(2,\)"
    ),
    "a table of another batch": (
        lambda tape: tape.link(tape.sites[0], draw(5, 2, 2)), r"of the batch, \(2,\)"
    ),
    "a list for a table": (lambda tape: tape.link(tape.one, [[0.0]]), "tensor of log-values"),
    "ranks of other labels": (
        lambda tape: tape.link(tape.sites[0], rg.LowRank(draw(3, 2), draw(3, 2))), "Tape.link"
    ),
    "more numbers than labels": (
        lambda tape: tape.lookup(draw(5), tape.sites[0]), r"got \(1, 5\)"
    ),
    "a link of alternatives": (
        lambda tape: tape.link(tape.view(tape.sites[:2], first([0], [1])), draw(2, 2)),
        r"tape\.merge\(view\)"
    ),
    "a sum of a view": (
        lambda tape: tape.sum(tape.as_alternatives(tape.sites[:2])),
        r"Tape\.sum .* tape\.merge\(view\)",
    ),
    "a view of a view": (
        lambda tape: tape.view(tape.as_alternatives(tape.sites[:2]), first(0)),
        r"tape\.merge\(view\)",
    ),
    "a merge with what has no states": (
        lambda tape: tape.merge(tape.sites[0], tape.one), "Tape.merge needs .* states of sites"
    ),
    "a merge of one place and two": (
        lambda tape: tape.merge(tape.sites[0], tape.sites[:2]), r"\[1, 2\] places"
    ),
    "a product with what was merged": (
        lambda tape: tape.total((tape.merge(tape.sites[0], tape.sites[1]), tape.sites[2])),
        "different sites"
    ),
    "half a place": (lambda tape: tape.view([tape.one], torch.tensor([0.5])), "numbers of places"),
    "a place by a number": (lambda tape: tape.view([tape.one], 0), "numbers of places"),
    "a potential without a shape": (
        lambda tape: tape.link(tape.sites[0], Odd(2)), r"Odd\.shape needs to be a tuple"
    ),
    "a potential of a wrong shape": (
        lambda tape: tape.link(tape.sites[0], Odd((2, 2))), r"Odd\.evaluate, .* \(\*lead, 2, 2\)"
    ),
    "a label picked for too few": (
        lambda tape: tape.pick(tape.sites[0], first(0), to=tape.sites[1]), "Tape.pick"
    ),
    "a label picked by a list": (
        lambda tape: tape.pick(tape.sites[0], [0, 1], to=tape.sites[1]), "Tape.pick"
    ),
    "a place behind the last": (
        lambda tape: tape.total(tape.view([tape.one], first(1))), "no place 1"
    ),
    "a choice for too many": (lambda tape: tape.choose([tape.one], first(0, 0, 0)), r"\(2,\)"),
    "a choice by a number": (lambda tape: tape.choose([tape.one], 0), "Tape.choose"),
    "a constant of one dim": (lambda tape: tape.leaf(draw(3)), "Tape.leaf needs a floating"),
    "a mask of numbers": (lambda tape: tape.allowed(draw(1, 1)), "Tape.allowed needs a bool"),
    "rules of other labels": (
        lambda tape: joined(tape, rg.trees.DenseRules(draw(3, 3, 3))), "rules for 3"
    ),
    "a table for rules": (lambda tape: joined(tape, draw(2, 2, 2)), "Tape.join needs Rules"),
    "other splits on the right": (lambda tape: joined(tape, DENSE, (1, 2)), "equally many splits"),
    "parts that are no views": (
        lambda tape: tape.join(tape.sites[0], tape.sites[1], DENSE, to=tape.sites[2]), "two views"
    ),
}  # fmt: skip


class Mistaken(Tags):
    """A recursion that is whatever `transition` lays out."""

    def recursion(self, tape):
        return self.transition(tape)


@pytest.mark.parametrize("name", STEPS)
def test_mistakes_on_a_tape(name):
    lay_out, words = STEPS[name]
    with pytest.raises(rg.errors.ModelError, match=words) as caught:
        Mistaken(draw(2, 3, 2), lay_out).log_partition()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (torch.tensor([1, 4]), "0 to 3"),
        (torch.tensor([1, -1]), "0 to 3"),
        (torch.tensor([1.0, 2.0]), "integers"),
        (torch.tensor([1, 2, 3]), "of the batch"),
    ],
)
def test_lengths_that_no_item_has(lengths, words):
    with pytest.raises(rg.errors.ModelError, match=words):
        Tags(draw(2, 3, 2), draw(2, 2), lengths=lengths).log_partition()


@pytest.mark.parametrize(
    "unary",
    [None, draw(2), draw(3, 0), torch.zeros(3, 2, dtype=torch.long), draw(3, 2) * math.nan],
)
def test_potentials_are_looked_at_when_a_recursion_is_declared(unary):
    with pytest.raises(rg.errors.ModelError, match="Tags"):
        Tags(unary, draw(2, 2))


def test_what_a_recursion_is_asked_about():
    tags = Tags(draw(2, 3, 2), draw(2, 2))
    for states in (None, torch.zeros(2, 3), "x"):
        with pytest.raises(rg.errors.EvidenceError, match="Tags"):
            tags.score(states)
    mode = tags.mode()
    assert torch.equal(tags.score(mode.tolist()), tags.score(mode))
    with pytest.raises(rg.errors.ModelError, match="as tensors"):
        tags.restrict(None, None)
    with pytest.raises(rg.errors.ModelError, match="got NoneType"):
        tags.cross_entropy(None)
    for other in ("x", None, tags):
        with pytest.raises(rg.errors.ModelError, match="subclass of Structure"):
            rg.extend.register(other)
        with pytest.raises(rg.errors.ModelError, match="is registered"):
            rg.extend.REGISTRY.remove(other)
