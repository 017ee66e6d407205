"""Scheduler of exact counts, for models of clauses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.counting.circuit import circuit_of, format_nnf
from rdpgraph.engines.counting.counter import has_counter, require_counter
from rdpgraph.engines.counting.solution import CountedSolution
from rdpgraph.engines.recognised import graph_held
from rdpgraph.engines.reduction.network import Network
from rdpgraph.errors import UnsupportedError
from rdpgraph.io.dimacs import clauses_of
from rdpgraph.model.block import Block
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.sparse import Projection
from rdpgraph.model.potentials.table import Table
from rdpgraph.native.library import serves_graphs
from rdpgraph.plan.clock import Allowance
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    asked_plan,
    budget_of,
    constraints,
    reduced,
)

CountOf: TypeAlias = Callable[[float], CountedSolution]


@dataclass(frozen=True)
class Counting(Scheduler):
    """Exact answers for models with many hard zeros, of any width, by counts and circuits.

    Evidence and hard zeros reduce the model; what is left becomes weighted clauses: a variable of
    two states is a literal, any other has one for each state, impossible configurations are
    clauses, and literals that hold for configurations of equal value carry its weight. `Or`,
    `Xor`, `Cardinality` and other automata are clauses without their tables.

    There are two ways. A counter gives log Z of one row of evidence: it branches, propagates,
    learns clauses and keeps the counts of components that it meets again. d4 has three fifths of
    the time, and pyganak the rest, which simplifies clauses first and holds 128 bits for weights.
    They run in separate processes, which the clock or their memory ends. All else needs a circuit,
    which keeps all branches of such a search. A compiler of this library is tried first, which
    learns nothing, and then d4. A circuit is compiled once for a set of clauses, whatever their
    weights, and answers batches of evidence and weights. Its log Z has gradients; those of other
    answers are refused. d4 and pyganak are optional: without them there are the circuits of this
    library. Marginal modes are not answered.

    Cost: not known in advance; seconds to minutes for planning problems of a thousand variables and
    a width of hundreds. Some models can be counted and not compiled. All marginals take two passes
    over the circuit; max-marginals and the marginals of a factor take a row of evidence for each
    state. For models without hard zeros contraction is better.

    Source: Chavira and Darwiche (2008), On probabilistic inference by weighted model counting;
    Lagniez and Marquis (2017), An improved decision-DNNF compiler; Sharma, Roy, Soos and Meel
    (2019), GANAK; Darwiche (2003), A differential approach to inference.

    Args:
        seconds: for an answer.
        memory: bytes for the counter or the circuit; None: 60% of what the machine has available.

    Raises:
        ModelError: a limit that is no number above zero, or infinite seconds.
        UnsupportedError: (`plan`) there is neither a counter nor a compiled library; (answers) a
            gradient of something else than log Z, or a marginal mode.
        BudgetError: (answers) the count or the circuit did not end within the limits.
    """

    seconds: float = 60.0
    memory: float | None = None

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf)")

    def plan(self, graph: FactorGraph) -> Planned:
        """Plan a count, which begins when an answer is asked for."""
        if not serves_graphs():
            require_counter()
        network = network_of_clauses(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        hard, joint = constraints(network)
        why = (
            "a model counter and a circuit, as asked for, in a time that is not predicted: "
            f"{hard:,} of {joint:,} factors are pure constraints"
        )
        plan = asked_plan("counting", why, network, budget)
        allowance = Allowance(self.seconds, shared=False)
        return plan, partial(CountedSolution, network, budget.memory_bytes, allowance)


def has_projections(graph: FactorGraph) -> bool:
    """Return whether a factor has hidden variables."""
    return any(isinstance(block.potential, Projection) for block in graph.blocks)


def network_of_clauses(graph: FactorGraph, seconds: float) -> Network:
    """The graph's network, without tables of projections.

    Evidence on a batch is in tables of one variable, so that clauses are those of all rows.
    """
    held = graph_held(graph) if graph.batch_shape else graph
    blocks = [
        Block(b.scopes[:, :0], Table(b.potential.zero), (), None, b.declared)
        if isinstance(b.potential, Projection)
        else b
        for b in held.blocks
    ]
    network = reduced(FactorGraph.from_blocks(graph.domain, blocks, held.observed), seconds)
    pairs = zip(graph.blocks, network.origins, strict=False)
    origins = (() if isinstance(b.potential, Projection) else parts for b, parts in pairs)
    return replace(network, graph=graph, origins=tuple(origins))


def counting_of(network: Network, memory: float) -> tuple[str, CountOf | None]:
    """Reason why log Z is counted or not, and the counter, if any; empty if width decides."""
    hard, joint = constraints(network)
    trained = any(group.log_tables.requires_grad for group in network.groups)
    if trained or hard < effort.COUNTS_CONSTRAINTS * max(joint, 1):
        return "", None
    why = f"{hard:,} of {joint:,} factors are pure constraints"
    if network.batch > 1:
        known = f"computed from one circuit for all rows where possible, because {why}"
        return (known, partial(_counted, network, memory)) if serves_graphs() else ("", None)
    if not has_counter():
        return f"estimated; pip install 'rdpgraph[counting]' to count it, because {why}", None
    return f"counted where possible, because {why}", partial(_counted, network, memory)


def _counted(network: Network, memory: float, seconds: float) -> CountedSolution:
    allowance = Allowance(seconds if network.batch == 1 else effort.ROWS_CIRCUIT * seconds)
    if network.batch > 1:
        with allowance.spending():
            network = network_of_clauses(network.graph, seconds)
    solution = CountedSolution(network, memory, allowance)
    return replace(solution, programs=("d4",)) if has_both(network) else solution


def has_both(network: Network) -> bool:
    """Return whether log Z is counted first by d4, and later by pyganak."""
    return network.batch == 1 and has_counter("d4") and has_counter("pyganak")


def refuse_nnf(_: object, /, *, source: str, **__: object) -> FactorGraph:
    """Refuse circuits, which are written alone."""
    raise UnsupportedError(
        f"{source}: circuits can be written but not read; read the clauses (.cnf)."
    )


def nnf_of(graph: FactorGraph) -> str:
    """The text of a compiled circuit of a graph of clauses, in the time and memory of `Counting`.

    Raises:
        UnsupportedError: a graph that DIMACS does not hold, or no compiled library.
        BudgetError: no circuit that fits.
    """
    limits = Counting()
    if not serves_graphs():
        raise UnsupportedError(
            "A circuit needs the compiled library, which is not available here: install a C++ "
            "compiler."
        )
    memory = budget_of(limits.memory, limits.seconds).memory_bytes
    clauses, count, *_ = clauses_of(graph)
    hidden = count - graph.num_variables
    return format_nnf(circuit_of(clauses, count, hidden, limits.seconds, memory))
