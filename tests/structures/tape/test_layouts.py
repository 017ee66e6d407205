"""Layouts that are kept: whatever a recursion looks at, answers are those of its own steps."""

import functools
import gc
import math
import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.native import library
from rdpgraph.structures.recursion import layouts
from tests.structures.tape.models import draw

SCALE, TABLE, CALLS = 2.0, draw(2, 2, seed=9), [0.0]
UNKNOWN = "hidden", "listed", "drawn", "written", "random", "enclosed", "structures"


def scaled(values):
    return values.sum() * SCALE


def enclosed(factor):
    return lambda values: values.sum() * factor


SCALED_BY = enclosed(3.0)


@dataclass(frozen=True, eq=False)
class Near(rg.extend.Potential):
    """A potential whose numbers come of one tensor, and of a constant of its class."""

    rate: torch.Tensor
    FACTOR = 1.0

    shape = property(lambda self: (2, 2))
    dtype = property(lambda self: self.rate.dtype)
    device = property(lambda self: self.rate.device)

    def evaluate(self, states):
        left, right = states
        return -self.FACTOR * self.rate * (left.unsqueeze(-1) - right.unsqueeze(-2)).abs()


@dataclass(frozen=True, eq=False)
class Steered(rg.extend.Recursion):
    """A chain with a bonus that a function makes of a tensor's numbers, or others."""

    extra: torch.Tensor
    table: torch.Tensor | rg.extend.Potential = field(default_factory=lambda: draw(2, 2))
    factor: float = 1.0
    SHIFT = 0.5

    def recursion(self, tape):
        state = tape.sites[0]
        for place in range(1, tape.site_shape[0]):
            site = tape.sites[place]
            state = tape.total((site, tape.link(state, self.table, to=site)))
        bonus = tape.leaf(self.bonus(tape).to(tape.dtype).reshape(1, 1, 1))
        return tape.total((tape.sum(state), bonus))

    def bonus(self, tape):
        return self.extra.sum() * self.factor


def kind(name, bonus):
    """A class of its own with a bonus."""
    return type(name, (Steered,), {"bonus": bonus, "__annotations__": {}})


KINDS = {
    "plain": lambda self, tape: self.extra.sum() * self.factor,
    "branches": lambda self, tape: self.extra[0] if self.extra[0] > 0 else 2 * self.extra[1],
    "values": lambda self, tape: torch.tensor(float(self.extra[0].detach())),
    "lists": lambda self, tape: torch.tensor(sum(self.extra.detach().tolist())),
    "loops": lambda self, tape: sum(x * x for x in self.extra),
    "masks": lambda self, tape: self.extra[self.extra > 0].sum(),
    "sizes": lambda self, tape: self.extra.new_tensor(len(self.extra[self.extra > 0])),
    "slices": lambda self, tape: self.extra[: self.extra.argmax() + 1].sum(),
    "indices": lambda self, tape: self.extra[self.extra.argmax()] * self.extra[0],
    "wrapped": lambda self, tape: torch.nn.Parameter(self.extra).sum(),
    "as tensors": lambda self, tape: torch.as_tensor(self.extra).sum(),
    "old constructors": lambda self, tape: torch.Tensor(self.extra.float()).sum(),
    "detached": lambda self, tape: self.extra.detach().sum() + self.extra[0],
    "globals": lambda self, tape: self.extra.sum() * SCALE,
    "functions": lambda self, tape: scaled(self.extra),
    "class constants": lambda self, tape: self.extra.sum() + self.SHIFT,
    "errors": lambda self, tape: self.extra[0] if len(self.extra) else ValueError,
    "reduced": lambda self, tape: functools.reduce(torch.add, self.extra.unbind()),
    "constants": lambda self, tape: self.extra.new_full((), 3.0) * self.extra[0] + math.pi,
    # Not traced, as they depend on what nobody sees.
    "hidden": lambda self, tape: torch.from_numpy(self.extra.numpy() + 0.0).sum(),
    "listed": lambda self, tape: self.extra.sum() + CALLS[0],
    "drawn": lambda self, tape: self.extra.sum() + 0 * torch.rand(()),
    "written": lambda self, tape: torch.zeros(3).double().copy_(self.extra).sum(),
    "random": lambda self, tape: self.extra.sum() + 0 * random.random(),
    "enclosed": lambda self, tape: SCALED_BY(self.extra),
    "structures": lambda self, tape: rg.Chain(self.extra[:2].reshape(1, 2), TABLE).log_partition(),
}  # fmt: skip
CLASSES = {name: kind(f"Steered{n}", KINDS[name]) for n, name in enumerate(KINDS)}


def extras(name):
    """Numbers that steer, and then numbers that do not."""
    signs = [[1, 1, 1], [1, 1, 1], [-1, 1, 1], [1, -1, 1], [1, 1, 1]]
    rows = [draw(3, seed=seed).abs() * torch.tensor(own) for seed, own in enumerate(signs)]
    return [*rows, rows[0]]


def answered(model):
    """Log Z and its gradients, and the mode's score."""
    parts = [part.clone().requires_grad_() for part in (model.unary, model.extra)]
    value = replace(model, unary=parts[0], extra=parts[1]).log_partition()
    found = torch.autograd.grad(value.sum(), parts, materialize_grads=True, allow_unused=True)
    return value, *found, model.log_partition(), model.score(model.mode())


@pytest.mark.parametrize("name", KINDS)
def test_what_a_recursion_looks_at_steers_it(name, by_torch):
    if name == "hidden":  # NumPy takes no tensor that needs a gradient
        models = [CLASSES[name](draw(2, 3, 2), extra) for extra in extras(name)]
        ask = lambda model: (model.log_partition(), model.score(model.mode()))  # noqa: E731
    else:
        models, ask = [CLASSES[name](draw(2, 3, 2), extra) for extra in extras(name)], answered
    for model in models:
        assert_close(ask(model), by_torch(lambda: ask(model)))  # noqa: B023


def changed(monkeypatch, name):
    """Change what a kind finds by name."""
    own = __import__("sys").modules[__name__]
    if name == "globals":
        monkeypatch.setattr(own, "SCALE", 5.0)
    elif name == "functions":
        monkeypatch.setattr(own, "scaled", torch.sum)
    elif name == "class constants":
        monkeypatch.setattr(Steered, "SHIFT", -2.0)
    elif name == "listed":
        CALLS[0] += 4.0
    elif name == "enclosed":
        monkeypatch.setattr(own, "SCALED_BY", enclosed(-1.0))
    else:
        monkeypatch.setattr(CLASSES[name], "bonus", lambda self, tape: self.extra[0])


@pytest.mark.parametrize(
    "name", ["globals", "functions", "class constants", "listed", "enclosed", "plain"]
)
def test_changes_of_what_code_finds_by_name_are_seen(name, monkeypatch, by_torch):
    model = CLASSES[name](draw(2, 3, 2), draw(3))
    before = [replace(model).log_partition() for _ in range(3)][-1]
    changed(monkeypatch, name)
    assert not torch.equal(replace(model).log_partition(), before)
    assert_close(replace(model).log_partition(), by_torch(lambda: replace(model).log_partition()))


def test_fields_that_are_constants_and_potentials_of_a_users_own(monkeypatch, by_torch):
    unary, extra = draw(2, 3, 2), draw(3)
    models = [Steered(unary, extra, factor=factor) for factor in (1.0, 1.0, 2.0, 2.0)]
    models += [Steered(unary, extra, Near(rate)) for rate in draw(3).abs()]
    for model in models:
        assert_close(answered(model), by_torch(lambda: answered(model)))  # noqa: B023
    rates = [draw(1, seed=3)[0].requires_grad_() for _ in range(3)]
    found = [
        torch.autograd.grad(Steered(unary, extra, Near(rate)).log_partition().sum(), rate)[0]
        for rate in rates
    ]
    assert_close(found[2], found[0])
    monkeypatch.setattr(Near, "FACTOR", 7.0)
    other = Steered(unary, extra, Near(draw(1)[0].abs()))
    assert_close(answered(other), by_torch(lambda: answered(other)))


@pytest.mark.skipif(not library.available(torch.float64), reason=str(library.status()))
@pytest.mark.parametrize("name", KINDS)
def test_the_recursion_runs_again_only_where_it_must(name, monkeypatch):
    """Models alike are given the layout of the first, unless it depends on something unseen."""
    traced = list[object]()
    keep = layouts._keep
    monkeypatch.setattr(layouts, "_keep", lambda key, kept: traced.append(kept) or keep(key, kept))
    monkeypatch.setattr(layouts, "_KEPT", type(layouts._KEPT)())
    for _ in range(5):
        CLASSES[name](draw(2, 3, 2), draw(3)).log_partition()
        CLASSES[name](draw(2, 3, 2).requires_grad_(), draw(3)).log_partition().sum().backward()
    assert len(traced) == 2
    if name in UNKNOWN:
        assert all(isinstance(kept, int) for kept in traced)


@pytest.mark.skipif(not library.available(torch.float64), reason=str(library.status()))
def test_a_pool_that_grows_is_what_it_was_when_it_was_asked_for(monkeypatch):
    taken = []
    trace = layouts._traced
    monkeypatch.setattr(layouts, "_traced", lambda *own: taken.append(1) or trace(*own))
    for seed in range(3):
        model = rg.Bitext.words(draw(2, 3, seed=seed), draw(2, seed=seed), draw(3, seed=seed))
        model.log_partition()
    assert len(taken) <= 1


def indices():
    """The numbers of the largest tensors of integers that are alive."""
    gc.collect()
    return sum(
        own.numel()
        for own in gc.get_objects()
        if type(own) is torch.Tensor and not own.is_floating_point() and own.numel() > 500
    )


@pytest.mark.long
def test_the_places_of_long_sentences_take_no_more_than_is_allowed(monkeypatch):
    most, before = 2**19, indices()
    monkeypatch.setattr(tuning, "KEPT_LAYOUTS", most)
    for words in range(65, 69):
        arcs = torch.zeros(words, words + 1)
        assert rg.ProjectiveDependencies(arcs).mode().shape == (words,)
        spans = torch.zeros(words, words, 1)
        assert rg.Hypertree(spans).mode().shape == (words, words)
    assert indices() - before < 2 * most  # in the program, and in the steps
