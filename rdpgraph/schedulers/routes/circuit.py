"""The route of small graphs: a circuit over one flat array."""

from typing import Any, ClassVar

from rdpgraph.engines.exact.circuit import CircuitSolution
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.auction import solver_without_structure
from rdpgraph.schedulers.route import Route, Task, circuit_seconds


class CircuitRoute(Route):
    """Log Z and marginals of a small graph of tables, in a few dozen calls.

    `Auto.circuit` takes it before an auction begins, as asking takes longer than answering. So its
    bids are told in the table, and the plan is that of the other questions.
    """

    beforehand: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for log Z and marginals of a small graph."""
        if question.name not in ("log_partition", "variable_marginals"):
            return None
        circuit = task.circuit
        if circuit is None:
            return None
        cells = 8.0 * len(circuit.owners)
        why = f"{len(circuit.owners):,} cells in {len(circuit.levels)} levels of one flat array"
        return Bid(Exactness.EXACT, circuit_seconds(circuit), 3.0 * cells, why, work=circuit)

    def run(self, task: Task, bid: Bid) -> Solution:
        return CircuitSolution(task.graph, bid.work, solver_without_structure(task, task.graph))
