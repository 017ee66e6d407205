"""Answers that report what is being done while they have no steps to report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rdpgraph._core.progress import reporting
from rdpgraph.engines.solution import Delegate, Question, Solution, Value

_NAMES = {
    "log_partition": "log Z",
    "variable_marginals": "marginals",
    "factor_marginals": "marginals of a factor",
    "possible_mode": "mode",
    "mode_bound": "bound on the mode",
    "marginal_mode": "marginal mode",
    "marginal_mode_scores": "bounds on the marginal mode",
}


@dataclass(frozen=True, eq=False)
class Reported(Delegate):
    """The answers of a solution, whose progress is reported at least every few seconds."""

    solution: Solution
    progress: Callable[[Any], object] | None = field(
        default=None, repr=False, metadata={"elsewhere": None}
    )

    def _ask(self, question: Question[Value]) -> Value:
        name = _NAMES.get(question.subject, question.subject.replace("_", " "))
        with reporting(self.progress, name):
            return question(self.solution)
