"""Marginals of all states of a model, by one step more of the messages between the states kept.

A message sums over the states kept of the other variables, so that it is defined at all states of
the variable that receives it (Fu, Cunningham and Lapata 2022, eq. 8). In a model without cycles the
product of the messages to variable t is the mass of each of its states x given the states kept at
the other variables,

    M_t(x) = sum over the states kept elsewhere of their weights and all factors, given x_t = x.

M_t is linear in the weights of each other variable, so that its expectation is Z p(x_t = x), and it
does not depend on the states kept at t. The estimate of Z from all kept states has the sum of M_t
over x as its expectation over the states kept at t. So that estimate of Z, times M_t normalised, is
unbiased for Z p(x_t = x) as well: replicates are averaged in proportion to their Z.

A site of a structure may be in no state, as a span that is no constituent. Then the probability on
the kept states that it is in any, times M_t normalised, takes the place of M_t normalised. Where a
structure has no messages that go further, every state joins those kept with a weight too small to
change anything, and has its mass from there.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rdpgraph.structures  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers them
from rdpgraph._core import tuning
from rdpgraph.engines.loopy.interpolation import InterpolatedMessages
from rdpgraph.engines.loopy.network_equations import Bethe
from rdpgraph.engines.loopy.propagation import Limits, Unrolled
from rdpgraph.engines.loopy.schedules import Flooding, LogDamping
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.solution import Solution
from rdpgraph.estimate.estimator import KeptLayout, Model, Setting
from rdpgraph.estimate.proposals import count_lots, probed
from rdpgraph.estimate.selections import Top
from rdpgraph.interface.sites import free_numbers, free_variables
from rdpgraph.interface.structure import REGISTRY, Structure
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.orders import forest_order
from rdpgraph.plan.tree import Topology

_SWEEPS = 200
"""Most sweeps of messages between kept states.

On a tree they are exact after as many as its longest path has variables, and sooner where
potentials are smooth.
"""


_PROBE = -60.0
"""Log-weight of a state that is probed: what it adds to sums is below their rounding."""

_GROWTH = 8
"""Times as many operations a structure takes with twice as many states, at most: rules of trees."""


def all_state_marginals(
    layout: KeptLayout, model: Model, inner: Solution, solve: Callable[[Model], Any]
) -> Tensor | None:
    """(replicates, B, S) the probabilities of all states given the states kept at other variables.

    Zero at observed variables. Differentiable.

    Args:
        layout: the states kept.
        model: on these, with their weights; replicates are its first batch dim.
        inner: its solution.
        solve: gives the posterior of a model.

    Returns:
        None where they are not to be had: a structure of which exact inference takes no longer, or
        whose potentials are not by site; a graph with cycles that was not solved by plain belief
        propagation, or whose messages have not converged.
    """
    shape = layout.replicates, layout.batch, layout.num_states
    if isinstance(layout.model, Structure):
        marginals = _of_sites(layout, layout.model, model, inner, solve)
        return None if marginals is None else marginals.reshape(shape)
    assert isinstance(model, FactorGraph)
    if not isinstance(inner, LoopySolution):
        marginals = _of_chains(layout, layout.model)
        if marginals is not None:
            return marginals
    messages = _messages_of(layout, layout.model, model, inner)
    return None if messages is None else _beliefs(messages, shape)


def _of_chains(layout: KeptLayout, graph: FactorGraph) -> Tensor | None:
    """(replicates, B, S) the probabilities of the states of a graph that consists of chains.

    Their messages take two passes, where those of a graph take sweeps. None for other graphs, with
    evidence, and where variables keep different numbers of states.
    """
    match = None if graph.observed is not None else REGISTRY.recognise(graph)
    kept = layout.restricted.sizes
    if match is None or match.states is not None or int(kept.min()) != int(kept.max()):
        return None
    sites, numbers = match.structure.sites(), match.numbers
    if sites is None or sites.marginals is None or bool((numbers < 0).any()):
        return None
    places = layout.restricted.places(numbers.flatten(), int(kept[0]))
    support = layout.selected.map(
        lambda part: part[..., places.to(part.device)].reshape(
            layout.replicates, *graph.batch_shape, *numbers.shape, -1
        )
    )
    found = sites.marginals(support.states, support.log_weights)
    found = found.reshape(layout.replicates, layout.batch, -1)
    back = graph.domain.places(numbers.flatten(), sites.states).flatten().to(found.device)
    return torch.zeros_like(found).index_copy(-1, back, found)


def _of_sites(
    layout: KeptLayout, structure: Structure, few: Model, inner: Solution,
    solve: Callable[[Model], Any],
) -> Tensor | None:  # fmt: skip
    """(replicates, *batch, *sites, states) the probabilities of a structure's states."""
    sites = structure.sites()
    if sites is None or sites.every or layout.site_places is not None:
        return None
    (support,) = layout.expanded
    if sites.marginals is not None:
        return sites.marginals(support.states, support.log_weights)
    assert isinstance(few, Structure)
    lots = count_lots((sites,), (support,))
    if lots * _GROWTH * few.work() > max(structure.work(), tuning.LITTLE_WORK):
        return None
    setting = Setting.of(structure, Top(support.kept), solve=solve, generator=None)
    (masses,) = probed(setting, [support], _PROBE)
    used = inner.variable_marginals().reshape(support.states.shape).sum(-1, keepdim=True)
    return _normalised(masses) * used


def _normalised(logs: Tensor) -> Tensor:
    """Probabilities in proportion to exponentials; zeros where nothing is possible."""
    dead = (logs == -math.inf).all(-1, keepdim=True)
    return torch.where(dead, 0.0, torch.where(dead, 0.0, logs).softmax(-1))


def _messages_of(
    layout: KeptLayout, graph: FactorGraph, few: FactorGraph, inner: Solution
) -> InterpolatedMessages | None:
    """Messages between the kept states: of the solution, or by sweeps over a graph without cycles.

    None where there are none, where one step more would form too many numbers, and where sweeps
    have not converged.
    """
    free = free_variables(graph)
    if not _is_affordable(few):
        return None
    if isinstance(inner, LoopySolution):
        if not isinstance(inner.counting, Bethe) or inner.temperature != 1 or inner.among:
            return None
        return InterpolatedMessages(graph, layout.of, free, inner)
    if not _is_forest(graph, free):
        return None
    limits = Limits(Flooding(), LogDamping(0.0), _SWEEPS, 1e-5)
    network = reduce_graph(few, high_order=True)
    solution = LoopySolution(network, Bethe(), 1.0, limits, Unrolled())
    if not solution.network_is_forest or not bool(solution.outcome.converged.all()):
        return None
    return InterpolatedMessages(graph, layout.of, free, solution)


def _is_affordable(few: FactorGraph) -> bool:
    """Return whether tables of three variables and more, on the kept states, are small.

    They are formed for one step more, with all states of one variable.
    """
    return all(
        math.prod(block.sizes) <= tuning.CACHE_BLOCK for block in few.blocks if block.arity > 2
    )


def _is_forest(graph: FactorGraph, free: Tensor) -> bool:
    """Return whether the factors over free variables have no cycle."""
    scopes: list[tuple[int, ...]] = []
    for block in graph.blocks:
        kept = free[block.scopes]
        joint = kept.sum(1) > 1
        pairs = zip(block.scopes[joint].tolist(), kept[joint].tolist(), strict=True)
        scopes += [tuple(v for v, use in zip(*pair, strict=True) if use) for pair in pairs]
    if any(len(set(scope)) < len(scope) for scope in scopes):
        return False
    links = sum(len(scope) - 1 for scope in scopes)
    if links >= max(graph.num_variables, 1):
        return False
    topology = Topology(tuple(scopes), tuple(graph.domain.sizes.tolist()))
    return forest_order(topology) is not None


def _beliefs(messages: InterpolatedMessages, shape: tuple[int, int, int]) -> Tensor:
    """(replicates, B, S) the beliefs of all free variables; zeros at observed ones."""
    graph, rows = messages.graph, shape[0] * shape[1]
    flat = torch.zeros(rows, shape[2], dtype=graph.dtype, device=graph.device)
    for (size, numbers), logs in zip(
        free_numbers(graph).items(), messages.log_beliefs, strict=True
    ):
        chances = _normalised(logs)
        places = graph.domain.places(numbers, size).flatten().to(flat.device)
        flat = flat.index_copy(1, places, chances.expand(rows, -1, -1).flatten(1).to(flat))
    return flat.reshape(shape)
