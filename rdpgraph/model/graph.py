"""The factor graph, which users declare and engines read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, ordinarily
from rdpgraph._core.compiler import Opaque
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import ModelError
from rdpgraph.model.block import (
    MOST_PICTURED,
    Block,
    blocks_of,
    described,
    items_in_order,
    log_values_at,
    moved_blocks,
    outliving,
    pictured,
    tabulated,
)
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.evidence import (
    MISSING,
    checked_states,
    named_states,
    states_given,
    with_earlier,
)
from rdpgraph.model.factor import Factor, FactorBlock, listed
from rdpgraph.model.frames import Labels
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import Support, restrict_blocks
from rdpgraph.model.variable import Variable, VariableArray

if TYPE_CHECKING:
    from pandas import DataFrame, Series  # pyright: ignore

    from rdpgraph.model.conditional import Conditional, ConditionalTables

    Evidence = Mapping[Any, Any] | Sequence[Mapping[Any, Any]] | DataFrame | Series


@dataclass(frozen=True, eq=False, repr=False, init=False)
class FactorGraph(Opaque):
    """A discrete graphical model: p(x) is proportional to the exponential of the summed log-values.

    Frozen; `condition`, `with_factors` and `restrict` return new graphs that share the tables.
    Directed models are the special case in which each factor is a conditional table.

    Args:
        factors: `Factor` and `FactorBlock` objects; alike ones are grouped.
        variables: further variables, or an order for all of them; those that no factor holds are
            uniform.

    Raises:
        ModelError: two different variables of one name, or batch dims that do not broadcast.

    Example:
        >>> rain, wet = Variable("rain", ("no", "yes")), Variable("wet", 2)
        >>> FactorGraph([
        ...     Factor((rain,), Table(torch.tensor([0.8, 0.2]).log())),
        ...     Factor((rain, wet), Table(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log())),
        ... ])
        FactorGraph of 2 variables and 2 factors
          variables: rain (no, yes); wet (2 states)
          factors: 1 of shape (2,); 1 of shape (2, 2)
    """

    domain: Domain
    blocks: tuple[Block, ...]
    observed: Tensor | None
    batch_shape: tuple[int, ...]
    labels: Labels | None

    def __init__(
        self,
        factors: Iterable[Factor | FactorBlock],
        variables: Iterable[Variable | VariableArray] = (),
    ) -> None:
        items = listed("FactorGraph's factors", factors)
        for item in items:
            if not isinstance(item, Factor | FactorBlock):
                raise ModelError(
                    f"FactorGraph needs Factors and FactorBlocks; got {type(item).__name__}."
                )
        extra = listed("FactorGraph's variables", variables)
        for item in extra:
            if not isinstance(item, Variable | VariableArray):
                raise ModelError(
                    "FactorGraph's variables must be Variables and arrays of them; got "
                    f"{type(item).__name__}."
                )
        domain = Domain.of([*extra, *items_in_order(items)])
        self._set(domain, blocks_of(items, domain), None)

    def _set(
        self,
        domain: Domain,
        blocks: tuple[Block, ...],
        observed: Tensor | None,
        labels: Labels | None = None,
    ) -> None:
        if torch.is_inference_mode_enabled():
            blocks, observed = ordinarily(outliving, blocks, observed)
        shapes = [block.batch_shape for block in blocks]
        if observed is not None:
            shapes.append(tuple(observed.shape[:-1]))
        try:
            batch = broadcast_shapes(*shapes) if any(shapes) else ()
        except RuntimeError:
            raise ModelError(
                f"Batch dims must broadcast; factors and evidence have {sorted(set(shapes))}."
            ) from None
        fields = {"domain": domain, "blocks": blocks, "observed": observed, "labels": labels}
        vars(self).update(fields, batch_shape=batch)

    @classmethod
    def from_blocks(
        cls, domain: Domain, blocks: Iterable[Block], observed: Tensor | None = None,
        labels: Labels | None = None,
    ) -> Self:  # fmt: skip
        """A graph of numbered blocks."""
        graph = cls.__new__(cls)
        graph._set(domain, tuple(blocks), observed, labels)
        return graph

    @classmethod
    def bayesian_network(
        cls, conditionals: "Iterable[Conditional]", *, tolerance: float = 1e-4
    ) -> Self:
        """The graph of a Bayesian network, its tables checked; its factors are over (x, *parents).

        Args:
            conditionals: for each variable a triple: the variable, its parents, and probabilities
                of shape (*batch, *parents, states of the variable), as a tensor, array or lists.
            tolerance: how far from one each sum may be; the tables are taken as they are.

        Raises:
            ModelError: probabilities that do not sum to one (the message names the variable and its
                parents' states), two tables of a variable, none of a parent, or a directed cycle.

        Example:
            >>> rain, wet = Variable("rain", ("no", "yes")), Variable("wet", 2)
            >>> FactorGraph.bayesian_network([
            ...     (rain, (), [0.8, 0.2]), (wet, (rain,), [[0.9, 0.1], [0.2, 0.7]])
            ... ])
            Traceback (most recent call last):
            ...
            rdpgraph.errors.ModelError: The probabilities of 'wet' given rain=yes sum to 0.9, ...
        """
        items = list(conditionals)
        from rdpgraph.model.conditional import network_factors

        return cls(network_factors(items, tolerance), [child for child, _, _ in items])

    @property
    def variables(self) -> Sequence[Entry]:
        """The variables and arrays, in order of declaration; equal to a tuple of them.

        A tuple, unless a file has many, whose objects are then made when they are asked for.
        """
        return self.domain.entries

    def __contains__(self, item: object) -> bool:
        """Test if the graph has a variable, an array, or one of that name."""
        return self.domain.holds(item)

    def __getitem__(self, item: Named) -> Entry:
        """The variable or the array of a name; a member of an array as ``graph["pixel[0, 1]"]``.

        Raises:
            UnknownVariableError: there is none of that name.
        """
        numbers = self.domain.numbers(item)
        if not numbers.ndim:
            return self.domain.variable(int(numbers))
        entry = self.domain.entries[self.domain.place(item)]
        return entry if isinstance(item, str) or numbers.shape == entry.shape else item

    # Without this, iteration would call __getitem__ with 0, 1, ....
    __iter__ = None

    @property
    def num_variables(self) -> int:
        """The number of variables, members of arrays included."""
        return self.domain.count

    @property
    def num_factors(self) -> int:
        """The number of factors."""
        return sum([block.count for block in self.blocks])

    @cached_property
    def dtype(self) -> torch.dtype:
        """The widest floating type among the potentials, at least float32: that of all answers."""
        types = {block.potential.dtype for block in self.blocks}
        if not types:
            return torch.get_default_dtype()
        return reduce(torch.promote_types, types, torch.float32)

    @cached_property
    def device(self) -> torch.device:
        """The device of the potentials.

        Raises:
            ModelError: they are on different devices.
        """
        devices = {block.potential.device for block in self.blocks}
        if len(devices) > 1:
            raise ModelError(
                f"Potentials live on different devices: {sorted(map(str, devices))}; move their "
                "tensors to one of them."
            )
        return devices.pop() if devices else torch.device("cpu")

    def condition(self, evidence: "Evidence", *, ignore_unknown: bool = False) -> "FactorGraph":
        """The graph with some variables observed; log Z becomes the evidence's log-mass.

        Args:
            evidence: from variables (or names) to states, or to batches of them: tensors, lists or
                arrays; for an array of variables (*batch, *shape). A state is given by its name; by
                index where states have no names. Tensors of whole numbers hold indices, whatever
                the names. A list of such mappings is a batch of rows, as is a pandas DataFrame,
                whose index and columns come back in the frames of answers; a Series is one row.
                Missing entries are None or NaN, and -1 in tensors and arrays of indices. A -1 that
                no state is called is refused as the one state of a variable, and is missing, with a
                warning, in pandas and among names. Soft evidence is a unary factor: `with_factors`.
            ignore_unknown: leave out keys and columns that are no variables of the graph.

        Raises:
            EvidenceError: a state that the variable lacks, a value with two readings, a shape or
                an index that does not fit, or another state of a variable that is observed already.
            ModelError: an unknown variable.
        """
        states = states_given(evidence, self.domain, ignore_unknown=ignore_unknown)
        states = with_earlier(self.observed, states, self.domain, evidence)
        labels = Labels.of(evidence, self.labels)
        return FactorGraph.from_blocks(self.domain, self.blocks, states, labels)

    def retract(self, *variables: Named) -> "FactorGraph":
        """The graph without the evidence on some variables; without any, if none is named.

        Without evidence left, its batch dims are gone too.

        Args:
            variables: variables, arrays or views of them, or names.

        Raises:
            ModelError: an unknown variable.
        """
        taken = [self.domain.numbers(item).reshape(-1) for item in variables]
        if self.observed is None or not taken:
            return FactorGraph.from_blocks(self.domain, self.blocks)
        observed = self.observed.clone()
        observed[..., torch.cat(taken)] = MISSING
        left = observed if bool((observed != MISSING).any()) else None
        return FactorGraph.from_blocks(self.domain, self.blocks, left, self.labels)

    def with_factors(self, *factors: Factor | FactorBlock) -> "FactorGraph":
        """The graph with more factors, and the variables that only they hold."""
        more = FactorGraph(factors, variables=self.variables)
        observed = self.observed
        if observed is not None:
            observed = torch.nn.functional.pad(
                observed, (0, more.num_variables - self.num_variables), value=MISSING
            )
        added = (replace(b, declared=b.declared + self.num_factors) for b in more.blocks)
        return FactorGraph.from_blocks(more.domain, (*self.blocks, *added), observed, self.labels)

    def restrict(self, supports: Mapping[Any, Support]) -> "FactorGraph":
        """The graph on a few states of each variable, their log-weights as unary factors.

        Potentials are evaluated on the selected states only. A variable without a support keeps all
        of its states, and one observed in every row that state. Gradients flow through the
        potentials, and not through the selection.

        Args:
            supports: (*lead, *shape, kept) for a variable or an array; the dims in front broadcast
                against the batch dims.

        Raises:
            ModelError: a support names a state out of range, or is of the wrong shape.
            EvidenceError: a variable is observed in some rows only; restrict first, then condition.
        """
        like = torch.zeros((), dtype=self.dtype, device=self.device)
        domain, blocks = restrict_blocks(
            self.domain, self.blocks, self.observed, supports, like=like, batch=self.batch_shape
        )
        return FactorGraph.from_blocks(domain, blocks)

    def score(self, assignment: "Evidence", *, ignore_unknown: bool = False) -> Tensor:
        """Return the summed log-values of complete assignments (nats, not normalised).

        It is differentiable.

        Args:
            assignment: as for `condition`, in every variable that is not observed. Leading dims
                broadcast against the batch dims, so that n samples of shape (n, *batch) score
                as (n, *batch).
            ignore_unknown: leave out keys and columns that are no variables of the graph.

        Returns:
            (*batch,); -inf where a configuration is impossible or contradicts the evidence.

        Raises:
            EvidenceError: a variable has no state.
        """
        return self._score(states_given(assignment, self.domain, ignore_unknown=ignore_unknown))

    def violations(self, assignment: "Evidence") -> Tensor:
        """The number of violations by complete assignments: 0 where `score` is finite.

        Arguments, shape and errors are those of `score`.

        Returns:
            (*batch,) int64: the number of factors that are -inf, plus that of variables observed in
            another state.
        """
        clash, values, lead = self._read(states_given(assignment, self.domain))
        count = clash.sum(-1)
        for each in values:
            count = count + (each == -math.inf).sum(-1)
        return count.expand(lead)

    def score_states(self, states: Tensor) -> Tensor:
        """The score of states (*lead, V) by the numbers of the variables, -1 where there is none.

        Raises:
            EvidenceError: another shape or type, or a variable without a state.
        """
        return self._score(checked_states(states, self.domain))

    def _score(self, states: Tensor) -> Tensor:
        clash, values, lead = self._read(states)
        total = torch.where(clash.any(-1), -math.inf, 0.0).to(dtype=self.dtype)
        for each in values:
            total = total + each.sum(-1, dtype=self.dtype)
        return total.expand(lead)

    def _read(self, states: Tensor) -> tuple[Tensor, Iterator[Tensor], tuple[int, ...]]:
        clash, values, lead = log_values_at(
            states, self.domain, self.blocks, self.observed, self.device
        )
        return clash, values, broadcast_shapes(lead, self.batch_shape)

    def state_names(self, assignment: Mapping[Any, Any]) -> dict[str, Any]:
        """The names of the states of an assignment, by the name of each variable or array.

        Nested lists where there are several states (draws, batch, arrays), None where one is
        missing, and the index where states have no names. `condition` and `score` accept it.

        Args:
            assignment: as for `condition`, such as ``posterior.mode()``.

        Raises:
            EvidenceError: a state that the variable lacks.
            ModelError: an unknown variable.
        """
        return named_states(assignment, self.domain)

    def factors(self) -> Iterator[Factor]:
        """Every factor with a separate table, in order of declaration."""
        for scope, table in tabulated(self.blocks):
            yield Factor(tuple(map(self.domain.variable, scope)), Table.from_logs(table))

    @cached_property
    def _network(self) -> "ConditionalTables":
        from rdpgraph.model.conditional import ConditionalTables

        return ConditionalTables.read(self.domain, self.blocks)

    def parents(self, variable: Named) -> tuple[Variable, ...]:
        """The parents of a variable of a Bayesian network, in the order of its table's dims.

        Raises:
            UnsupportedError: the factors are no conditional tables, one for each variable.
            ModelError: an unknown variable, or an array.
        """
        return tuple(map(self.domain.variable, self._network.parents(self.domain.number(variable))))

    def cpt(self, variable: Named) -> Tensor:
        """The probabilities of a variable of a Bayesian network given its parents; differentiable.

        Evidence does not change them.

        Returns:
            (*batch, *parents, states), as `bayesian_network` takes them.

        Raises:
            UnsupportedError: the factors are no conditional tables, one for each variable.
            ModelError: an unknown variable, or an array.
        """
        return self._network.log_values(self.domain.number(variable)).exp()

    def do(self, settings: Mapping[Any, Any]) -> "FactorGraph":
        """The Bayesian network after interventions: variables are set, whatever their parents are.

        The table of such a variable is replaced by one without parents, which is 1 at its state;
        evidence stays.

        Args:
            settings: one state for each variable, by index or name.

        Raises:
            UnsupportedError: the factors are no conditional tables, one for each variable.
            ModelError: several states of a variable, or an unknown one.
            EvidenceError: a variable has no such state.

        Example:
            >>> rain, wet = Variable("rain", ("no", "yes")), Variable("wet", ("no", "yes"))
            >>> weather = FactorGraph.bayesian_network([
            ...     (rain, (), [0.8, 0.2]), (wet, (rain,), [[0.9, 0.1], [0.2, 0.8]])
            ... ])
            >>> weather.do({"wet": "yes"}).cpt("wet")
            tensor([0., 1.])
        """
        states, network = states_given(settings, self.domain), self._network
        if states.ndim > 1:
            raise ModelError("do takes one state for each variable; ask for each of several.")
        factors: list[Factor] = []
        for factor in self.factors():
            variable = factor.variables[network.slot]
            state = int(states[self.domain.number(variable)])
            if state != MISSING:
                row = torch.zeros(variable.size, dtype=self.dtype, device=self.device)
                row[state] = 1.0
                factor = Factor(variable, Table.from_probabilities(row))
            factors.append(factor)
        blocks = blocks_of(factors, self.domain)
        return FactorGraph.from_blocks(self.domain, blocks, self.observed, self.labels)

    def to(self, *args: Any) -> "FactorGraph":
        """The graph with its tables on another device or of another floating type.

        Raises:
            ModelError: torch has no such device, or no such type.
        """
        items = moved_blocks(self.blocks, *args)
        return FactorGraph.from_blocks(self.domain, items, self.observed, self.labels)

    def __repr__(self) -> str:
        return described(self.domain, self.blocks, self.observed, self.batch_shape)

    def _repr_html_(self) -> str:
        few = self.num_variables <= MOST_PICTURED
        from rdpgraph.model.conditional import parents_drawn

        parents = parents_drawn(self.domain, self.blocks) if few else None
        return pictured(repr(self), self.domain, self.blocks, parents)
