"""Dynamic Bayesian networks: one slice of a network, repeated in time, as an estimator.

The variables of a slice that have children in the next one are its interface: given these, past and
future are independent (Murphy 2002, "Dynamic Bayesian networks", section 3.5). So a series is a
`Chain` whose states are the configurations of interfaces, and whose transition at each step is a
slice with its other variables summed out, given what was observed there.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.portable import Arguments, optional_module
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.infer import infer
from rdpgraph.learn.em import EM, Fit, Step
from rdpgraph.learn.families import BDeu, columns, count_rows, edges_of, states_in
from rdpgraph.learn.parameters import Probabilities, require_table
from rdpgraph.learn.sequences import PaddedBatch, as_rows, batches_of, sequences_of
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.conditional import is_conditional, refuse_cycle
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING, states_given
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table, as_values
from rdpgraph.model.variable import Variable, VariableArray, names_of
from rdpgraph.structures.chain.model import Chain

_CELLS = 2**18
"""Log-values of the transitions of a batch of sequences."""

Node = tuple[str, int]
"""A variable of the step before, (name, 0), or of this one, (name, 1)."""
Scoped = tuple[tuple[Node, ...], Tensor]
"""A log-table (R or 1, *sizes) over some nodes, for R steps."""
Ask = Callable[[PaddedBatch, "_Slices", dict[str, Tensor]], Tensor]
"""Answers (B, ...) for a batch of series, by slices and log-tables."""


@dataclass(frozen=True, eq=False)
class _Slices:
    """The variables of a slice, their parents, and those with children in the next slice.

    Attributes:
        variables: by name.
        before: for each name its parents in the step before.
        within: for each name its parents in the same step.
    """

    variables: dict[str, Variable]
    before: dict[str, list[str]]
    within: dict[str, list[str]]

    @property
    def interface(self) -> tuple[str, ...]:
        """The variables that have a child in the next step."""
        parents = {parent for above in self.before.values() for parent in above}
        return tuple(name for name in self.variables if name in parents)

    @property
    def states(self) -> int:
        """The number of configurations of the interface."""
        return math.prod(self.variables[name].size for name in self.interface)

    def scope(self, name: str, *, first: bool) -> tuple[Node, ...]:
        """The nodes of a table, (*parents before, *parents within, the variable)."""
        before = [] if first else [(parent, 0) for parent in self.before[name]]
        return (*before, *((parent, 1) for parent in self.within[name]), (name, 1))

    def sizes(self, name: str, *, first: bool) -> tuple[int, ...]:
        """The shape of a table."""
        return tuple(self.variables[node].size for node, _ in self.scope(name, first=first))

    def key(self, name: str, *, first: bool) -> str:
        """The name of a table; that of the first step has one of its own only where it differs."""
        return f"{name} at first" if first and self.before[name] else name

    def parameters(self) -> Iterator[tuple[str, str, bool]]:
        """The tables: key, name of the variable, and whether it is of the first step."""
        for name, above in self.before.items():
            if above:
                yield self.key(name, first=True), name, True
            yield name, name, False

    def tables(self, values: Mapping[str, Tensor], *, first: bool) -> list[Scoped]:
        """The log-tables of a slice, that of the first step or of any other."""
        return [
            (self.scope(name, first=first), values[self.key(name, first=first)].unsqueeze(0))
            for name in self.variables
        ]


def eliminate(tables: Iterable[Scoped], kept: Sequence[Node], temperature: float = 1.0) -> Tensor:
    """(R or 1, *sizes) the log-sum of products of tables over all nodes but some.

    Those that make the smallest tables go first. At temperature 0 the maximum. Exact at any range,
    and differentiable.
    """
    left = list(tables)
    while lacking := {node for scope, _ in left for node in scope} - {*kept}:
        gone = min(lacking, key=partial(_cost, left))
        touching = [each for each in left if gone in each[0]]
        nodes = dict.fromkeys(node for scope, _ in touching for node in scope)
        union = tuple(node for node in nodes if node != gone)
        joint = _product(touching, (*union, gone))
        left = [each for each in left if gone not in each[0]]
        left.append((union, soft_sum(joint, -1, temperature)))
    return _product(left, kept)


def _cost(tables: Sequence[Scoped], node: Node) -> tuple[int, Node]:
    """The entries of the table by which a node is eliminated, for one step."""
    sizes: dict[Node, int] = {}
    for scope, table in tables:
        if node in scope:
            sizes |= zip(scope, table.shape[1:], strict=True)
    return math.prod(sizes.values()), node


def _product(tables: Sequence[Scoped], order: Sequence[Node]) -> Tensor:
    """(R or 1, *sizes) the sum of log-tables, over nodes in an order."""
    total: Tensor | None = None
    for scope, table in tables:
        held = [node for node in order if node in scope]
        table = table.permute(0, *(1 + scope.index(node) for node in held))
        for place, node in enumerate(order):
            if node not in scope:
                table = table.unsqueeze(1 + place)
        total = table if total is None else total + table
    assert total is not None
    return total


@dataclass(eq=False)
class DynamicBayesianNetwork(Arguments):
    """A Bayesian network that is repeated in time: filtered, smoothed, predicted, and fitted.

    A slice has some variables; edges run within it, the same in every step, and from each step to
    the next. Data has a row for each step, those of several series end to end, with their lengths;
    None and NaN are missing entries, and variables without a column are hidden.

    Args:
        within: edges (parent, child) within a step.
        between: edges (parent, child) from a step to the next.
        states: for names of variables how many states they have, or what these are called; others
            have those of their column. Hidden variables need them.
        tables: for names of variables probabilities (*parents in the step before, *parents in the
            same step, states), parents in the order of their edges: where a fit starts.
        first: those of the first step, (*parents in the same step, states), of variables with
            parents in the step before; others have one table for all steps.
        prior: pseudo-counts that are added to the counts: a number, `BDeu`, or for names of
            variables a number.
        fixed: names of variables whose tables stay as they are given.
        tolerance: the gain of a step of EM, in nats for each series, below which a fit ends.
        limit: of EM's steps.
        starts: of EM; of several the best is taken.
        progress: called with a `Step` after every step of EM.

    Attributes:
        tables_: the fitted tables, by name.
        states_: the states of all variables, by name.
        first_: those of the first step.
        fit_: the `Fit`, with its history and status.

    Every answer is exact. A series of T steps whose interface has K configurations takes O(T K^2)
    time and memory, and for each step the elimination of a slice; where K is large, `unrolled`
    gives the network of all steps to `infer`, which finds an order of its own.

    Example:
        >>> weather = DynamicBayesianNetwork(
        ...     within=[("rain", "umbrella")], between=[("rain", "rain")],
        ...     states={"rain": ["no", "yes"], "umbrella": ["no", "yes"]},
        ...     first={"rain": [0.5, 0.5]},
        ...     tables={"rain": [[0.7, 0.3], [0.3, 0.7]], "umbrella": [[0.8, 0.2], [0.1, 0.9]]})
        >>> days = {"umbrella": ["yes", "yes"]}
        >>> weather.filter(days)["rain"]["yes"].round(3).tolist()
        [0.818, 0.883]
        >>> weather.smooth(days)["rain"]["yes"].round(3).tolist()
        [0.883, 0.883]
        >>> weather.predict(days, steps=1)["rain"]["yes"].round(3).tolist()
        [0.653]
    """

    within: Any = ()
    between: Any = ()
    _: KW_ONLY
    states: Mapping[str, Any] | None = None
    tables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prior: Any = 0.0
    fixed: Iterable[str] = ()
    tolerance: float = 1e-6
    limit: int = 200
    starts: int = 1
    progress: Callable[[Step], None] | None = None

    # ---- fitting ----

    @torch.inference_mode(mode=False)
    def fit(
        self, data: Any, y: Any = None, *, lengths: Any = None,
        generator: torch.Generator | None = None,
    ) -> Self:  # fmt: skip
        """Fit all tables to series, by expectation maximisation where entries are missing.

        Args:
            data: a DataFrame, or a mapping from names to columns; a row for each step.
            y: ignored; for pipelines.
            lengths: of the series; None: one series.
            generator: draws tables of hidden variables, and further starts; None: seed 0.

        Raises:
            ModelError: edges that form a cycle, a hidden variable without states, a table that does
                not fit, or that has lost all mass.
            EvidenceError: a state that was not declared, or lengths that do not add up.
            BudgetError: an interface of too many configurations.
            ImpossibleEvidenceError: a series that no configuration explains.
        """
        del y
        require_fields(self, tolerance="[0, inf]", limit="[0, inf)", starts="[1, inf)")
        slices = self._read(columns(data), self.states or {})
        # Series without steps say nothing.
        series = [each for each in self._series(slices, data, lengths) if len(each)]
        generator = generator or torch.Generator().manual_seed(0)
        parameters = {
            key: self._start(slices, key, name, series, generator, first=first)
            for key, name, first in slices.parameters()
        }
        held = {*self.fixed}
        if unknown := held - {*slices.variables}:
            raise ModelError(
                f"fixed names {min(unknown)!r}, which is no variable of the network; it has "
                f"{', '.join(slices.variables)}."
            )
        em = EM(
            partial(_chain, slices), parameters, tolerance=self.tolerance, limit=self.limit,
            starts=self.starts, progress=self.progress,
            fixed=[key for key, name, _ in slices.parameters() if name in held],
        )  # fmt: skip
        self.fit_: Fit = em.fit([rows for rows, _ in _batches(slices, series)], generator=generator)
        self.states_ = {name: variable.states for name, variable in slices.variables.items()}
        values = {key: p.value(None).exp() for key, p in self.fit_.parameters.items()}
        self.tables_ = {name: values[name] for name in slices.variables}
        self.first_ = {name: values[key] for key, name, first in slices.parameters() if first}
        return self

    def _read(self, given: Mapping[Any, Any], known: Mapping[str, Any]) -> _Slices:
        """The slices of the arguments, with states that are known, or those of columns."""
        # Parents within a slice (`above`) may form no cycle; those of the slice before (`before`)
        # may.
        nodes, within = edges_of(self.within)
        later, between = edges_of(self.between)
        named = [name for name in given if isinstance(name, str)]
        order = list(dict.fromkeys([*nodes, *later, *known, *named]))
        above = {name: [p for p, child in dict.fromkeys(within) if child == name] for name in order}
        refuse_cycle(above)
        before = {n: [p for p, child in dict.fromkeys(between) if child == n] for n in order}
        # States are those given, else those in the data.
        variables: dict[str, Variable] = {}
        for name in order:
            if name in known:
                variables[name] = Variable(name, known[name])
            elif name in given:
                variables[name] = Variable(name, states_in(name, given[name]))
            else:
                raise ModelError(
                    f"Variable {name!r} has no column and no states; if it is hidden, give "
                    f"states={{{name!r}: 2}}."
                )
        if not variables:
            raise ModelError("The network has no variables; give edges, or columns of data.")
        for which, tables in (("tables", self.tables), ("first", self.first)):
            if unknown := {*tables} - {*variables}:
                raise ModelError(
                    f"{which} name {min(unknown)!r}, which is no variable of the network; it has "
                    f"{', '.join(variables)}."
                )
        # Refuse a table that would not fit in memory before it is made.
        slices = _Slices(variables, before, above)
        for _, name, first in slices.parameters():
            require_table(
                f"The table of {name!r}", slices.sizes(name, first=first), "take parents away"
            )
        return slices

    def _start(
        self, slices: _Slices, key: str, name: str, series: Sequence[Tensor],
        generator: torch.Generator, *, first: bool,
    ) -> Probabilities:  # fmt: skip
        """A table as given, near the counts of complete families, or random."""
        sizes = slices.sizes(name, first=first)
        prior = self.prior.get(name, 0.0) if isinstance(self.prior, Mapping) else self.prior
        if isinstance(prior, BDeu):
            prior = prior.size / math.prod(sizes)
        prior = as_values(f"The prior of {name!r}", prior).double()
        given = self._given(slices, name, first=first)
        if given is not None:
            return Probabilities(given, prior=prior)
        if name in {*self.fixed}:
            raise ModelError(f"The table {key!r} is fixed and was not given.")
        uniform = Probabilities(torch.full(sizes, -math.log(sizes[-1])).double(), prior=prior)
        counts = _counted(slices, name, series, first=first)
        if not bool((counts > 0).any()):
            return uniform.drawn(generator)
        return Probabilities(uniform.maximised((counts + 1,)).log_values, prior=prior)

    def _given(self, slices: _Slices, name: str, *, first: bool) -> Tensor | None:
        """The log-table of an argument, checked."""
        tables = self.first if first else self.tables
        if first and not slices.before[name]:
            tables = self.tables
        if (given := tables.get(name)) is None:
            return None
        what, sizes = f"The table of {name!r}", slices.sizes(name, first=first)
        what += " at first" if first else ""
        table = torch.as_tensor(as_values(what, given)).double()
        if tuple(table.shape) != sizes or not is_conditional(table.numpy(), -1):
            raise ModelError(
                f"{what} needs probabilities of shape {sizes}, those of the step before first, "
                f"that sum to one over the last dim; got {tuple(table.shape)}."
            )
        return (table / table.sum(-1, keepdim=True)).log()

    # ---- what is known ----

    def _known(self, data: Any = None) -> tuple[_Slices, dict[str, Tensor]]:
        """The slices and log-tables, fitted or given."""
        fit = getattr(self, "fit_", None)
        if fit is not None:
            values = {key: p.value(None) for key, p in fit.parameters.items()}
            return self._read({}, self.states_), values
        # Columns that nothing names are told where the data is read.
        named = {*(self.states or ()), *edges_of(self.within)[0], *edges_of(self.between)[0]}
        given = {} if data is None else columns(data)
        given = {name: given[name] for name in given if name in named or not named}
        slices = self._read(given, self.states or {})
        values = dict[str, Tensor]()
        for key, name, first in slices.parameters():
            table = self._given(slices, name, first=first)
            if table is None:
                raise ModelError(
                    f"This DynamicBayesianNetwork is not fitted, and has no table of {key!r}: call "
                    "fit(data), or give all tables."
                )
            values[key] = table
        return slices, values

    @property
    def interface(self) -> tuple[str, ...]:
        """The variables that have a child in the next step: given these, the past says no more."""
        return self._known()[0].interface

    def _series(self, slices: _Slices, data: Any, lengths: Any) -> list[Tensor]:
        """Series (steps, variables) of states, NaN where missing."""
        count = count_rows(data)
        for name in columns(data):
            if name not in slices.variables:
                raise ModelError(
                    f"Column {name!r} is no variable of the network; drop it, or add it."
                )
        if not count:
            raise EvidenceError("The data has no rows; a fit needs one or more.")
        domain = Domain.of(slices.variables.values())
        states = states_given(data, domain).expand(count, -1).double()
        return sequences_of(states.masked_fill(states == MISSING, math.nan), lengths)

    def _each(
        self, data: Any, lengths: Any, ask: "Ask", more: int = 0
    ) -> tuple[_Slices, list[Tensor]]:  # fmt: skip
        """Answers of each series, cut to its length; with so many blank steps at its end."""
        slices, values = self._known(data)
        series = self._series(slices, data, lengths)
        if more:
            blank = torch.full((more, len(slices.variables)), math.nan, dtype=torch.float64)
            series = [torch.cat([each, blank]) for each in series]
        answers: list[Tensor] = [torch.empty(0)] * len(series)
        for rows, numbers in _batches(slices, series):
            for number, answer in zip(numbers, ask(rows, slices, values), strict=True):
                answers[number] = answer[: len(series[number])] if answer.ndim else answer
        return slices, answers

    # ---- answers ----

    def structure(self, data: Any, lengths: Any = None) -> Chain:
        """Return the `Chain` of the interfaces of all series, padded; log Z is their likelihood.

        Its states are the configurations of `interface`, the last variable changing first.
        """
        slices, values = self._known(data)
        return _chain(slices, values, as_rows(self._series(slices, data, lengths)))

    def log_likelihood(self, data: Any, lengths: Any = None) -> Tensor:
        """(series,) log-probabilities (nats) of what was observed; -inf where impossible."""

        def ask(rows: PaddedBatch, slices: _Slices, values: dict[str, Tensor]) -> Tensor:
            return _chain(slices, values, rows).log_partition()

        return torch.stack(self._each(data, lengths, ask)[1])

    def score(self, data: Any, y: Any = None, *, lengths: Any = None) -> float:
        """The log-likelihood of all series (nats)."""
        del y
        return float(self.log_likelihood(data, lengths).sum())

    def smooth(self, data: Any, lengths: Any = None) -> Any:
        """The probabilities of all variables at each step, given the whole series, as a DataFrame.

        Returns:
            A row for each step, and a column for each variable and state, (variable, state).

        Raises:
            ImpossibleEvidenceError: a series that no configuration explains.
        """
        return self._framed(data, *self._each(data, lengths, partial(_marginals, filtered=False)))

    def filter(self, data: Any, lengths: Any = None) -> Any:
        """The same given the series up to each step, that step included."""
        return self._framed(data, *self._each(data, lengths, partial(_marginals, filtered=True)))

    @typed(steps="[1, inf)")
    def predict(self, data: Any, lengths: Any = None, *, steps: int = 1) -> Any:
        """The probabilities of all variables in so many steps after the end of each series.

        Returns:
            As `smooth`; the rows are numbered by series and step, if there are several series.
        """
        ask = partial(_marginals, filtered=False)
        slices, answers = self._each(data, lengths, ask, more=steps)
        pandas = optional_module("pandas", "Prediction", "'rdpgraph[pandas]'")
        ahead = range(1, steps + 1)
        index = pandas.RangeIndex(1, steps + 1, name="step")
        if len(answers) > 1:
            pairs = [(number, step) for number in range(len(answers)) for step in ahead]
            index = pandas.MultiIndex.from_tuples(pairs, names=["series", "step"])
        return _frame(slices, [answer[-steps:] for answer in answers], index)

    def decode(self, data: Any, lengths: Any = None) -> Any:
        """The most probable states of all variables together, given each series, as a DataFrame.

        Raises:
            ImpossibleEvidenceError: a series that no configuration explains.
        """
        slices, answers = self._each(data, lengths, _modes)
        pandas = optional_module("pandas", "Decoding", "'rdpgraph[pandas]'")
        states, made = torch.cat(answers).numpy(), dict[str, Any]()
        for place, (name, variable) in enumerate(slices.variables.items()):
            labels = list(names_of(variable.states))
            made[name] = pandas.Categorical.from_codes(states[:, place], labels)
        return pandas.DataFrame(made, index=getattr(data, "index", None))

    def sample(self, steps: int, generator: torch.Generator | None = None) -> Any:
        """One series of so many steps, drawn from the network, as a DataFrame."""
        if not is_whole(steps):
            raise ModelError(f"sample needs a number of steps; got {steps!r:.80}.")
        pandas = optional_module("pandas", "Sampling", "'rdpgraph[pandas]'")
        slices, values = self._known()
        order = _ordered(slices.within)
        drawn: dict[str, list[int]] = {name: [] for name in slices.variables}
        for step in range(steps):
            for name in order:
                scope = slices.scope(name, first=not step)[:-1]
                at = tuple(drawn[parent][step - 1 + which] for parent, which in scope)
                row = values[slices.key(name, first=not step)][at].exp()
                drawn[name].append(int(torch.multinomial(row, 1, generator=generator)))
        made = {
            name: pandas.Categorical.from_codes(drawn[name], list(names_of(variable.states)))
            for name, variable in slices.variables.items()
        }
        return pandas.DataFrame(made)

    def unrolled(self, steps: int) -> FactorGraph:
        """The Bayesian network of so many steps, whose arrays have the names of the variables.

        For all other questions, and for interfaces of many configurations: ``infer`` eliminates its
        variables one by one. Evidence is ``{"rain[3]": "yes"}``, or of whole arrays.

        Raises:
            ModelError: fewer than one step.
        """
        if not is_whole(steps, 1):
            raise ModelError(f"unrolled needs steps, at least 1; got {steps!r:.80}.")
        slices, values = self._known()
        arrays = {n: VariableArray(n, (steps,), v.states) for n, v in slices.variables.items()}
        blocks: list[FactorBlock] = []
        for key, name, first in slices.parameters():
            varies = bool(slices.before[name])
            here = slice(0, 1) if first else slice(1 if varies else 0, steps)
            if here.start >= steps:
                continue
            back = slice(here.start - 1, steps - 1)
            scope = [
                arrays[parent][here if which else back]
                for parent, which in slices.scope(name, first=first)
            ]
            # The variable comes first, as of any Bayesian network.
            table = Table.from_logs(values[key].movedim(-1, 0))
            blocks.append(FactorBlock((scope[-1], *scope[:-1]), table))
        return FactorGraph(blocks, variables=tuple(arrays.values()))

    def _framed(self, data: Any, slices: _Slices, answers: list[Tensor]) -> Any:
        return _frame(slices, answers, getattr(data, "index", None))


def _frame(slices: _Slices, answers: Sequence[Tensor], index: Any) -> Any:
    """Probabilities (steps, states of all variables) as a DataFrame."""
    pandas = optional_module("pandas", "Inference", "'rdpgraph[pandas]'")
    pairs = [(v.name, state) for v in slices.variables.values() for state in names_of(v.states)]
    labels = pandas.MultiIndex.from_tuples(pairs, names=["variable", "state"])
    return pandas.DataFrame(torch.cat(list(answers)).numpy(), index, labels)


def _batches(slices: _Slices, series: Sequence[Tensor]) -> Iterator[tuple[PaddedBatch, list[int]]]:
    longest, states = max(map(len, series)), slices.states
    require_table(
        f"The transitions of {longest:,} steps between interfaces of {states:,} configurations "
        f"({', '.join(slices.interface)})", (longest, states, states),
        "ask infer(network.unrolled(steps)), which eliminates variables one by one",
        each=24.0,
    )  # fmt: skip
    return batches_of(series, states**2, _CELLS)


def _evidence(slices: _Slices, rows: PaddedBatch) -> dict[str, Tensor]:
    """(B, T, states) 0 for states that a step may have, -inf for others, of each variable."""
    made: dict[str, Tensor] = {}
    for place, (name, variable) in enumerate(slices.variables.items()):
        seen = rows["observed"][..., place, None]
        here = seen.isnan() | (seen == torch.arange(variable.size, dtype=seen.dtype))
        made[name] = torch.where(here, 0.0, -math.inf).double()
    return made


def _chain(
    slices: _Slices, values: Mapping[str, Tensor], rows: PaddedBatch,
    unary: Mapping[str, Tensor] | None = None, temperature: float = 1.0,
) -> Chain:  # fmt: skip
    """The chain of interfaces, given log-values (B, T, states) of each variable."""
    given = _evidence(slices, rows) if unary is None else unary
    batch, steps = rows["observed"].shape[:2]
    kept, states = slices.interface, slices.states
    if not steps:  # a batch of series without steps
        nothing = torch.zeros(batch, 0, states, dtype=torch.float64)
        return Chain(nothing, nothing.new_zeros(states, states), lengths=rows["lengths"])

    def summed(*, first: bool) -> Tensor:
        # Every step of every series is one slice.
        here = slice(0, 1) if first else slice(1, None)
        seen: list[Scoped] = [
            (((name, 1),), part[:, here].flatten(0, 1)) for name, part in given.items()
        ]
        nodes = [*(() if first else ((name, 0) for name in kept)), *((name, 1) for name in kept)]
        made = eliminate([*slices.tables(values, first=first), *seen], nodes, temperature)
        return made.expand(batch * (1 if first else steps - 1), *made.shape[1:])

    begun = summed(first=True).reshape(batch, 1, states)
    later = begun.new_zeros(batch, steps - 1, states)
    if steps == 1:
        transition = begun.new_zeros(batch, 0, states, states)
    else:
        transition = summed(first=False).reshape(batch, steps - 1, states, states)
    return Chain(torch.cat([begun, later], 1), transition, lengths=rows["lengths"])


def _marginals(
    rows: PaddedBatch, slices: _Slices, values: dict[str, Tensor], *, filtered: bool
) -> Tensor:
    """(B, T, states of all variables) probabilities, as gradients in log-values of each."""
    evidence = _evidence(slices, rows)
    if not rows["observed"].shape[1]:
        return torch.cat(list(evidence.values()), 2)
    with torch.enable_grad():
        leaves = {n: torch.zeros_like(part).requires_grad_() for n, part in evidence.items()}
        unary = {name: leaves[name] + part for name, part in evidence.items()}
        chain = _chain(slices, values, rows, unary)
        total = chain.log_partition()
        _refuse_impossible(total.detach(), rows)
        if filtered:
            # A slice given the past: log p(x_t | past) up to a constant, of every step by itself.
            past = chain.filtered().detach()[:, :-1].log().unsqueeze(3)
            begun = soft_sum(chain.unary[:, 0], 1)
            each = soft_sum((past + chain.transition).flatten(2), 2)  # pyright: ignore
            within = torch.arange(1, 1 + each.shape[1]) < rows["lengths"].unsqueeze(1)
            total = begun + torch.where(within, each, 0.0).sum(1)
        found = torch.autograd.grad(total.sum(), list(leaves.values()))
    return torch.cat(found, 2)


def _modes(rows: PaddedBatch, slices: _Slices, values: dict[str, Tensor]) -> Tensor:
    """(B, T, variables) the states of a most probable configuration."""
    if not rows["observed"].shape[1]:
        return rows["observed"].long()
    chain = _chain(slices, values, rows, temperature=0.0)
    _refuse_impossible(chain.max_marginals()[:, 0].amax(1), rows)
    place, observed = chain.mode().clamp(min=0), rows["observed"]
    states = observed.nan_to_num(nan=MISSING).long()
    names = [*slices.variables]
    # The configuration of an interface as states of its variables, the last one changing first.
    for name in reversed(slices.interface):
        size = slices.variables[name].size
        states[..., names.index(name)] = place % size
        place = place // size
    # The others, given the interfaces before and here, are independent of all other steps.
    within = torch.arange(observed.shape[1]) < rows["lengths"].unsqueeze(1)
    for first in (True, False):
        here = within.clone()
        here[:, 1 if first else 0 : None if first else 1] = False
        if not bool(here.any()):
            continue
        nodes = {(name, 1): variable for name, variable in slices.variables.items()}
        before = () if first else slices.interface
        nodes |= {(n, 0): Variable(f"{n} before", slices.variables[n].states) for n in before}
        factors = [
            Factor([nodes[node] for node in scope], Table.from_logs(table.squeeze(0)))
            for scope, table in slices.tables(values, first=first)
        ]
        graph = FactorGraph(factors, variables=tuple(nodes.values()))
        given = {
            variable: states[here][:, names.index(n)]
            for (n, which), variable in nodes.items()
            if which
        }
        earlier = states.roll(1, 1)[here]
        given |= {nodes[n, 0]: earlier[:, names.index(n)] for n in before}
        if not bool((states[here] == MISSING).any()):
            continue
        best = infer(graph, evidence=given).mode()
        states[here] = torch.stack([best[nodes[name, 1]] for name in names], 1)
    return states


def _refuse_impossible(total: Tensor, rows: PaddedBatch) -> None:
    dead = ((total == -math.inf) & (rows["lengths"] > 0)).nonzero()
    if len(dead):
        row = int(rows["places"][int(dead[0]), 0])
        raise ImpossibleEvidenceError(
            f"No configuration explains the series from row {row} on: its probability is zero. "
            "Check its values, or fit with a prior."
        )


def _counted(slices: _Slices, name: str, series: Sequence[Tensor], *, first: bool) -> Tensor:
    """(*parents, states) how often complete families occur in series."""
    sizes, names = slices.sizes(name, first=first), [*slices.variables]
    counts = torch.zeros(math.prod(sizes), dtype=torch.float64)
    apart = first or bool(slices.before[name])
    for each in series:
        here = each[:1] if first else each[1:] if apart else each
        before = each[: len(here)]
        parts = [
            (here if which else before)[:, names.index(parent)]
            for parent, which in slices.scope(name, first=first)
        ]
        family = torch.stack(parts, 1)
        family = family[~family.isnan().any(1)].long()
        flat = torch.zeros(len(family), dtype=torch.long)
        for column, size in zip(family.T, sizes, strict=True):
            flat = flat * size + column
        counts += flat.bincount(minlength=len(counts)).double()
    return counts.reshape(sizes)


def _ordered(above: Mapping[str, Sequence[str]]) -> list[str]:
    """Names, parents before their children."""
    order: list[str] = []
    while len(order) < len(above):
        order += [n for n, p in above.items() if n not in order and {*p} <= {*order}]
    return order
