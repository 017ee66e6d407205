"""Answers by a structure that was declared, or recognised in a reduced graph."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.portable import field_names, tensors_in
from rdpgraph.engines.reduction.consistency import Possible
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.reduction.tables import full_states, state_table
from rdpgraph.engines.solution import Solution, Status, Supplemented
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.interface.structure import REGISTRY, Match, Structure, is_tracked
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.evidence import MISSING, observed_entries
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.plan.plan import PASSES, Plan


def graph_left(network: Network) -> FactorGraph | None:
    """Graph of the remaining variables, in one array; None if they differ in states."""
    sizes = set(network.sizes)
    auxiliary = len(network.numbers) < len(network.sizes)
    if len(sizes) != 1 or auxiliary or network.impossible or network.high_order:
        return None
    blocks: list[Block] = []
    for group in network.groups:
        tables = group.log_tables
        if len(tables) == 1:
            tables = tables.squeeze(0)
        each = len(group.scopes) if group.rows is None else int(group.log_tables.shape[1])
        shape = (1,) if group.log_tables.shape[1] == 1 else (each,)
        declared = torch.arange(len(group.scopes), device="cpu")
        blocks.append(Block(group.scopes, Table.from_logs(tables), shape, group.rows, declared))
    left = VariableArray("left", (len(network.sizes),), sizes.pop())
    return FactorGraph.from_blocks(Domain((left,)), blocks)


def recognised_left(
    graph: FactorGraph, network: Network, general: Callable[[FactorGraph], Callable[[], Solution]]
) -> tuple[Plan, Callable[[], Solution]] | None:
    """Plan and answers of a structure recognised in a graph reduced by evidence; None if none is.

    If hard zeros define a structure, it is recognised with all states. ``general`` solves a graph
    as no structure, for the questions that a structure does not answer.
    """
    if graph.observed is None:
        return None
    for held in (False, True) if network.possible is not None else (False,):
        reduction = _network_held(graph) if held else network
        left = None if reduction is None else graph_left(reduction)
        match = None if left is None else REGISTRY.recognise(left)
        if reduction is not None and left is not None and match is not None:
            inner = RecognisedSolution(left, match, general(left))
            return plan_of(match.structure), partial(LeftSolution, reduction, inner, general(graph))
    return None


def _network_held(graph: FactorGraph) -> Network | None:
    """The graph without observed variables, with all states of the others.

    Observed variables like the unobserved ones (as many states, not observed as a whole array)
    stay, with a factor as evidence. None if unobserved variables differ in states, or factors have
    more than two variables.
    """
    plain = (type(b.potential).decompose is Potential.decompose for b in graph.blocks)
    if graph.observed is None or max(b.arity for b in graph.blocks) > 2 or not all(plain):
        return None
    seen = (graph.observed != MISSING).reshape(-1, graph.num_variables)
    _, whole = observed_entries(graph.domain, graph.observed)
    counts = torch.tensor(graph.domain.starts, device="cpu").diff()
    whole = torch.tensor(whole, device="cpu").repeat_interleave(counts)
    sizes = graph.domain.sizes
    free = sizes[~seen.all(0)]
    if not len(free) or bool((free != free[0]).any()):
        return None
    several = counts.repeat_interleave(counts) > 1
    held = graph_held(graph, (sizes == free[0]) & ~(whole & several))
    return reduce_graph(held, possible=Possible(sizes))


def graph_held(graph: FactorGraph, which: Tensor | None = None) -> FactorGraph:
    """Return the graph with evidence on some variables (V,) written as factors.

    Such a factor is 0 at the observed state and -inf elsewhere. None stands for all variables.
    """
    if graph.observed is None:
        return graph
    seen = (graph.observed != MISSING).reshape(-1, graph.num_variables).any(0)
    which = seen if which is None else which & seen
    if graph.batch_shape and not bool(seen.any()):
        which[:1] = True  # a factor of zeros keeps the batch dims
    blocks, sizes, count = list(graph.blocks), graph.domain.sizes, graph.num_factors
    for size in torch.unique(sizes[which]).tolist():
        numbers = (which & (sizes == size)).nonzero()
        states = graph.observed[..., numbers[:, 0]].unsqueeze(-1)
        agrees = (states == MISSING) | (states == torch.arange(size, device="cpu"))
        values = torch.where(agrees, 0.0, -math.inf).to(dtype=graph.dtype, device=graph.device)
        places = count + torch.arange(len(numbers), device="cpu")
        shape = (len(numbers),)
        blocks.append(Block(numbers, Table.from_logs(values), shape, None, places))
        count += len(numbers)
    observed = torch.where(which, MISSING, graph.observed)
    left = observed if bool((observed != MISSING).any()) else None
    return FactorGraph.from_blocks(graph.domain, blocks, left)


@dataclass(frozen=True, eq=False)
class LeftSolution(Supplemented):
    """Answers about a graph, from those about the graph reduced by evidence."""

    route: ClassVar[str] = "structure"

    network: Network  # the graph, reduced
    inner: Solution  # solution of `graph_left`
    general: Callable[[], Solution]  # solves the graph as no structure, for other questions

    def status_of(self, answer: str) -> Status:
        """Status of the solution of `graph_left`, or of the general one where that answers."""
        return (self.inner if self._answers(answer) else self._general).status_of(answer)

    def log_partition(self) -> Tensor:
        # What is left may be the same for all items.
        return (self.inner.log_partition() + self.network.constant).expand(self.network.batch)

    def variable_marginals(self) -> Tensor:
        flat = self.inner.variable_marginals()
        return self._of_possible(state_table(self.network, flat, 0.0, 1.0))

    def entropy(self) -> Tensor:
        return self._of_possible(self.inner.entropy())

    def expected_score(self) -> Tensor:
        return self._of_possible(self.inner.expected_score() + self.network.constant)

    def max_marginals(self) -> Tensor:
        best = self.inner.max_marginals() + self.network.constant.unsqueeze(1)
        first = best[:, : self.network.sizes[0]].amax(1)
        return state_table(self.network, best, -math.inf, first.expand(self.network.batch))

    def mode(self) -> Tensor:
        return self._states(self.inner.mode().unsqueeze(0))[0]

    def possible_mode(self) -> Tensor:
        return self._states(self.inner.possible_mode().unsqueeze(0))[0]

    def mode_exists(self) -> Tensor | None:
        return self._of_items(self.inner.mode_exists())

    def mode_is_possible(self) -> Tensor | None:
        return self._of_items(self.inner.mode_is_possible())

    def _of_items(self, known: Tensor | None) -> Tensor | None:
        """(B,) whether a mode exists, from whether one does in `graph_left`."""
        return known if known is None else known.cpu() & (self.network.constant > -math.inf).cpu()

    def mode_bound(self) -> Tensor:
        return self.inner.mode_bound() + self.network.exact_constant

    def mode_is_consistent(self) -> Tensor:
        return self.inner.mode_is_consistent().expand(self.network.batch)

    def mode_is_optimal(self) -> Tensor:
        return self.inner.mode_is_optimal().expand(self.network.batch)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        batch = self.network.batch
        if len(self.inner.log_partition()) == batch:
            return self._states(self.inner.sample(count, generator))
        drawn = self.inner.sample(count * batch, generator)
        return self._states(drawn.reshape(count, batch, -1))

    def _states(self, states: Tensor) -> Tensor:
        return full_states(self.network, states.expand(-1, self.network.batch, -1))


def plan_of(structure: Structure) -> Plan:
    """Plan of a structure's recursion, for the sites of all batch items."""
    *sites, states = structure.unary.shape
    width, work, each = structure.width(), structure.work(), structure.unary.element_size()
    table = 0.0 if width is None else 2.0**width
    if width is None:  # that of a table over two sites
        width = 2 * math.log2(states) if states else 0.0
    # Of each unary potential there are log-values, values relative to a maximum, sums from one side
    # and gradients, and as much again for marginals; of every other tensor there is a copy, and
    # potentials without a table are written out, unless messages pass through their ranks.
    entries = structure.unary.numel()
    others = sum(part.numel() for part in tensors_in(structure)) - entries
    written = sum(
        math.prod(part.shape)
        for part in map(partial(getattr, structure), field_names(type(structure)))
        if isinstance(part, Potential) and not isinstance(part, Table | LowRank | PairOperator)
    )
    held = others + written + table
    return Plan(
        route="structure",
        why=f"solved by the recursion of the structure {type(structure).__name__}",
        num_variables=math.prod(sites),
        width=width,
        flops=work,
        peak_bytes=each * (tuning.STRUCTURE_COPIES[0] * entries + held),
        stored_bytes=each * (tuning.STRUCTURE_COPIES[1] * entries + held),
        seconds=tuning.STRUCTURE_CALL
        + tuning.STRUCTURE_ENTRY * entries
        + PASSES * work / tuning.STRUCTURE_OPERATIONS,
    )


@dataclass(frozen=True, eq=False)
class SitesInGraph:
    """The sites of a recognised structure as variables of the graph."""

    graph: FactorGraph
    match: Match

    @cached_property
    def batch(self) -> int:
        """Number of batch items of the graph."""
        return math.prod(self.graph.batch_shape)

    def values(self, values: Tensor, *, best: bool) -> Tensor:
        """Return values of sites with their last dim in the order of the variables' states."""
        states = self.match.states
        values = self.match.structure.variable_values(values, best=best)
        return values if states is None else values.index_select(-1, states.to(values.device))

    def states(self, configuration: Any, lead: tuple[int, ...]) -> Tensor:
        """Return the states of a configuration by number of variable, (*lead, B, V)."""
        states = self.match.structure.variable_states(configuration)
        if self.match.states is not None:
            back = self.match.states.new_zeros(int(self.match.states.max()) + 1)
            back[self.match.states] = torch.arange(len(self.match.states), device=back.device)
            states = back[states]
        numbers = self.match.numbers.reshape(-1)
        flat = states.reshape(*lead, self.batch, len(numbers))
        order = torch.argsort(numbers)[int((numbers < 0).sum()) :]
        return flat[..., order.to(flat.device)]

    def flat(self, values: Tensor) -> Tensor:
        """(B, S) values of the states of every site, by variable number."""
        numbers = self.match.numbers.reshape(-1)
        domain, size = self.graph.domain, values.shape[-1]
        there = (numbers >= 0).nonzero().flatten()
        places = domain.places(numbers[there], size).reshape(-1)
        flat = values.reshape(self.batch, len(numbers), size)
        flat = flat if len(there) == len(numbers) else flat[:, there.to(flat.device)]
        flat = flat.flatten(1)
        empty = flat.new_zeros(flat.shape[0], domain.total_states)
        return empty.index_copy(1, places.to(flat.device), flat)


@dataclass(frozen=True, eq=False)
class RecognisedSolution(Supplemented):
    """Answers for a recognised graph."""

    route: ClassVar[str] = "structure"

    graph: FactorGraph  # as declared
    match: Match  # the structure, and the variable at each of its sites
    # solves the graph as no structure, for questions that the structure does not answer
    general: Callable[[], Solution]

    @property
    def _structure(self) -> Structure:
        return self.match.structure

    def _answers(self, answer: str) -> bool:
        return super()._answers(answer) and self._own.has(answer)

    @cached_property
    def _own(self) -> "OwnAnswers":
        return OwnAnswers(self._structure)

    @property
    def _sites(self) -> SitesInGraph:
        return SitesInGraph(self.graph, self.match)

    @differentiable_property
    def _each(self) -> Tensor:
        """(B, M) log Z of each of the structures that the graph consists of."""
        log_z = self._structure.log_partition()
        return log_z.reshape(math.prod(self.graph.batch_shape), -1)

    @cached_property
    def _alive(self) -> Tensor:
        return (self._each.detach() > -math.inf).all(1)

    def log_partition(self) -> Tensor:
        return torch.where(self._alive, self._each.sum(1), -math.inf)

    def variable_marginals(self) -> Tensor:
        marginals = self._structure.marginals()
        flat = self._sites.flat(self._sites.values(marginals, best=False))
        if self._are_possible(marginals.detach()):
            return flat
        return torch.where(self._alive.unsqueeze(1), flat, 0.0)

    def _are_possible(self, marginals: Tensor) -> bool:
        """Return whether marginals show, without log Z, that something is possible in all items.

        Gradients of log Z are zero for an impossible structure. They are also zero for one without
        sites, and where batch dims are not declared, they cannot be told from sites: log Z decides
        there, and where a class computes marginals in another way.
        """
        structure, kind = self._structure, type(self._structure)
        if kind.marginals is not Structure.marginals or not marginals.numel():
            return False
        if kind.batch_shape is Structure.batch_shape:
            return False
        each = marginals.reshape(math.prod(structure.batch_shape), -1)
        return bool((each.amax(1) > 0).all())

    def entropy(self) -> Tensor:
        entropy = self._own.give("entropy")
        if entropy is None:
            return super().entropy()
        return torch.where(self._alive, entropy.reshape(self._each.shape).sum(1), 0.0)

    def expected_score(self) -> Tensor:
        if self._own.give("entropy") is None:
            return self._general.expected_score()
        return self._log_z_less(self.entropy())

    def max_marginals(self) -> Tensor:
        values = self._own.give("max_marginals")
        if values is None:
            return self._general.max_marginals()
        values = self._sites.values(values, best=True)
        batch, many = self._each.shape
        values = values.reshape(batch, many, -1, values.shape[-1])
        # The value of a state in its part, and the best of the other parts.
        best = values[:, :, :1].amax(-1, keepdim=True)
        alive = (best > -math.inf).all(1, keepdim=True)
        best = torch.where(alive, best, 0.0)
        raised = torch.where(alive, values + (best.sum(1, keepdim=True) - best), -math.inf)
        return self._sites.flat(raised)

    def mode(self) -> Tensor:
        mode = self._own.give("mode")
        return self._general.mode() if mode is None else self._sites.states(mode, ())

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        drawn = self._structure.sample(count, generator)
        if drawn is None:
            return self._general.sample(count, generator)
        return self._sites.states(drawn, (count,))

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        drawn = self._structure.rsample(1, temperature=temperature, generator=generator)
        return self._sites.flat(self._sites.values(drawn[0], best=False))


class OwnAnswers:
    """The answers that a structure gives itself; None leaves one to the general engine."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._known = dict[str, bool]()
        self._computed = dict[str, Any]()

    def has(self, answer: str) -> bool:
        """Return whether an answer is among them."""
        answer = {"expected_score": "entropy"}.get(answer, answer)
        if answer not in ("entropy", "max_marginals", "mode", "sample"):
            return True
        if answer not in self._known:
            self._known[answer] = self._is_given(answer)
        return self._known[answer]

    def _is_given(self, answer: str) -> bool:
        structure = self._structure
        if getattr(type(structure), answer) is getattr(Structure, answer):
            return False
        none = (0, torch.Generator(structure.unary.device)) if answer == "sample" else ()
        with torch.no_grad():
            try:
                value = getattr(structure, answer)(*none)
            except ImpossibleEvidenceError:  # which is an answer
                return True
        if answer != "sample":
            self._computed[answer] = value
        return value is not None

    def give(self, answer: str) -> Any:
        """Give an answer, computed once, here or by `has`, unless gradients are wanted."""
        if answer != "mode" and torch.is_grad_enabled() and is_tracked(self._structure):
            value = getattr(self._structure, answer)()
            self._known[answer] = value is not None
            return value
        if answer not in self._computed:
            self._computed[answer] = getattr(self._structure, answer)()
            self._known[answer] = self._computed[answer] is not None
        return self._computed[answer]


@dataclass(frozen=True, eq=False)
class StructureSolution(Solution):
    """Answers of a structure, site by site; a general graph answers the rest."""

    route: ClassVar[str] = "structure"

    structure: Structure  # the model
    solve: Callable[[Any], Any]  # gives the posterior of its `factor_graph`

    def status_of(self, answer: str) -> Status:
        """Status of the structure's answers, or of the general graph's where that answers."""
        own = answer not in ("factor_marginals", "marginal_mode") and self._own.has(answer)
        return self.status() if own else self.general.solution.status_of(answer)

    @cached_property
    def _own(self) -> "OwnAnswers":
        return OwnAnswers(self.structure)

    def mode_is_optimal(self) -> Tensor:
        if self._own.has("mode"):
            return super().mode_is_optimal()
        return self.general.solution.mode_is_optimal()

    @differentiable_property
    def general(self) -> Any:
        """Posterior of the same model as a graph."""
        return self.solve(self.structure.factor_graph())

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Batch dims of the structure, from log Z if it does not declare them."""
        known = type(self.structure).batch_shape is not Structure.batch_shape
        return self.structure.batch_shape if known else tuple(self.shaped_log_partition.shape)

    def _flat(self, values: Tensor, *dims: int) -> Tensor:
        batch = self.batch_shape
        ends = values.shape[len(dims) + len(batch) :]
        return values.reshape(*dims, math.prod(batch), math.prod(ends))

    @differentiable_property
    def shaped_log_partition(self) -> Tensor:
        """(*batch,) log Z."""
        return self.structure.log_partition()

    @differentiable_property
    def shaped_marginals(self) -> Tensor:
        """(*batch, *sites, states) marginals of the sites."""
        return self.structure.marginals()

    def log_partition(self) -> Tensor:
        return self.shaped_log_partition.reshape(-1)

    def variable_marginals(self) -> Tensor:
        """(B, S); zero at sites that an item lacks."""
        return self._flat(self.shaped_marginals)

    def factor_marginals(self, block: int) -> Tensor:
        return self.general.solution.factor_marginals(block)

    def entropy(self) -> Tensor:
        entropy = self.structure.entropy()
        return (self.general.entropy() if entropy is None else entropy).reshape(-1)

    def entropy_over(self, log_base: Tensor) -> Tensor | None:
        """(B,) entropy relative to a base measure (B, S), or None."""
        entropy = self.structure.entropy_over(log_base.reshape(self.structure.unary.shape))
        return None if entropy is None else entropy.reshape(-1)

    def expected_score(self) -> Tensor:
        return self._log_z_less(self.entropy())

    def max_marginals(self) -> Tensor:
        values = self.structure.max_marginals()
        return self._flat(_only(self.general.max_marginals()) if values is None else values)

    def shaped_mode(self) -> Any:
        """Mode in the structure's type."""
        mode = self.structure.mode()
        return _only(self.general.mode()) if mode is None else mode

    def mode(self) -> Tensor:
        """(B, V); -1 at sites that an item lacks."""
        return self._flat(self.structure.site_states(self.shaped_mode()))

    def shaped_sample(self, count: int, generator: torch.Generator | None) -> Any:
        """Draws in the structure's type."""
        drawn = self.structure.sample(count, generator)
        return _only(self.general.sample(count, generator=generator)) if drawn is None else drawn

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        drawn = self.structure.site_states(self.shaped_sample(count, generator))
        return self._flat(drawn, count)

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        relaxed = self.structure.rsample(1, temperature=temperature, generator=generator)
        return self._flat(relaxed[0])

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        return self.general.solution.marginal_mode(numbers)

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return self.general.solution.marginal_mode_scores(numbers)


def _only(answers: dict[Entry, Tensor]) -> Tensor:
    (value,) = answers.values()
    return value
