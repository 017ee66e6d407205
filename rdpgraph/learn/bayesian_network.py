"""Bayesian networks as estimators: fitted to tables with gaps, asked by `infer`."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.portable import Arguments, optional_module
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.infer import infer
from rdpgraph.io.tables import all_variables
from rdpgraph.learn.em import EM, Fit, Step
from rdpgraph.learn.families import (
    Distinct,
    Families,
    columns,
    distinct_rows,
    edges_of,
    read_rows,
)
from rdpgraph.learn.gradient import standard_errors
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, names_of
from rdpgraph.schedulers.scheduler import Scheduler


@dataclass(eq=False)
class BayesianNetwork(Arguments):
    """A Bayesian network that is fitted to data; then ``graph_`` is a `FactorGraph` like any other.

    Its conventions are those of scikit-learn: `get_params`, `set_params` and `clone`; what `fit`
    finds has names with a trailing underscore. Rows without gaps are counted. Others, and variables
    that have no column, are fitted by `EM`: no row is discarded.

    Args:
        structure: edges as pairs (parent, child) of names; a `networkx.DiGraph`; or a `FactorGraph`
            that is a Bayesian network, whose variables are taken, and whose tables are the start.
            Without any edges or nodes, as ``[]``, the columns are independent variables.
        states: for names of variables how many states they have, or what these are called; others
            have those of their column. Hidden variables need them. Names that are in no
            edge are variables without one.
        prior: pseudo-counts that are added to the counts: a number for all entries (1 is Laplace's
            rule), `BDeu`, or for names of variables a number or a table (*parents, states).
        fixed: names of variables whose tables of a given graph stay, or for such names tables of
            probabilities (*parents, states).
        noisy: names of variables with a noisy-MAX table, which is noisy-OR where there are two
            states: each parent causes a state independently, and the last of these is observed. The
            first state of a parent is its absence; a leak stands for all other causes. Priors
            and fixed tables are those of the causes, as in `NoisyMax`.
        tolerance: as for `EM`; so are limit, starts and progress.
        limit: of EM's steps.
        starts: of EM; of several the best is taken.
        batch_size: rows whose log Z is computed together; None: 4096.
        scheduler: as for `infer`, of rows with gaps.
        progress: called with a `Step` after every step of EM.

    Attributes:
        graph_: the fitted network.
        fit_: the `Fit`, with its history and status.
        free_parameters_: the number of probabilities that are chosen.

    Example:
        >>> rows = {"rain": ["no", "yes", "no", None], "wet": ["no", "yes", None, "yes"]}
        >>> network = BayesianNetwork([("rain", "wet")], prior=1.0).fit(rows)
        >>> network.graph_.cpt("rain")
        tensor([0.5730, 0.4270], dtype=torch.float64)
        >>> rain = network.graph_.condition({"wet": "yes"})
    """

    structure: Any
    _: KW_ONLY
    states: Mapping[str, Any] | None = None
    prior: Any = 0.0
    fixed: Any = ()
    noisy: Iterable[str] = ()
    tolerance: float = 1e-6
    limit: int = 200
    starts: int = 1
    batch_size: int | None = None
    scheduler: Scheduler | None = None
    progress: Callable[[Step], None] | None = None

    @torch.inference_mode(mode=False)
    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        weights: Any = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Fit all tables.

        Args:
            data: a DataFrame, or a mapping from names to columns. None and NaN are missing, and so
                is -1 where no state is called so: in a tensor silently, else with a warning.
            y: ignored; for pipelines.
            weights: of the rows; None: one each.
            generator: draws tables next to hidden variables, and further starts; None: seed 0.

        Raises:
            ModelError: a column that is no variable, a hidden variable without states, edges that
                form a cycle, or a table that has lost all mass.
            EvidenceError: a state that was not declared.
            BudgetError: tables that would not fit into the memory; it names the largest one.
            ImpossibleEvidenceError: a row that no configuration explains; the message names it.
        """
        del y
        require_fields(self, tolerance="[0, inf]", limit="[0, inf)", starts="[1, inf)")
        # The network, checked against the data; equal rows count once, with their weights added.
        families = Families.read(self.structure, self.states or {}, columns(data), self.noisy)
        named = {*self.fixed, *(self.prior if isinstance(self.prior, Mapping) else ())}
        if unknown := (named | families.noisy) - set(families.scopes):
            raise ModelError(
                f"Fixed or noisy tables or priors name {min(unknown)!r}, which is no variable of "
                f"{', '.join(families.scopes)}."
            )
        rows = distinct_rows(data, families.domain, weights)
        generator = generator or torch.Generator().manual_seed(0)
        # EM from the initial table of each variable.
        parameters = {
            name: families.start(name, rows, self.prior, self.fixed, generator)
            for name in families.scopes
        }
        em = EM(
            families.model, parameters, tolerance=self.tolerance, limit=self.limit,
            batch_size=self.batch_size, starts=self.starts, scheduler=self.scheduler,
            progress=self.progress,
        )  # fmt: skip
        batches, masses = families.batches(rows, self.batch_size or tuning.LEARNED_ROWS)
        try:
            self.fit_: Fit = em.fit(batches, masses, generator=generator)
        # EM knows that a row is impossible, but not which of the data it came from; find it under
        # the initial tables, so that the message names it.
        except ImpossibleEvidenceError:
            graph = families.graph({name: p.value(None) for name, p in parameters.items()})
            for part, values in self._answers(data, self._log_partition, graph):
                _refuse_dead(part, values == -math.inf)
            raise
        # What scikit-learn expects of a fitted estimator has an underscore at its end.
        tables = {name: p.value(None) for name, p in self.fit_.parameters.items()}
        self.graph_: FactorGraph = families.graph(tables)
        self.free_parameters_: int = sum(p.size for p in parameters.values())
        self.feature_names_in_ = np.array(list(columns(data)), object)
        self.n_features_in_ = len(self.feature_names_in_)
        return self

    @property
    def _graph(self) -> FactorGraph:
        if not hasattr(self, "graph_"):
            raise ModelError("This BayesianNetwork is not fitted; call fit(data) first.")
        return self.graph_

    def _log_partition(self, graph: FactorGraph) -> Tensor:
        return infer(graph, self.scheduler).log_partition

    def _answers(
        self, data: Any, ask: Callable[[FactorGraph], Tensor], graph: FactorGraph | None = None
    ) -> Iterator[tuple[Distinct, Tensor]]:
        """Distinct rows, chunk by chunk, with an answer for each."""
        graph = graph or self._graph
        for part in read_rows(data, graph.domain):
            with torch.no_grad():
                answers = [
                    ask(FactorGraph.from_blocks(graph.domain, graph.blocks, states.long()))
                    for states in part.states.split(self.batch_size or tuning.LEARNED_ROWS)
                ]
            yield part, torch.cat(answers)

    def _targets(self, data: Any, targets: Any) -> list[Variable]:
        graph, given = self._graph, columns(data)
        if targets is None:
            names = [v.name for v in all_variables(graph) if v.name not in given]
            if not names:
                parts = torch.cat([part.states for part in read_rows(data, graph.domain)])
                gaps = (parts == MISSING).any(0)
                names = [graph.domain.variable(int(n)).name for n in gaps.nonzero()]
        else:
            names = [targets] if isinstance(targets, str | Variable) else list(targets)
        return [graph.domain.variable(graph.domain.number(name)) for name in names]

    def predict_proba(self, data: Any, targets: Any = None) -> Any:
        """The probabilities of variables in each row, given what the row has, as a DataFrame.

        Args:
            data: as for `fit`; columns may lack, and entries be missing.
            targets: a name or a `Variable`, or several; None: the variables that have no column, or
                if all have one, those with gaps. A target that a row has is certain there.

        Returns:
            A column for each target and state, (target, state).

        Raises:
            ImpossibleEvidenceError: a row that no configuration explains.
        """
        pandas = optional_module("pandas", "Prediction", "'rdpgraph[pandas]'")
        wanted = self._targets(data, targets)
        parts = [np.zeros((0, sum(v.size for v in wanted)))]

        def ask(graph: FactorGraph) -> Tensor:
            answer = infer(graph, self.scheduler)
            dead = answer.log_partition == -math.inf
            if bool(dead.any()):
                return torch.where(dead, math.nan, 0.0)[:, None].expand(-1, parts[0].shape[1])
            return torch.cat([answer.marginal(v.name).double() for v in wanted], -1)

        if not wanted:
            raise ModelError(
                "There is nothing to predict: no variable lacks a value; name targets."
            )
        for part, answers in self._answers(data, ask):
            _refuse_dead(part, answers[:, 0].isnan())
            parts.append(answers.numpy()[part.inverse])
        pairs = [(v.name, state) for v in wanted for state in names_of(v.states)]
        labels = pandas.MultiIndex.from_tuples(pairs, names=["variable", "state"])
        return pandas.DataFrame(np.concatenate(parts), getattr(data, "index", None), labels)

    def predict(self, data: Any, targets: Any = None) -> Any:
        """The most probable state of each target in each row, as a DataFrame.

        Each by itself; the most probable configuration of all is ``infer(...).mode()``.

        Args:
            data: as for `predict_proba`.
            targets: as for `predict_proba`.
        """
        pandas = optional_module("pandas", "Prediction", "'rdpgraph[pandas]'")
        wanted = self._targets(data, targets)
        values = self.predict_proba(data, [variable.name for variable in wanted])
        result: dict[str, Any] = {}
        for variable in wanted:
            best = values[variable.name].to_numpy().argmax(1)
            names = names_of(variable.states)
            result[variable.name] = pandas.Categorical.from_codes(best, list(names))
        return pandas.DataFrame(result, index=values.index)

    def log_likelihood(self, data: Any) -> Tensor:
        """(rows,) log-probabilities of what each row has (nats); -inf where that is impossible."""
        parts = [
            values[torch.from_numpy(part.inverse)]
            for part, values in self._answers(data, self._log_partition)
        ]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])

    def score(self, data: Any, y: Any = None) -> float:
        """The mean log-likelihood of the rows (nats)."""
        del y
        return float(self.log_likelihood(data).mean())

    @torch.inference_mode(mode=False)
    def standard_errors(self, data: Any, *, weights: Any = None) -> dict[str, Tensor]:
        """Standard errors of all tables, (*parents, states), by the observed information of data.

        Infinite where the data does not determine a probability. It takes a backward pass for each
        free parameter.

        Args:
            data: the data of the fit.
            weights: of the rows; None: one each.

        Raises:
            ModelError: the fit is not at a maximum.
        """
        families = Families.read(self._graph, {}, {})
        rows = distinct_rows(data, families.domain, weights)
        batches, masses = families.batches(rows, self.batch_size or tuning.LEARNED_ROWS)
        em = EM(families.model, self.fit_.parameters, scheduler=self.scheduler)
        errors = standard_errors(em, self.fit_, batches, masses)
        return {name: error for name, (error,) in errors.items()}

    def aic(self, data: Any) -> float:
        """Return Akaike's criterion, 2 k - 2 log-likelihood (nats); smaller is better.

        k is the number of free parameters.
        """
        values = self.log_likelihood(data)
        return 2 * self.free_parameters_ - 2 * float(values.sum())

    def bic(self, data: Any) -> float:
        """The criterion of Schwarz: less is better."""
        values = self.log_likelihood(data)
        if not len(values):
            raise EvidenceError("bic needs the rows that were fitted; the data has none.")
        return self.free_parameters_ * math.log(len(values)) - 2 * float(values.sum())

    def sample(self, count: int, generator: torch.Generator | None = None) -> Any:
        """Independent draws as a DataFrame."""
        return infer(self._graph).sample(count, generator).to_frame()

    def do(self, **settings: Any) -> FactorGraph:
        """The graph after interventions: variables set, and their parents without effect on them.

        Args:
            settings: for names of variables a state.

        Example:
            >>> rows = {"rain": [0, 0, 1, 1], "wet": [0, 1, 1, 1]}
            >>> network = BayesianNetwork([("rain", "wet")]).fit(rows)
            >>> import rdpgraph as rg
            >>> rg.infer(network.do(wet=1)).marginal("rain")
            tensor([0.5000, 0.5000], dtype=torch.float64)
        """
        return self._graph.do(settings)

    def adjustment_set(self, cause: str, effect: str) -> set[str]:
        """A minimal set of variables to adjust for in the effect of one variable on another.

        Given these, an effect in rows as they are seen is that of `do` (Pearl's back-door
        criterion): their sum, weighted by their probability. Only variables that had a column
        in `fit` are taken. Raises `ModelError` where there is no such set.

        Example:
            >>> network = BayesianNetwork([("age", "drug"), ("age", "health"), ("drug", "health")])
            >>> network.adjustment_set("drug", "health")
            {'age'}
        """
        import networkx

        graph = self._holding([cause, effect])
        if cause == effect:
            raise ModelError(f"adjustment_set takes two variables; got {cause!r} twice.")
        known = set(getattr(self, "feature_names_in_", graph)) - {cause, effect}
        known -= networkx.descendants(graph, cause)
        graph.remove_edges_from(list(graph.out_edges(cause)))
        chosen = networkx.find_minimal_d_separator(graph, cause, effect, restricted=known)
        if chosen is None:
            raise ModelError(
                f"No set of observed variables blocks every path into {cause!r} from {effect!r}: "
                f"the effect of {cause!r} cannot be found by adjustment."
            )
        return chosen

    def to_networkx(self) -> Any:
        """The network as a `networkx.DiGraph` of names, for questions about its paths."""
        import networkx

        result: Any = networkx.DiGraph()
        nodes, edges = edges_of(getattr(self, "graph_", self.structure))
        result.add_nodes_from([*nodes, *(self.states or {})])
        result.add_edges_from(edges)
        return result

    def _holding(self, names: Iterable[str]) -> Any:
        """The network for networkx; refuses names that it does not hold."""
        graph = self.to_networkx()
        if unknown := set(names) - set(graph):
            raise ModelError(f"{min(unknown)!r} is no variable of {', '.join(graph)}.")
        return graph

    def d_separated(self, one: Any, other: Any, given: Iterable[str] = ()) -> bool:
        """Return whether the edges say that variables are independent given others.

        Args:
            one: a name, or several.
            other: a name, or several.
            given: names.
        """
        import networkx

        first, second = (
            {names} if isinstance(names, str) else set(names) for names in (one, other)
        )
        given = {*given}
        if shared := first & second | (first | second) & given:
            raise ModelError(f"d_separated takes a variable once; got {min(shared)!r} twice.")
        graph = self._holding(first | second | given)
        return bool(networkx.is_d_separator(graph, first, second, given))

    def markov_blanket(self, name: str) -> set[str]:
        """The parents, children and co-parents of a variable, which separate it from all others."""
        graph = self._holding([name])
        near = {*graph.predecessors(name), *graph.successors(name)}
        return near.union(*map(graph.predecessors, graph.successors(name))) - {name}


def _refuse_dead(part: Distinct, dead: Tensor) -> None:
    if bool(dead.any()):
        row = int(part.first[dead.numpy()].min())
        raise ImpossibleEvidenceError(
            f"No configuration explains row {row} of the data: its probability is zero. Check its "
            "values, or fit with a prior."
        )
