"""The route of small graphs: a circuit over one flat array."""

from typing import Any, ClassVar

from rdpgraph._core import tuning
from rdpgraph.engines.exact.circuit import CircuitSolution
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.circuit import Circuit
from rdpgraph.plan.plan import PASSES, Budget
from rdpgraph.schedulers.auction import solver_without_structure
from rdpgraph.schedulers.route import Route, Task
from rdpgraph.schedulers.routes.structure import recognised
from rdpgraph.schedulers.scheduler import within


class CircuitRoute(Route):
    """Log Z and marginals of a small graph of tables, in a few dozen calls.

    `Auto.circuit` takes it before an auction begins, as asking takes longer than answering. So its
    bids are told in the table, and the plan is that of the other questions.
    """

    beforehand: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for log Z and marginals of a small graph that is no structure."""
        if question.name not in ("log_partition", "variable_marginals"):
            return None
        circuit = small_circuit(task)
        if circuit is None:
            return None
        cells = 8.0 * len(circuit.owners)
        seconds = PASSES * len(circuit.levels) * tuning.SECONDS_PER_GROUP / 10.0
        why = f"{len(circuit.owners):,} cells in {len(circuit.levels)} levels of one flat array"
        return Bid(Exactness.EXACT, seconds, 3.0 * cells, why, work=circuit)

    def run(self, task: Task, bid: Bid) -> Solution:
        return CircuitSolution(task.graph, bid.work, solver_without_structure(task, task.graph))


def small_circuit(task: Task) -> Circuit | None:
    """The circuit of a small graph which is no registered structure, or None."""

    def compute() -> Circuit | None:
        circuit = within(task.memory, task.exact_seconds, task.graph)
        if circuit is None or task.graph.observed is not None:
            return circuit
        match = recognised(task)
        # Among structures of several sizes much is empty.
        return None if match is not None and bool((match.numbers >= 0).all()) else circuit

    return task.once("circuit", compute)
