"""Emissions and durations by any family of `torch.distributions`, fitted by gradient."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints, transform_to
from torch.optim import LBFGS

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.masked import present
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError
from rdpgraph.learn.ascent import TRUST, GuardedLoss
from rdpgraph.learn.emissions import Emission, check_mass
from rdpgraph.learn.parameters import Parameter, require_table
from rdpgraph.learn.sequences import PaddedBatch
from rdpgraph.model.evidence import MISSING

_ROUNDS = 3
"""Rounds of L-BFGS and of steps of single cells in one maximisation."""

_PROMISED = 1e-6
"""The gain (nats for each row) below which a maximisation ends."""

_LENGTHS = 28
"""Step lengths that cells try, each an eighth of the one before: from 1 to 1e-25."""

_COARSE = 100
"""The least width of a density, in units of the rounding of the values that it is of."""

_REAL = type(constraints.real)

_LONGEST = 5.0
"""The change of logarithms of parameters in one step. Without a bound line searches jump to where
special functions have lost their digits."""

_NEAR = 1e-3
"""Change of unconstrained parameters that shows if values lie at an end of the support."""


@dataclass(frozen=True, eq=False)
class Density(Emission):
    """Any family of `torch.distributions`, its parameters maximised by gradient.

    Most families lack sufficient statistics, so rows and their weights are kept until the
    maximisation (L-BFGS in unconstrained parameters): memory follows the data. With a family of
    vectors, such as `MultivariateNormal`, rows are seen or missing as a whole.

    Values outside of the support have a log-density of -inf, and data that is outside of it in
    every state is refused. NaN is a missing entry; so is -1 where the support has whole numbers
    and not -1. Parameters at an end of their range, such as a probability of 0, stay.

    Args:
        family: gives a distribution of parameters by name.
        parameters: by name, each a number or of a shape that broadcasts to (states, columns), or
            (states, ...) for a family of vectors: where the fit starts from.
        fixed: names of those that stay.
        states: their number, where the parameters are those of a fit; 0: they are to be fitted.

    Raises:
        ModelError: parameters that the family does not take, or a fixed one that it does not have.

    Example:
        >>> Density(torch.distributions.Laplace, {"loc": 0.0, "scale": 1.0}).given
        False
    """

    family: Callable[..., Distribution]
    parameters: Mapping[str, Any]
    fixed: Sequence[str] = ()
    states: int = 0

    def __post_init__(self) -> None:
        require_fields(self, states="[0, inf)")
        tables = {
            name: torch.as_tensor(present(f"Density's {name}", given), dtype=torch.float64)
            for name, given in self.parameters.items()
        }
        object.__setattr__(self, "parameters", tables)
        if unknown := {*self.fixed} - {*tables}:
            raise ModelError(
                f"Density cannot keep {min(unknown)!r} fixed, which is none of {[*tables]}."
            )
        if any(table.requires_grad for table in tables.values()):
            return  # a step of `climbed` may leave the domain
        try:
            self.family(**tables, validate_args=True)
        except (TypeError, ValueError) as error:
            raise ModelError(f"Density's parameters do not fit its family: {error}") from None
        for name, table in tables.items():
            if not bool(table.isfinite().all()):
                raise ModelError(f"Density needs finite parameters; {name} holds an infinity.")

    @property
    def given(self) -> bool:
        return self.states > 0

    @property
    def kept(self) -> int:
        return 2

    @property
    def size(self) -> int:
        pairs = zip(self._maps.values(), self.free(), strict=True)
        # Other maps than bijections are of triangles, and ignore what is above these.
        return sum(
            p.numel() if to.bijective else int(p.new_ones(p.shape).tril().sum()) for to, p in pairs
        )

    @property
    def name(self) -> str:
        """The name of the family in error messages."""
        return f"Density of {getattr(self.family, '__name__', self.family)}"

    def expanded(self, states: int, columns: int, like: Tensor) -> "Density":
        """The same with parameters for each state and column, as those of ``like``.

        Raises:
            ModelError: parameters of other shapes.
        """
        if self.states not in (0, states):
            raise ModelError(f"Density was fitted with {self.states} states; got {states}.")
        require_table(
            f"The {self.name} of {states:,} states", (states, columns), "take fewer states"
        )
        law = self.family(**self.parameters)
        limits = self._limits
        lead = (states,) if law.event_shape else (states, columns)
        tables = dict(self.parameters)
        for name, table in tables.items():
            dims = limits[name].event_dim
            try:
                expanded = table.expand(*lead, *table.shape[table.ndim - dims :])
            except RuntimeError:
                raise ModelError(
                    f"Density's {name} must broadcast to {lead}, by states and columns, with "
                    f"{dims} dims of events; got {tuple(table.shape)}."
                ) from None
            tables[name] = expanded.to(like).clone()
        return replace(self, parameters=tables, states=states)

    def blank(self, states: int, observed: Tensor) -> "Density":
        made = self.expanded(states, observed.shape[1], observed)
        seen, inside = made._known(observed)
        # A row of a vector, or an entry, that is outside of the support in every state.
        wrong = (seen & ~inside.any(1)).nonzero()
        if len(wrong):
            row, *column = wrong[0].tolist()
            got = _shown(observed, row, *column)
            support = _described(_support(made._law()))
            raise EvidenceError(
                f"{self.name} needs {support} (NaN where missing); got {got} in "
                f"{_place(row, *column)}. Leave such values out, or take another family."
            )
        return made

    def drawn_from(
        self, blank: Any, observed: Tensor, weights: Tensor, generator: torch.Generator
    ) -> "Density":
        """Its blank form maximised for weighted rows, each for the states whose support has it."""
        seen, inside = blank._known(observed)
        outside = seen.unsqueeze(1) & ~inside
        outside = outside if outside.ndim == 2 else outside.any(2)
        weights = weights.masked_fill(outside, 0.0)
        return super().drawn_from(blank, observed, weights, generator)

    def _law(self) -> Distribution:
        return self.family(**self.parameters, validate_args=False)

    @property
    def _limits(self) -> Any:
        """The constraints on the parameters, by name."""
        return self._law().arg_constraints

    def _known(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Which entries were seen, (rows, columns), and the states whose support has them.

        The latter is (rows, states or 1, columns). For a family of vectors both are without the
        dim of columns.
        """
        law, given = self._law(), observed.unsqueeze(1)
        seen, vectors = ~observed.isnan(), bool(law.event_shape)
        if vectors and bool((seen.any(1) & ~seen.all(1)).any()):
            raise EvidenceError(
                "Density of vectors needs rows that are seen or missing as a whole; "
                'Gaussian("full") takes rows with entries missing.'
            )
        finite = given.isfinite()
        seen, finite = (seen.all(1), finite.all(2)) if vectors else (seen, finite)
        support = _support(law)
        if support is None:  # the family is taken at its word
            return seen, finite
        inside = support.check(given) & finite
        if not vectors and support.is_discrete:
            seen = seen & ~((observed == MISSING) & ~inside.any(1))
        return seen, inside

    def log_densities(self, observed: Tensor) -> Tensor:
        """(rows, states, columns) log-densities of entries, or (rows, states) those of vectors.

        They are 0 where nothing was seen, and -inf outside of the support.
        """
        law, (seen, inside) = self._law(), self._known(observed)
        event, given = law.event_shape, observed.unsqueeze(1)
        seen = seen.unsqueeze(1)
        used = seen & inside
        lead = torch.broadcast_shapes(law.batch_shape, used.shape)
        if bool(used.all()):
            return self._asked(law, given).expand(lead)
        # The family is asked for values of its support alone: others may give NaN, or a gradient
        # of NaN that a mask would not hide.
        used = used.expand(lead)
        limits = self._limits
        tables = dict[str, Tensor]()
        for name, table in self.parameters.items():
            own = table.shape[table.ndim - limits[name].event_dim :]
            tables[name] = table.expand(*lead, *own)[used]
        chosen = given.expand(*lead, *event)[used]
        values = self._asked(self.family(**tables, validate_args=False), chosen)
        absent = torch.where(seen, -math.inf, 0.0).to(values).expand(lead)
        return absent.masked_scatter(used, values)

    def _asked(self, law: Distribution, values: Tensor) -> Tensor:
        """The log-densities of a distribution; refuses in a line what it cannot compute."""
        try:
            return law.log_prob(values)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"{self.name} gives no log-densities in float64: {error}") from None

    def log_prob(self, observed: Tensor) -> Tensor:
        values = self.log_densities(observed)
        return values if values.ndim == 2 else values.sum(2)

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """Rows and weights, sparse at their places, so that sums hold all of them."""
        lengths, places = rows["lengths"], rows["places"]
        steps = torch.arange(counts.shape[1], device=counts.device)
        inside = (steps < lengths.unsqueeze(1)) & ~rows["observed"].isnan().all(2)
        at = (places[:, :1] + steps)[inside].unsqueeze(0)
        total = int(places[0, 1])
        return tuple(
            torch.sparse_coo_tensor(
                at, part[inside], (total, part.shape[2]), check_invariants=False
            )
            for part in (rows["observed"], counts)
        )

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Density":
        """The parameters that L-BFGS finds from the present ones.

        Raises:
            ModelError: a state has lost all mass, or the likelihood has no maximum: the density
                is infinite, or narrows to a single value.
        """
        rows, weights = (part.coalesce() for part in statistics)
        places, observed, weights = rows.indices()[0], rows.values(), weights.values()
        check_mass(self, weights.sum(0), "other starting parameters")
        if not any(part.numel() for part in self.free()):
            return self
        total = weights.sum()

        def gains(density: "Density") -> Tensor:
            values = density.log_densities(observed)
            mass = weights.reshape(*weights.shape, *(1,) * (values.ndim - 2))
            return torch.where(mass > 0, mass * values, 0.0).sum(0) / total

        self._refuse_ends_of_range(gains)
        self._refuse_ends_of_support(observed, weights, places)
        found = self.climbed(gains)
        found._refuse_collapse(observed, weights, places)
        return found

    def _refuse_ends_of_range(self, gains: Callable[["Density"], Tensor]) -> None:
        """Refuse parameters at an end of their range, from where they cannot move, but should."""
        limits = self._limits
        for name in self._maps:
            ends, table = self._ends(name), self.parameters[name]
            if not bool(ends.any()):
                continue
            highest = getattr(limits[name], "upper_bound", math.inf)
            step = torch.where(table == highest, -_NEAR, _NEAR)
            inside = {**self.parameters, name: torch.where(ends, table + step, table)}
            if bool((gains(replace(self, parameters=inside)) > gains(self)).any()):
                raise ModelError(
                    f"{self.name} starts from {name} of {float(table[ends][0]):g}. This is an end "
                    "of its range, which a fit cannot leave, and the data contradicts it. Start "
                    f"from another number, or keep it: fixed=[{name!r}]."
                )

    def _refuse_ends_of_support(self, observed: Tensor, weights: Tensor, places: Tensor) -> None:
        """Refuse values at an end of the support, where the density is zero or infinite nearby.

        An example is 0 under a Gamma distribution: its density there is infinite for a
        concentration below 1, zero for one above, and finite for 1 alone.
        """
        free = list(zip(self.free(), self._real, strict=True))
        for near in (0.0, -_NEAR, _NEAR):
            moved = [part if real else part + near for part, real in free]
            values = self.at(moved).log_densities(observed)
            used = (weights > 0).reshape(*weights.shape, *(1,) * (values.ndim - 2))
            wrong = (used & ~values.isfinite()).any(1).nonzero()
            if len(wrong):
                row, *column = wrong[0].tolist()
                raise ModelError(
                    f"The likelihood of {self.name} has no maximum: "
                    f"{_place(int(places[row]), *column)} is {_shown(observed, row, *column)}, an "
                    "end of the support where the density is zero or infinite. Mark such values as "
                    "missing (NaN), or move them inside."
                )

    def _refuse_collapse(self, observed: Tensor, weights: Tensor, places: Tensor) -> None:
        """Refuse densities so narrow that the numbers of the data are too coarse for them."""
        support = _support(self._law())
        if support is not None and support.is_discrete:
            return
        # Numbers of the size of x are eps x apart: a density of width w is near 1 / w.
        size = observed.abs().nan_to_num(0.0).amax(0)
        coarse = _COARSE * torch.finfo(observed.dtype).eps * torch.where(size > 0, size, 1.0)
        values = self.log_densities(observed).detach()
        most = -coarse.log().sum() if values.ndim == 2 else -coarse.log()
        used = (weights > 0).reshape(*weights.shape, *(1,) * (values.ndim - 2))
        wrong = (used & (values > most)).nonzero()
        if len(wrong):
            row, state, *column = wrong[0].tolist()
            raise ModelError(
                f"The likelihood of {self.name} has no maximum: the density of state {state} "
                f"narrows to the value of {_place(int(places[row]), *column)}. Fix a parameter, or "
                "take fewer states."
            )

    @property
    def _maps(self) -> dict[str, Any]:
        limits = self._limits
        return {n: self._map(n, limits[n]) for n in self.parameters if n not in self.fixed}

    def _map(self, name: str, limit: Any) -> Any:
        for maps in (biject_to, transform_to):  # the second one has triangles of matrices
            try:
                return maps(limit)
            except NotImplementedError:
                pass
        raise UnsupportedError(
            f"{self.name} cannot fit {name}: torch maps no free numbers to its values. Leave it as "
            f"it is: fixed=[{name!r}]."
        )

    def _refuse_moving_support(self) -> None:
        """Refuse to fit a parameter that the support depends on: the likelihood jumps in it."""
        for name in self._maps:
            tables = {
                other: table.detach().clone().requires_grad_(other == name)
                for other, table in self.parameters.items()
            }
            with torch.enable_grad():
                support = _support(self.family(**tables, validate_args=False))
            parts = () if support is None else vars(support).values()
            bounds = [part for part in parts if isinstance(part, Tensor)]
            if any(bound.requires_grad for bound in bounds):
                raise UnsupportedError(
                    f"{self.name} cannot fit {name}: its support depends on it, and gradients do "
                    f"not see that. Leave it as it is: fixed=[{name!r}]."
                )

    @property
    def _real(self) -> list[bool]:
        """For each parameter that is fitted, True where it may be any real number."""
        limits = (self._limits[name] for name in self._maps)
        return [isinstance(getattr(limit, "base_constraint", limit), _REAL) for limit in limits]

    def _ends(self, name: str) -> Tensor:
        """Entries of a parameter at an end of its range, such as a probability of 0 or 1."""
        limits = self._limits
        table, limit = self.parameters[name].detach(), limits[name]
        sides = (getattr(limit, side, None) for side in ("lower_bound", "upper_bound"))
        ends = [0.0] if isinstance(limit, type(constraints.simplex)) else [*sides]
        at = torch.zeros_like(table, dtype=torch.bool)
        for end in ends:
            at = at if end is None else at | (table == end)
        return at

    def free(self) -> tuple[Tensor, ...]:
        """Unconstrained forms of the parameters that are not fixed, in their order; 0 at ends.

        Raises:
            UnsupportedError: a parameter that gradients cannot fit, which has to be fixed.
        """
        self._refuse_moving_support()
        parts = list[Tensor]()
        for name, to in self._maps.items():
            table, ends = self.parameters[name].detach(), self._ends(name)
            if to.domain.event_dim and bool(ends.any()):
                raise UnsupportedError(
                    f"{self.name} cannot fit {name} from probabilities of 0. Start from others, "
                    f"or leave it as it is: fixed=[{name!r}]."
                )
            part = to.inv(table).clone()
            parts.append(torch.where(ends, 0.0, part) if bool(ends.any()) else part)
        return tuple(parts)

    def at(self, free: Sequence[Tensor]) -> "Density":
        tables = dict(self.parameters)
        for (name, to), value in zip(self._maps.items(), free, strict=True):
            ends = self._ends(name)
            made = to(value)
            tables[name] = torch.where(ends, tables[name], made) if bool(ends.any()) else made
        return replace(self, parameters=tables)

    def estimates(self) -> tuple[Tensor, ...]:
        """The parameters that are not fixed, in their order."""
        return tuple(table for name, table in self.parameters.items() if name not in self.fixed)

    def climbed(self, gains: Callable[["Density"], Tensor]) -> "Density":
        """Maximise the sum of differentiable gains from here, and return the best point found.

        Args:
            gains: of each cell: (states, columns), or (states,) for a family of vectors.

        Raises:
            ModelError: the gains or their gradients are not finite here.
        """
        leaves = [table.requires_grad_() for table in self.free()]
        if not any(leaf.numel() for leaf in leaves):
            return self

        def evaluate() -> float:
            with torch.enable_grad():
                result = -gains(self.at(leaves)).sum()
                result.backward()
            return float(result.detach())

        longest = [math.inf if real else _LONGEST for real in self._real]
        loss = GuardedLoss(leaves, evaluate, trust=TRUST, longest=longest)
        dims = 1 if self._law().event_shape else 2
        for _ in range(_ROUNDS):
            before = loss.least
            loss.step(LBFGS(leaves, max_iter=50, line_search_fn="strong_wolfe"))
            loss.return_to_best()
            if not math.isfinite(loss.least):
                raise ModelError(
                    f"{self.name} cannot be maximised from its parameters: the likelihood or its "
                    "gradient is not finite there. Give others to start from."
                )
            # Where a density has a kink, as Laplace's has at its location, the line search of all
            # numbers together ends at the kink of one. Then each cell of each parameter goes its
            # way. So it does where the gradient is below the tolerance of L-BFGS, far from data.
            promised = [float(loss.promised_gains(leaf, dims).sum()) for leaf in leaves]
            if max(promised) <= _PROMISED:
                break
            for leaf, most in zip(leaves, longest, strict=True):
                self._step_cells(loss, leaf, most, lambda: gains(self.at(leaves)))
            if before - loss.least <= _PROMISED:
                break
        return self.at([leaf.detach() for leaf in leaves])

    def _step_cells(
        self, loss: GuardedLoss, leaf: Tensor, longest: float, gains: Callable[[], Tensor]
    ) -> None:
        """Move each cell of a leaf along its gradient to the best of some step lengths."""
        loss()
        start = leaf.detach().clone()
        slope = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        with torch.no_grad():
            best, chosen = gains(), start.clone()
            size = best.shape
            wide = (*size, *(1,) * (leaf.ndim - len(size)))
            steepest = slope.reshape(*size, -1).abs().amax(-1)
            reach = start.reshape(*size, -1).abs().amax(-1).clamp(min=1.0, max=longest)
            length = torch.where(steepest > 0, reach / steepest, 0.0)
            for _ in range(_LENGTHS):
                leaf.copy_(start - length.reshape(wide) * slope)
                now = gains()
                better = now > best
                best = torch.where(better, now, best)
                chosen = torch.where(better.reshape(wide), leaf, chosen)
                length = length / 8
            leaf.copy_(chosen)
        loss()
        loss.return_to_best()

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws of the family, seeded by the generator."""
        seed = int(torch.randint(2**62, (), generator=generator))
        chosen = {name: table[states] for name, table in self.parameters.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            drawn = self.family(**chosen).sample()
        return drawn if drawn.ndim == 2 else drawn.unsqueeze(1)


def _support(law: Distribution) -> Any:
    """The constraint on values of a distribution; None: it declares none."""
    try:
        return law.support
    except NotImplementedError:
        return None


def _shown(observed: Tensor, row: int, column: int | None = None) -> str:
    return str(observed[row].tolist()) if column is None else f"{float(observed[row, column]):g}"


def _place(row: int, column: int | None = None) -> str:
    return f"row {row}" if column is None else f"row {row}, column {column}"


def _described(support: Any) -> str:
    """The words for the values of a support, such as "numbers of at least 0"."""
    if support is None or isinstance(support, _REAL):
        return "finite numbers"
    name, kind = type(support).__name__, "whole numbers" if support.is_discrete else "numbers"
    # Bounds may differ from state to state.
    bounds = [
        f"{float(torch.as_tensor(getattr(support, side)).detach().aminmax()[place]):g}"
        for place, side in enumerate(("lower_bound", "upper_bound"))
        if hasattr(support, side)
    ]
    match name:
        case "_Boolean":
            return "0 or 1"
        case "_IntegerInterval" | "_Interval" | "_HalfOpenInterval":
            return f"{kind} of {bounds[0]} to {bounds[1]}"
        case "_IntegerGreaterThan" | "_GreaterThanEq":
            return f"{kind} of at least {bounds[0]}"
        case "_GreaterThan":
            return f"{kind} above {bounds[0]}"
        case _:
            return f"values of its support, {support}"


@dataclass(frozen=True, eq=False)
class Durations(Parameter):
    """Durations of 1 to D steps by a family: a table (D, states) with few parameters.

    Args:
        density: of the number of steps after the first, 0 to D - 1, beyond which it is cut off.
        longest: D.

    Raises:
        ModelError: no such number, a density of vectors, or one that is infinite at one of these
            numbers or zero at all of them.

    Example:
        >>> rates = Density(torch.distributions.Poisson, {"rate": [[2.0], [5.0]]}, states=2)
        >>> Durations(rates, 3).value(None).exp().sum(0)
        tensor([1., 1.], dtype=torch.float64)
    """

    density: Density
    longest: int

    def __post_init__(self) -> None:
        require_fields(self, longest="[1, inf)")

    @property
    def size(self) -> int:
        return self.density.size

    def blank(self, states: int, like: Tensor) -> "Durations":
        """The family expanded to so many states, on a device."""
        require_table(
            f"The table of {self.longest:,} durations", (self.longest, states),
            "take a shorter longest, or fewer states",
        )  # fmt: skip
        column = torch.zeros(1, 1, dtype=torch.float64, device=like.device)
        made = replace(self, density=self.density.expanded(states, 1, column))
        highest = made._log_densities().detach().amax(0)
        if not bool(highest.isfinite().all()):
            raise ModelError(
                f"Durations of 1 to {self.longest} steps need a density that is finite at 0 to "
                f"{self.longest - 1} and above zero at one of them in each state; the log-density "
                f"of {self.density.name} goes up to {float(highest[~highest.isfinite()][0])}. Take "
                "another family, such as Poisson."
            )
        return made

    def free(self) -> tuple[Tensor, ...]:
        return self.density.free()

    def at(self, free: Sequence[Tensor]) -> "Durations":
        return replace(self, density=self.density.at(free))

    def estimates(self) -> tuple[Tensor, ...]:
        """The parameters of the family, as `Density` has them."""
        return self.density.estimates()

    def value(self, rows: Any) -> Tensor:
        del rows
        return self._log_densities().log_softmax(0)

    def _log_densities(self) -> Tensor:
        """(D, states) of 0 to D - 1 further steps."""
        device = next(iter(self.density.parameters.values())).device
        further = torch.arange(self.longest, dtype=torch.float64, device=device)
        return self.density.log_prob(further.unsqueeze(1))

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Durations":
        (counts,) = statistics
        total = counts.sum() if bool((counts > 0).any()) else 1.0

        def gains(density: Density) -> Tensor:
            table = replace(self, density=density).value(None)
            return (torch.where(counts > 0, counts * table, 0.0).sum(0) / total).unsqueeze(1)

        return replace(self, density=self.density.climbed(gains))
