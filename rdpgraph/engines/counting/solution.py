"""Answers of a network by a counter and a circuit, alone or before another solution."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.counting.circuit import Circuit, CircuitLogSum, compiled, compiles
from rdpgraph.engines.counting.counter import has_counter, log_count
from rdpgraph.engines.counting.encoding import Encoding, encoded, place
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import factor_tables, full_states, state_table
from rdpgraph.engines.solution import (
    OF_LOG_PARTITION,
    OF_MODES,
    Delegate,
    Question,
    Solution,
    Status,
    Value,
)
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.logspace.gradients import refused
from rdpgraph.native.library import serves_graphs
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_SUMS = {*OF_LOG_PARTITION, "possible"}
_BY_CIRCUIT = (
    "variable_marginals", "check_factor_marginals", "factor_marginals", "expected_score", "entropy",
    "sample",
)  # fmt: skip
"""Questions that a circuit is compiled for."""

_NO_GRADIENT = (
    "Counting() has a gradient of log Z only; use Contraction() for gradients of other answers."
)
_IF_COMPILED = dict.fromkeys(OF_MODES, "mode") | {"max_marginals": "max_marginals"}
"""Questions that a circuit answers if it is there, and the kind of each: a kind has one route."""


@dataclass(frozen=True, eq=False)
class CountedSolution(Solution):
    """Log Z by a counter; other answers, gradients and batches by a compiled circuit."""

    route: ClassVar[str] = "counting"

    network: Network  # the reduced model, without whole potentials
    memory: float  # bytes for the counter, or the circuit
    allowance: Allowance = field(repr=False)  # seconds for all answers
    programs: tuple[str, ...] = ("d4", "pyganak")  # that count, in turn

    def status(self) -> Status:
        return Status(method="counting", route="counting")

    @differentiable_property
    def _encoding(self) -> Encoding:
        """Clauses and log-weights, which have gradients unless these are off."""
        return encoded(self.network)

    @cached_property
    def circuit(self) -> Circuit:
        """Circuit of all items."""
        if not serves_graphs() and not compiles(self._encoding):
            raise UnsupportedError(
                "A circuit needs the compiled library, which is not available here, or d4 (pip "
                "install d4solver); without them Counting gives only log Z, without gradients."
            )
        allowance = self.allowance.for_one_answer()
        with allowance.spending():
            seconds = allowance.left()
            return compiled(self._encoding, seconds=seconds, memory=self.memory)

    def log_partition(self) -> Tensor:
        network = self.network
        if network.impossible:
            return network.constant.new_full((network.batch,), -math.inf)
        if network.batch == 1 and not self._tracked and has_counter():
            return self._counted if "circuit" not in self.__dict__ else self._log_z
        return self._log_z

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): log Z, or if no count ends in time bounds by messages."""
        with suppress(BudgetError):
            return super().bounds()
        with torch.no_grad():
            seconds = effort.SUM_BOUNDS * self.allowance.seconds
            bounding = Bounding(self.network, self.memory)
            states = bounding.maxima(seconds).states
            return bounding.within(1.0, [states], seconds)

    @cached_property
    def _tracked(self) -> list[Tensor]:
        """Tables with gradients."""
        tables = (self.network.constant, *(group.log_tables for group in self.network.groups))
        return [part for part in tables if part.requires_grad]

    def _guarded(self, values: Tensor) -> Tensor:
        """The same values, whose gradient in the model's tables is an error."""
        return refused(values, _NO_GRADIENT, *self._tracked) if self._tracked else values

    @cached_property
    def _counted(self) -> Tensor:
        """(1,) log Z in nats; by a circuit if one is compiled quickly."""
        allowance = self.allowance.for_one_answer()
        with allowance.spending(), torch.no_grad():
            encoding, left = self._encoding, allowance.left
            quick = "d4" in self.programs and compiles(encoding)
            last = "pyganak" in self.programs and has_counter("pyganak")
            part = effort.CIRCUIT_BEFORE_D4 if quick else effort.CIRCUIT_FIRST
            if serves_graphs() and encoding.clauses and self._made(part * left(), alone=True):
                return self._log_z
            if quick:
                seconds = (effort.D4_FIRST if last else 1.0) * left()
                with suppress(BudgetError):
                    log_z = self._by("d4", seconds)
                    if log_z is not None or self._made(seconds):
                        return self._log_z if log_z is None else log_z
            log_z = self._by("pyganak", left()) if last else None
            if log_z is None:
                given = self.allowance.seconds
                ways = clock.ways_out(given, "time", "use an approximate method")
                raise BudgetError(f"The clauses were not counted in {given:.3g} s; {ways}.")
            return log_z

    def _made(self, seconds: float, *, alone: bool = False) -> bool:
        """Return whether a circuit is compiled within the seconds."""
        with suppress(BudgetError):
            vars(self)["circuit"] = compiled(
                self._encoding, seconds=seconds, memory=self.memory, alone=alone
            )
        return "circuit" in vars(self)

    def _by(self, program: str, seconds: float) -> Tensor | None:
        """Return (1,) log Z in nats as a program counts it, or None, as `log_count`."""
        count = log_count(self._encoding, program, seconds=seconds, memory=self.memory)
        return None if count is None else self.network.constant.new_tensor([count])

    def count_on(self, seconds: float) -> bool:
        """Return whether pyganak counts log Z in so many more seconds."""
        with suppress(BudgetError):
            vars(self)["_counted"] = self._by("pyganak", seconds)
        return "_counted" in vars(self)

    @property
    def _log_z(self) -> Tensor:
        """(B,) log Z in nats, by the circuit."""
        if self.circuit.impossible:
            return self.network.constant.new_full((self.network.batch,), -math.inf)
        summed: Tensor = CircuitLogSum.apply(self._encoding.log_weights, self.circuit)  # pyright: ignore[reportUnknownMemberType, reportAssignmentType]
        return (self._encoding.constant + summed).expand(self.network.batch)

    @cached_property
    def _none(self) -> bool:
        return self.network.impossible or self.circuit.impossible

    @cached_property
    def _weights(self) -> Tensor:
        """(B, 2 n) log-weights of the literals, without gradients."""
        return self._encoding.log_weights.detach().expand(self.network.batch, -1)

    @cached_property
    def _solved(self) -> Tensor:
        """(B, 1 + 2 n) log-sum of all literals, and the probability of each."""
        return self.circuit.shares(self._weights)

    @cached_property
    def _alive(self) -> Tensor:
        """(B,) 1 for items with a possible configuration, else 0."""
        possible = (self._solved[:, 0] > -math.inf) & (self._encoding.constant > -math.inf)
        return possible.to(self._solved)

    @cached_property
    def _shares(self) -> Tensor:
        """(B, 2 n) probability of each literal."""
        return self._solved[:, 1:] * self._alive.unsqueeze(1)

    def _of_states(self, values: Tensor, empty: float, settled: Tensor | float) -> Tensor:
        """(B, S) from values (B, 2 n) of literals."""
        places = [place(x) for literals in self._encoding.literals for x in literals]
        return state_table(self.network, values[:, places], empty, settled)

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities, by one pass down the circuit; without gradients."""
        if self._none:
            return state_table(self.network, None, 0.0, 0.0)
        return self._guarded(self._of_states(self._shares, 0.0, self._alive))

    def _given(self, rows: list[list[int]], *, maximum: bool = False) -> Tensor:
        """(B, n) log of the sum, or the maximum, of models in which each row's literals hold."""
        sums = [self._weights[:, :0]]
        step = tuning.per_block(self.circuit.size * self.network.batch, tuning.LARGE_BLOCK)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            weights = self._weights.unsqueeze(1).repeat(1, len(part), 1)
            for number, row in enumerate(part):
                weights[:, number, [place(-x) for x in row]] = -math.inf
            roots = self.circuit.roots(weights.flatten(0, 1), maximum=maximum)
            sums.append(roots.reshape(self.network.batch, -1))
        return torch.cat(sums, 1)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) by a row of evidence for each configuration; without gradients."""
        declared = self.network.graph.blocks[block]
        if self._none:
            shape = self.network.batch, declared.count, *declared.sizes
            return self.network.constant.new_zeros(shape)

        def beliefs(group: int, rows: Tensor) -> Tensor:
            return self._beliefs(group)[:, rows]

        tables = factor_tables(self.network, block, beliefs)
        return self._guarded(tables * self._alive.reshape(-1, *[1] * (tables.ndim - 1)))

    def _beliefs(self, group: int) -> Tensor:
        scopes = self.network.groups[group].scopes
        shape = self.network.groups[group].log_tables.shape[2:]
        cells = torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist()
        literals = self._encoding.literals
        rows = [
            [literals[v][s] for v, s in zip(scope, cell, strict=True)]
            for scope in scopes.tolist()
            for cell in cells
        ]
        log_z = self._solved[:, :1]
        ratios = (self._given(rows) - torch.where(log_z > -math.inf, log_z, 0.0)).exp()
        return ratios.reshape(self.network.batch, len(scopes), *shape)

    def expected_score(self) -> Tensor:
        """(B,) nats, of the literals' weights; without gradients."""
        if self._none:
            return self._encoding.constant.detach().expand(self.network.batch)
        terms = torch.where(self._shares > 0.0, self._shares * self._weights, 0.0)
        score = terms.sum(1) + self._encoding.constant.detach()
        return self._guarded(torch.where(self._alive > 0, score, 0.0))

    def max_marginals(self) -> Tensor:
        """(B, S) nats, by a row of evidence for each literal; without gradients."""
        if self._none:
            return state_table(self.network, None, -math.inf, -math.inf)
        count = self._encoding.count
        literals = [[sign * x] for x in range(1, count + 1) for sign in (1, -1)]
        log_values = self._given(literals, maximum=True)
        constant = self._encoding.constant.detach().unsqueeze(1)
        best = self.circuit.roots(self._weights, maximum=True)
        largest = self._of_states(log_values + constant, -math.inf, best + constant[:, 0])
        return self._guarded(largest)

    def _states(self, chosen: Tensor) -> Tensor:
        """(B, V) of the literals (2 n, B) that hold."""
        literals = self._encoding.literals
        states = torch.zeros(chosen.shape[1], len(literals), dtype=torch.long, device="cpu")
        for v, of_variable in enumerate(literals):
            states[:, v] = chosen[[place(x) for x in of_variable]].long().argmax(0).cpu()
        return states

    def mode(self) -> Tensor:
        if self._none:
            none = torch.zeros(1, self.network.batch, len(self.network.sizes)).long()
            return full_states(self.network, none)[0]

        def best(rows: Tensor) -> Tensor:
            values = self.circuit.up(rows, maximum=True)
            return self._states(self.circuit.descend(values, None, best=True))

        states = self.circuit.by_rows(self._weights, best)
        return full_states(self.network, states.unsqueeze(0))[0].to(self.network.constant.device)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        def drawn(rows: Tensor) -> Tensor:
            values, descend = self.circuit.up(rows), self.circuit.descend
            draws = [descend(values, generator, best=False) for _ in range(count)]
            return torch.stack([self._states(one) for one in draws], 1)

        states = self.circuit.by_rows(self._weights, drawn).transpose(0, 1)
        return full_states(self.network, states).to(self.network.constant.device)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Refuse: marginal modes are not available."""
        raise UnsupportedError("Counting has no marginal modes; use Auto() or Contraction().")


@dataclass(frozen=True, eq=False)
class CountedFirst(Delegate):
    """Log Z by a count if that ends in time, and marginals by a circuit; else another solution.

    If time is left when the other solution has answered, log Z is counted by pyganak.
    """

    count: CountedSolution = field(repr=False)  # answers, or raises `BudgetError`
    otherwise: Callable[[float], Solution] = field(repr=False)  # from the seconds of the count
    allowance: Allowance = field(repr=False)  # seconds for all of it
    kept: float = 0.0  # of these, what the other solution leaves

    @cached_property
    def _counted(self) -> bool:
        try:
            with self.allowance.spending(), torch.no_grad():
                self.count.log_partition()
        except BudgetError:
            return False
        return True

    @cached_property
    def _other(self) -> Solution:
        return self.otherwise(self.allowance.spent)

    @cached_property
    def _circuit(self) -> bool:
        """True if there is a circuit; it is compiled unless the time of a count was not enough."""
        in_vain = not vars(self).get("_counted", True)
        if "circuit" not in vars(self.count) and not in_vain:
            with suppress(BudgetError, UnsupportedError), self.allowance.spending():
                _ = self.count.circuit
        return "circuit" in vars(self.count)

    @cached_property
    def _maximised(self) -> dict[str, bool]:
        """Whether the circuit answers maxima, and the mode, as decided when first asked for."""
        return {}

    def _is_counted(self, name: str) -> bool:
        """Return whether a question is answered by the count or its circuit."""
        if name in _IF_COMPILED:
            ready = "circuit" in vars(self.count)
            return self._maximised.setdefault(_IF_COMPILED[name], ready)
        return self._circuit if name in _BY_CIRCUIT else name in _SUMS and self._counted

    def _ask(self, question: Question[Value]) -> Value:
        name = question.subject
        if self._is_counted(name):
            return question(self.count)
        if name not in _SUMS or not self.kept or "_other" in vars(self):
            return question(self._other)
        self.allowance.spent += self.kept
        with self.allowance.spending():
            answer = question(self._other)
        left = self.allowance.seconds + self.kept - self.allowance.spent
        vars(self)["_counted"] = self.count.count_on(left)
        return question(self.count) if self._counted else answer

    def status(self) -> Status:
        """Status of log Z and marginals, by the solutions that answer them."""
        return self.status_of_sums()

    def status_of(self, answer: str) -> Status:
        """Status of the count, or of the other solution, which says that none ended in time."""
        status: Status = self._ask(Question("status_of", (answer,)))
        if answer not in _SUMS or status.route == self.count.route or self._counted:
            return status
        return replace(status, tried=("counting: no count ended in its time", *status.tried))
