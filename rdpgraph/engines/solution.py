"""Interface of solutions: the answers that every engine gives to the query room."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.cache import differentiable_property
from rdpgraph._core.notebook import panel
from rdpgraph._core.numbers import PROOF
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.graph import FactorGraph


@dataclass(frozen=True)
class Status:
    """Exactness, convergence and bias of an answer, and a remedy.

    Attributes:
        exact: the answer is exact up to rounding.
        converged: the iteration reached its tolerance; True where nothing iterates.
        biased: log Z is a biased estimate of log Z, as is the log of every random estimate of Z,
            also where that of Z is unbiased.
        iterations: sweeps, or None where nothing iterates.
        residual: the last change of a message, or None.
        effective_sample_size: over replicates, or None.
        standard_error: of log Z over replicates, in nats, or None.
        bound: ``"upper"`` or ``"lower"`` if log Z is a bound; else empty.
        trace: the residual of every sweep.
        method: what answered, such as "loopy", or "randomized, by loopy" where an estimator made
            the model that messages solved; empty where exact inference answered alone.
        remedy: what was done for this answer beyond what was asked, such as damping, and how to get
            a better one; empty where neither is worth a word.
        route: the route that answered, by its name in `Plan.bids`; empty where an estimator or a
            decoder did.
        tried: routes that were tried before and did not keep their word, each with the reason.
    """

    exact: bool = True
    converged: bool = True
    biased: bool = False
    iterations: int | None = None
    residual: float | None = None
    effective_sample_size: float | None = None
    standard_error: float | None = None
    bound: str = ""
    trace: tuple[float, ...] = field(default=(), repr=False)
    method: str = ""
    remedy: str = ""
    route: str = field(default="", compare=False)
    tried: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        worth = "exact" if self.exact else "approximate"
        lines = [f"Status: {worth}" if self.converged else f"Status: {worth}, NOT converged"]
        if self.method or self.route:
            kind = "method" if self.method else "route "
            lines.append(f"  {kind}      {self.method or self.route}")
        lines += [f"  tried       {each}" for each in self.tried]
        if self.iterations is not None:
            change = "" if self.residual is None else f", the last change {self.residual:.2g}"
            lines.append(f"  iterations  {self.iterations:,}{change}")
        if self.effective_sample_size is not None:
            lines.append(f"  replicates  worth {self.effective_sample_size:.1f} equal ones")
        # Neither has a meaning for an answer that is exact.
        if self.bound and not self.exact:
            lines.append(
                f"  log Z       {'an' if self.bound == 'upper' else 'a'} {self.bound} bound"
            )
        elif self.biased:
            lines.append("  log Z       biased")
        if self.standard_error is not None:
            lines.append(f"  error       {self.standard_error:.2g} nats, standard, of log Z")
        if self.remedy:
            lines.append(f"  remedy      {self.remedy}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return panel(str(self))


def prefix_method(method: str, status: Status) -> Status:
    """Return the status of a rewritten model, with the method that rewrote it put in front."""
    return replace(status, method=f"{method}, by {status.method}" if status.method else method)


def of_answers(parts: Mapping[str, Status]) -> Status:
    """Status of several answers together, by their names; the first is log Z, if that is one.

    Its bias, its error and whether it is a bound are those of the first.
    """
    first = next(iter(parts.values()))
    if all(part == first for part in parts.values()):
        return first
    # The record of sweeps is that of the last answer that has one; methods are told by answer.
    sweeping = [part for part in parts.values() if part.iterations is not None]
    last = sweeping[-1] if sweeping else first
    methods = {name: part.method or part.route or "contraction" for name, part in parts.items()}
    routes = {part.route for part in parts.values()}
    told = "; ".join(f"{name} by {method}" for name, method in methods.items())
    remedies = dict.fromkeys(filter(None, (part.remedy for part in parts.values())))
    return replace(
        first,
        exact=all(part.exact for part in parts.values()),
        converged=all(part.converged for part in parts.values()),
        iterations=last.iterations,
        residual=last.residual,
        trace=last.trace,
        method=told if len(set(methods.values())) > 1 else methods.popitem()[1],
        remedy="; ".join(remedies),
        route=routes.pop() if len(routes) == 1 else told,
        tried=tuple(dict.fromkeys(each for part in parts.values() for each in part.tried)),
    )


def of_all(parts: Sequence[Status]) -> Status:
    """Status of an answer that parts of a batch gave: what holds of all, and the largest error."""
    first = parts[0]
    if all(part == first for part in parts):
        return first

    def most(name: str, of: Callable[[Iterable[Any]], Any] = max) -> Any:
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        return of(known) if known else None

    # Exact parts bound nothing; others must bound from one side to be a bound together.
    bounds = {part.bound for part in parts if not part.exact}
    return Status(
        exact=all(part.exact for part in parts),
        converged=all(part.converged for part in parts),
        biased=any(part.biased for part in parts),
        iterations=most("iterations"),
        residual=most("residual"),
        effective_sample_size=most("effective_sample_size", min),
        standard_error=most("standard_error"),
        bound=bounds.pop() if len(bounds) == 1 else "",
        trace=max((part.trace for part in parts), key=len),
        method=" or ".join(
            dict.fromkeys(part.method or part.route or "contraction" for part in parts)
        ),
        remedy="; ".join(dict.fromkeys(filter(None, (part.remedy for part in parts)))),
        route=" or ".join(dict.fromkeys(filter(None, (part.route for part in parts)))),
        tried=tuple(dict.fromkeys(each for part in parts for each in part.tried)),
    )


OF_LOG_PARTITION = {
    "log_partition", "log_partitions", "log_partition_errors", "bounds", "interval",
}  # fmt: skip
"""Questions about log Z."""
OF_MODES = {
    "mode", "possible_mode", "mode_exists", "mode_is_possible", "mode_bound", "mode_is_consistent",
    "mode_is_optimal",
}  # fmt: skip
"""Questions about the mode."""

Value = TypeVar("Value")
Params = ParamSpec("Params")


class Solution(ABC):
    """A solved factor graph, in numbers: B batch items (flattened), V variables, S states in all.

    A flat table (B, S) holds the states of variable 0, then those of variable 1, and so on.
    """

    crosses = True
    route: ClassVar[str] = ""
    """The route that gives these answers, for statuses that say nothing else."""

    def status(self) -> Status:
        """Status of log Z and marginals; exact unless an engine says otherwise.

        It is the same whatever was asked before.
        """
        return Status(route=self.route)

    def status_of_sums(self) -> Status:
        """Status of log Z and marginals, where they may have been answered in different ways."""
        names = {"log Z": "log_partition", "marginals": "variable_marginals"}
        return of_answers({name: self.status_of(answer) for name, answer in names.items()})

    def status_of(self, answer: str) -> Status:
        """Status of one answer, by the name of its method; `status` unless an engine says so.

        Modes and marginal modes have proofs instead: `mode_is_optimal`, `marginal_mode_scores`.
        """
        del answer  # all are alike
        return self.status()

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(B,) log Z in nats; -inf where no configuration is possible."""

    def log_partitions(self) -> Tensor:
        """(replicates, B) estimates whose mean, as Z, is `log_partition`; that alone by default."""
        return self.log_partition().unsqueeze(0)

    def log_partition_errors(self) -> Tensor | None:
        """(B,) standard errors of log Z (nats), if they are not those of `log_partitions`."""
        return None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return (B,) certain lower and (B,) certain upper bounds on log Z (nats)."""
        log_z, status = self.log_partition().detach(), self.status_of("log_partition")
        sure = status.exact and not status.biased
        below = sure or status.bound == "lower"
        above = sure or status.bound == "upper"
        infinite = torch.full_like(log_z, math.inf)
        return (log_z if below else -infinite), (log_z if above else infinite)

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): lower and upper ends of a confidence interval for log Z (nats).

        The confidence is over the draws that were made; at 1 the bounds are certain.
        """
        del confidence  # nothing is drawn
        return self.bounds()

    @abstractmethod
    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities; zero throughout where log Z is -inf."""

    def check_factor_marginals(self, block: int) -> None:
        """Refuse marginals that `factor_marginals` does not form, before memory is planned."""
        del block  # all are formed

    @abstractmethod
    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) probabilities of the configurations of a block's factors."""

    def factor_marginals_of(self, block: int, rows: Tensor) -> Tensor:
        """(B, n, *sizes) those of some of the block's factors, by their rows (n,)."""
        values = self.factor_marginals(block)
        return values[:, rows.to(values.device)]

    def possible(self) -> Tensor:
        """Return (B,) True where log Z says that some configuration is possible."""
        return self.log_partition().detach() > -math.inf

    def _of_possible(self, values: Tensor) -> Tensor:
        """Values (B, ...), but zeros for items without a possible configuration."""
        possible = self.possible().reshape(-1, *(1,) * (values.ndim - 1))
        return torch.where(possible, values, 0.0)

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], "Solution"]) -> Tensor | None:
        """(B, *sizes) joint of variables that no one factor holds; None: conditioning gives it.

        Args:
            numbers: (n,) of the variables.
            solve: solves a graph exactly.
        """
        return None

    def joints(self, number: int) -> Tensor | None:
        """(B, K, S) the joints of a variable's K states with all states; None: by conditioning.

        Answered by estimates, which are of another model than the one declared.
        """
        return None

    @abstractmethod
    def expected_score(self) -> Tensor:
        """(B,) the expectation of the summed log-values (nats)."""

    def entropy(self) -> Tensor:
        """(B,) nats; 0 where log Z is -inf."""
        return self._log_z_less(self.expected_score())

    def _log_z_less(self, nats: Tensor) -> Tensor:
        """(B,) log Z less the expected score or the entropy, which gives the other; 0 for -inf."""
        log_z = self.log_partition()
        alive = log_z.detach() > -math.inf
        return torch.where(alive, torch.where(alive, log_z, 0.0) - nats, 0.0)

    @abstractmethod
    def max_marginals(self) -> Tensor:
        """(B, S) the largest score of a configuration with each state (nats)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """(B, V) one most probable configuration."""

    def possible_mode(self) -> Tensor:
        """(B, V) the mode, or a configuration of positive probability in its place.

        Raises:
            BudgetError: none was found.
        """
        return self.mode()

    def mode_exists(self) -> Tensor | None:
        """(B,) whether any configuration is possible, if that is known without log Z or a mode."""
        return None

    def mode_is_possible(self) -> Tensor | None:
        """(B,) False where the search for a mode proved too that there is none, if that is known.

        Needs the mode, unlike `mode_exists`.
        """
        return self.mode_exists()

    def mode_bound(self) -> Tensor:
        """(B,) float64 upper bound on the score of every configuration (nats).

        +inf: nothing is known beyond the mode's score, which is the maximum if the status is exact.
        """
        return torch.full(self.log_partition().shape, math.inf, dtype=torch.float64, device="cpu")

    def mode_is_consistent(self) -> Tensor:
        """(B,) whether the mode is among the best configurations of every factor."""
        return torch.ones(len(self.log_partition()), dtype=torch.bool, device="cpu")

    def mode_is_optimal(self) -> Tensor:
        """(B,) whether no configuration is better than the mode, proved."""
        return torch.full((len(self.mode()),), self.status_of("mode").exact, device="cpu")

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) independent draws."""

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(B, S) one relaxed one-hot draw, differentiable.

        Raises:
            UnsupportedError: there is none.
        """
        raise UnsupportedError("This estimate has no relaxed samples; use sample(count).")

    @abstractmethod
    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Return (B, len(numbers)) most probable states of some variables, summing out the rest."""

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) float64: lower and upper bounds on the marginal mode's log-mass (nats).

        The upper one bounds every configuration's mass. -inf and +inf: unknown.
        """
        infinite = torch.full(
            (len(self.marginal_mode(numbers)),), math.inf, dtype=torch.float64, device="cpu"
        )
        return -infinite, infinite


def meets(scores: Tensor, bounds: Tensor) -> Tensor:
    """Return whether scores (nats) reach their upper bounds, up to rounding."""
    slack = PROOF * scores.abs().clamp(min=1.0)
    return (scores > -math.inf) & (bounds <= scores + torch.where(slack.isfinite(), slack, 0.0))


class Approximation(Solution):
    """Beliefs that need not be the marginals of any joint distribution."""

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Refuse: beliefs need not have a joint distribution."""
        raise UnsupportedError(
            "Message passing gives marginals and no joint distribution to sample from; use "
            "Contraction(), or condition on variables drawn one after the other."
        )

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Refuse: marginal modes need exact inference."""
        raise UnsupportedError(
            "Message passing gives no marginal modes; use Auto(), which searches for them, or "
            "Contraction()."
        )


@dataclass(frozen=True)
class Question(Generic[Value]):
    """A question to a solution: the name of a method, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()

    @property
    def subject(self) -> str:
        """The answer that is asked for, or whose status is."""
        if self.name == "factor_marginals_of":
            return "factor_marginals"
        return str(self.arguments[0]) if self.name == "status_of" else self.name

    def __call__(self, solution: Solution) -> Value:
        return getattr(solution, self.name)(*self.arguments)


def _asked(method: Callable[Params, Value]) -> Callable[Params, Value]:
    """A `Solution` method that passes its call to `_ask`."""
    name = method.__name__

    @functools.wraps(method, updated=())  # what was abstract is answered here
    def ask(*args: Params.args, **kwargs: Params.kwargs) -> Value:
        delegate: Any
        delegate, *arguments = args
        assert not kwargs  # a solution is asked by position
        return delegate._ask(Question[Value](name, tuple(arguments)))

    return ask


class Delegate(Solution):
    """A solution that passes questions to another one, which a subclass chooses."""

    @abstractmethod
    def _ask(self, question: Question[Value]) -> Value:
        """The answer of the solution in charge."""

    def factor_marginals_of(self, block: int, rows: Tensor) -> Tensor:
        if type(self).factor_marginals is not Delegate.factor_marginals:
            return super().factor_marginals_of(block, rows)
        return self._ask(Question("factor_marginals_of", (block, rows)))

    status = _asked(Solution.status)
    status_of = _asked(Solution.status_of)
    log_partition = _asked(Solution.log_partition)
    log_partitions = _asked(Solution.log_partitions)
    log_partition_errors = _asked(Solution.log_partition_errors)
    bounds = _asked(Solution.bounds)
    interval = _asked(Solution.interval)
    possible = _asked(Solution.possible)
    variable_marginals = _asked(Solution.variable_marginals)
    check_factor_marginals = _asked(Solution.check_factor_marginals)
    factor_marginals = _asked(Solution.factor_marginals)
    joint = _asked(Solution.joint)
    joints = _asked(Solution.joints)
    expected_score = _asked(Solution.expected_score)
    entropy = _asked(Solution.entropy)
    max_marginals = _asked(Solution.max_marginals)
    mode = _asked(Solution.mode)
    possible_mode = _asked(Solution.possible_mode)
    mode_exists = _asked(Solution.mode_exists)
    mode_is_possible = _asked(Solution.mode_is_possible)
    mode_bound = _asked(Solution.mode_bound)
    mode_is_consistent = _asked(Solution.mode_is_consistent)
    mode_is_optimal = _asked(Solution.mode_is_optimal)
    sample = _asked(Solution.sample)
    rsample = _asked(Solution.rsample)
    marginal_mode = _asked(Solution.marginal_mode)
    marginal_mode_scores = _asked(Solution.marginal_mode_scores)


_NEEDED = {
    **dict.fromkeys(("log_partitions", "log_partition_errors", "bounds", "interval", "possible"),
                    "log_partition"),
    **dict.fromkeys(("check_factor_marginals", "factor_marginals_of"), "factor_marginals"),
    **dict.fromkeys(OF_MODES - {"mode"}, "mode"),
    "marginal_mode_scores": "marginal_mode", "entropy": "expected_score",
}  # fmt: skip
"""For each question that has a default answer, the one that this is computed from."""


class PartialSolution(Solution):
    """A solution that answers some questions; the methods that a subclass has are its answers.

    A route of one's own gives one, and other routes answer all else.
    """

    def answers(self, question: str) -> bool:
        """Return whether this solution answers a question, given the name of its method."""
        own = getattr(type(self), question, None)
        if own is not getattr(PartialSolution, question, None):
            return True
        needed = _NEEDED.get(question)
        return needed is not None and self.answers(needed)

    def log_partition(self) -> Tensor:
        return self._refuse("log_partition")

    def variable_marginals(self) -> Tensor:
        return self._refuse("variable_marginals")

    def factor_marginals(self, block: int) -> Tensor:
        return self._refuse("factor_marginals")

    def expected_score(self) -> Tensor:
        return self._refuse("expected_score")

    def max_marginals(self) -> Tensor:
        return self._refuse("max_marginals")

    def mode(self) -> Tensor:
        return self._refuse("mode")

    def mode_bound(self) -> Tensor:
        """(B,) float64, +inf: nothing is known beyond the mode."""
        return torch.full((len(self.mode()),), math.inf, dtype=torch.float64, device="cpu")

    def mode_is_consistent(self) -> Tensor:
        """(B,) True: the mode is what the subclass says."""
        return torch.ones(len(self.mode()), dtype=torch.bool, device="cpu")

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self._refuse("sample")

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        return self._refuse("marginal_mode")

    def _refuse(self, question: str) -> Tensor:
        raise UnsupportedError(f"{type(self).__name__} does not answer {question}.")


class Supplemented(Solution):
    """A solution of which a subclass answers log Z and marginals, and a general one the rest.

    The general one may be approximate: what it answers has its status and its proofs.
    """

    general: Callable[[], Solution]

    @differentiable_property
    def _general(self) -> Solution:
        return self.general()

    def _ask(self, question: Question[Value]) -> Value:
        return question(self._general)

    def _answers(self, answer: str) -> bool:
        """Return whether this solution answers a question itself, and not the general one."""
        if answer == "entropy" and type(self).entropy is Solution.entropy:
            answer = "expected_score"
        return getattr(type(self), answer) is not getattr(Supplemented, answer, None)

    def status_of(self, answer: str) -> Status:
        """Status of this solution, or of the general one where that answers."""
        return self.status() if self._answers(answer) else self._general.status_of(answer)

    def factor_marginals_of(self, block: int, rows: Tensor) -> Tensor:
        if self._answers("factor_marginals"):
            return super().factor_marginals_of(block, rows)
        return self._general.factor_marginals_of(block, rows)

    check_factor_marginals = _asked(Solution.check_factor_marginals)
    factor_marginals = _asked(Solution.factor_marginals)
    expected_score = _asked(Solution.expected_score)
    max_marginals = _asked(Solution.max_marginals)
    mode = _asked(Solution.mode)
    sample = _asked(Solution.sample)
    marginal_mode = _asked(Solution.marginal_mode)
    marginal_mode_scores = _asked(Solution.marginal_mode_scores)

    @property
    def _of_modes(self) -> Solution | None:
        """The general solution where that gives the mode; None where this one does."""
        return None if self._answers("mode") else self._general

    def possible_mode(self) -> Tensor:
        return self.mode() if (general := self._of_modes) is None else general.possible_mode()

    def mode_exists(self) -> Tensor | None:
        return None if (general := self._of_modes) is None else general.mode_exists()

    def mode_is_possible(self) -> Tensor | None:
        return None if (general := self._of_modes) is None else general.mode_is_possible()

    def mode_bound(self) -> Tensor:
        general = self._of_modes
        return super().mode_bound() if general is None else general.mode_bound()

    def mode_is_consistent(self) -> Tensor:
        general = self._of_modes
        return super().mode_is_consistent() if general is None else general.mode_is_consistent()

    def mode_is_optimal(self) -> Tensor:
        general = self._of_modes
        return super().mode_is_optimal() if general is None else general.mode_is_optimal()
