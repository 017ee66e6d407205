"""A user's own potential and structure, through the same doors as ours."""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Automaton
from rdpgraph.answers import KBest
from rdpgraph.extend import REGISTRY, Part
from rdpgraph.testing import check_potential, check_structure
from tests.logical import LOGICAL, count_between

COUNTED = {**LOGICAL, "at least one": count_between(1), "at most two": count_between(0, 2)}


@dataclass(frozen=True, eq=False)
class Near(rg.extend.Potential):
    rate: torch.Tensor
    states: int

    @property
    def shape(self):
        return (self.states, self.states)

    @property
    def dtype(self):
        return self.rate.dtype

    def evaluate(self, states):
        left, right = states
        return -self.rate * (left.unsqueeze(-1) - right.unsqueeze(-2)).abs()


@dataclass(frozen=True, eq=False)
class Independent(rg.extend.Structure):
    """Sites that do not touch."""

    def log_partition(self):
        alive = (self.unary > -math.inf).any(-1, keepdim=True)
        safe = torch.where(alive, self.unary, torch.zeros_like(self.unary))
        return safe.logsumexp(-1).masked_fill(~alive.squeeze(-1), -math.inf).sum(-1)

    def factor_graph(self):
        sites = rg.VariableArray("site", (self.unary.shape[-2],), self.unary.shape[-1])
        return rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(self.unary))])

    @classmethod
    def recognise(cls, graph):
        if len(graph.blocks) != 1 or graph.blocks[0].arity != 1:
            return None
        block = graph.blocks[0]
        numbers = block.scopes[:, 0]
        if len(set(numbers.tolist())) != graph.num_variables:
            return None
        values = block.select().table(1)
        return rg.extend.Match(cls(values.expand(*values.shape[:-2], len(numbers), -1)), numbers)


@pytest.mark.long
def test_conformance_of_potentials():
    check_potential(Near(torch.tensor(0.5, dtype=torch.float64), 4))
    check_potential(rg.Table(torch.randn(3, 2, 4, dtype=torch.float64)))
    check_potential(rg.Table(torch.randn(5, 3, 2, dtype=torch.float64)), 2)
    check_potential(rg.Table(torch.tensor(1.5, dtype=torch.float64)))
    listed = torch.tensor([[0, 1], [2, 0], [2, 2]])
    check_potential(rg.Sparse(listed, torch.randn(3, dtype=torch.float64), (3, 3)))
    check_potential(rg.Sparse(listed, torch.randn(2, 3, dtype=torch.float64), (3, 3)), 2)
    check_potential(rg.Sparse(torch.zeros(1, 0).long(), torch.ones(1, dtype=torch.float64), ()))
    diagonal = torch.arange(70).unsqueeze(1).expand(-1, 2)
    long = rg.Sparse(diagonal, torch.randn(70, dtype=torch.float64), (70, 70))
    check_potential(long)
    generator = torch.Generator().manual_seed(0)
    kinds = [(3, 2, 4, ()), (4, 3, 3, (2,)), (2, 5, 1, ()), (3, 9, 4, ()), (3, 17, 3, (2,))]
    for states, size, arity, lead in kinds:
        transitions = torch.randint(states, (states, size), generator=generator)
        log_accept = torch.randn(*lead, states, generator=generator, dtype=torch.float64)
        automaton = Automaton(transitions, log_accept, arity)
        assert (automaton.decompose() is not None) == (size**arity > 4096)
        check_potential(automaton, arity)


@pytest.mark.parametrize("arity", [1, 2, 4])
@pytest.mark.parametrize("kind", COUNTED)
def test_conformance_of_logical_constraints(kind, arity):
    check_potential(COUNTED[kind].make(arity, dtype=torch.float64))


def test_the_suite_catches_what_is_wrong():
    @dataclass(frozen=True, eq=False)
    class Wrong(Near):
        def evaluate(self, states):
            left, right = states
            return self.rate * (left[..., :1].unsqueeze(-1) - right.unsqueeze(-2)).abs().expand(
                *left.shape, right.shape[-1]
            )

    with pytest.raises(AssertionError, match="evaluate"):
        check_potential(Wrong(torch.tensor(0.5, dtype=torch.float64), 4))

    @dataclass(frozen=True, eq=False)
    class Late(Near):
        def messages(self, incoming, *, temperature=1.0):
            first, second = super().messages(incoming, temperature=temperature)
            return first + incoming[0], second

    with pytest.raises(AssertionError, match="messages"):
        check_potential(Late(torch.tensor(0.5, dtype=torch.float64), 4))

    @dataclass(frozen=True, eq=False)
    class Loose(Near):
        def decompose(self):
            table = self.table(2)
            return rg.extend.Decomposition((2,), (Part((0, 1), table), Part((2,), torch.zeros(2))))

    with pytest.raises(AssertionError, match="decompose"):
        check_potential(Loose(torch.tensor(0.5, dtype=torch.float64), 4))

    @dataclass(frozen=True, eq=False)
    class Off(Independent):
        def log_partition(self):
            return super().log_partition() + 1e-3

    with pytest.raises(AssertionError, match="log_partition"):
        check_structure(Off(torch.randn(2, 3, dtype=torch.float64)))


def chain_of_three():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 2, 2, generator=generator, dtype=torch.float64)
    return values[:3, 0], values[3]


def not_the_second(self, k):
    best = rg.Chain.k_best(self, k + 1)
    keep = [0, *range(2, k + 1)]
    return KBest(best.states[keep], best.scores[keep])


def the_second_twice(self, k):
    best = rg.Chain.k_best(self, k)
    return KBest(best.states[[0, 1, 1, *range(3, k)]], best.scores)


def the_best_always(self, count, generator=None):
    return self.mode().expand(count, *self.states_shape)


@pytest.mark.parametrize(
    ("name", "wrong", "what"),
    [
        ("sample", the_best_always, "means of samples"),
        ("k_best", not_the_second, "the scores of k_best"),
        ("k_best", the_second_twice, "the scores of the configurations of k_best"),
        ("log_prob", lambda self, states: rg.Chain.score(self, states), "log_prob"),
        ("cross_entropy", lambda self, _: rg.Chain.entropy(self), "cross_entropy"),
        ("kl_divergence", lambda self, other: -rg.Chain.kl_divergence(self, other), "kl_div"),
    ],
)
def test_the_suite_catches_wrong_answers_that_not_every_structure_has(name, wrong, what):
    kind = dataclass(frozen=True, eq=False)(type("Odd", (rg.Chain,), {name: wrong}))
    with pytest.raises(AssertionError, match=what):
        check_structure(kind(*chain_of_three()))


def test_the_suite_catches_a_wrong_second_derivative():
    @dataclass(frozen=True, eq=False)
    class Bent(Independent):
        def log_partition(self):
            log_z = super().log_partition()
            if not self.unary.requires_grad:
                return log_z
            value = (self.unary**3).sum((-1, -2))
            (slope,) = torch.autograd.grad(value.sum(), self.unary, create_graph=True)
            # Nothing in value and slope, but not in curvature.
            spare = self.unary - self.unary.detach()
            return log_z + (slope * spare**2).sum((-1, -2))

    with pytest.raises(AssertionError, match="second derivative"):
        check_structure(Bent(torch.randn(2, 3, dtype=torch.float64)))


@pytest.mark.parametrize("shape", [(3, 2), (4, 2, 3), (1, 1, 2)])
def test_conformance_of_a_structure(shape):
    check_structure(Independent(torch.randn(shape, dtype=torch.float64)))


def test_a_registered_structure_answers_for_the_graphs_it_recognises():
    sites = rg.VariableArray("x", (4,), 3)
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    graph = rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(values))])
    plain = rg.infer(graph)
    rg.extend.register(Independent)
    try:
        with pytest.raises(rg.errors.ModelError, match="registered already"):
            rg.extend.register(Independent)
        fast = rg.infer(graph)
        assert fast.plan.route == "structure"
        assert "Independent" in str(fast.plan)
        assert torch.allclose(fast.log_partition, plain.log_partition)
        assert torch.allclose(fast.marginal(sites), plain.marginal(sites))
        assert torch.allclose(fast.entropy(), plain.entropy())
        assert torch.equal(fast.mode()[sites], plain.mode()[sites])
        assert rg.infer(graph, scheduler=rg.Contraction()).plan.route == "forest"
        given = graph.condition({sites[0]: 1})
        left = rg.infer(given)  # what evidence leaves is recognised, too
        assert left.plan.route == "structure"
        exact = rg.infer(given, scheduler=rg.Contraction())
        assert torch.allclose(left.log_partition, exact.log_partition)
        assert torch.allclose(left.marginal(sites), exact.marginal(sites))
    finally:
        REGISTRY.remove(Independent)
    assert rg.infer(graph).plan.route == "forest"


def test_a_graph_is_recognised_once_in_a_call_and_again_in_the_next():
    """What was recognised holds copies of tables, which may be written to between two calls."""
    asked = []

    class Watched(Independent):
        @classmethod
        def recognise(cls, graph):
            asked.append(graph)
            return super().recognise(graph)

    sites = rg.VariableArray("x", (4,), 3)
    values = torch.randn(4, 3, dtype=torch.float64)
    graph = rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(values))])
    rg.extend.register(Watched)
    try:
        for calls in (1, 2):
            posterior = rg.infer(graph)
            assert len(asked) == calls
            assert posterior.plan.route == "structure"
            assert torch.allclose(posterior.log_partition, values.logsumexp(1).sum())
            values[0] += 1.0
            graph = rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(values))])
    finally:
        REGISTRY.remove(Watched)
