"""Emissions and durations by any family of `torch.distributions`, fitted by gradient."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, transform_to

from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError
from rdpgraph.learn.emissions import Emission, check_mass
from rdpgraph.learn.parameters import Parameter
from rdpgraph.learn.sequences import PaddedBatch


@dataclass(frozen=True, eq=False)
class Density(Emission):
    """Any family of `torch.distributions`, its parameters maximised by gradient.

    Most families lack sufficient statistics, so rows and their weights are kept until the
    maximisation (L-BFGS in unconstrained parameters): memory follows the data. With a family of
    vectors, such as `MultivariateNormal`, rows are seen or missing as a whole.

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
            name: torch.as_tensor(given, dtype=torch.float64)
            for name, given in self.parameters.items()
        }
        object.__setattr__(self, "parameters", tables)
        if unknown := {*self.fixed} - {*tables}:
            raise ModelError(f"Density fixes {min(unknown)!r}, which is none of {[*tables]}.")
        if any(table.requires_grad for table in tables.values()):
            return  # a step of `climbed` may leave the domain
        try:
            self.family(**tables, validate_args=True)
        except (TypeError, ValueError) as error:
            raise ModelError(f"Density's parameters do not fit its family: {error}") from None

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

    def blank(self, states: int, observed: Tensor) -> "Density":
        if self.states not in (0, states):
            raise ModelError(f"Density was fitted with {self.states} states; got {states}.")
        law = self.family(**self.parameters)
        limits: Any = law.arg_constraints
        lead = (states,) if law.event_shape else (states, observed.shape[1])
        tables = dict(self.parameters)
        for name, table in tables.items():
            dims = limits[name].event_dim
            try:
                expanded = table.expand(*lead, *table.shape[table.ndim - dims :])
            except RuntimeError:
                raise ModelError(
                    f"Density's {name} broadcasts to {lead}, by states and columns, with {dims} "
                    f"dims of events; got {tuple(table.shape)}."
                ) from None
            tables[name] = expanded.to(observed).clone()
        return replace(self, parameters=tables, states=states)

    def log_prob(self, observed: Tensor) -> Tensor:
        law = self.family(**self.parameters, validate_args=False)
        seen = ~observed.isnan()
        vectors = bool(law.event_shape)
        if vectors and bool((seen.any(1) & ~seen.all(1)).any()):
            raise EvidenceError(
                "Density of vectors needs rows that are seen or missing as a whole; "
                'Gaussian("full") takes rows with entries missing.'
            )
        # Any value in the support.
        known = observed[seen.all(1)][:1]
        filled = torch.where(seen, observed, known if len(known) else law.mean.detach()[:1])
        values = law.log_prob(filled.unsqueeze(1))
        if vectors:
            return values.where(seen[:, :1], 0.0)
        return values.where(seen.unsqueeze(1), 0.0).sum(2)

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
        observed, weights = (part.coalesce().values() for part in statistics)
        check_mass(self, weights.sum(0), "other starting parameters")
        total = weights.sum()

        def gain(density: "Density") -> Tensor:
            values = density.log_prob(observed)
            return torch.where(weights > 0, weights * values, 0.0).sum() / total

        return self.climbed(gain)

    @property
    def _maps(self) -> dict[str, Any]:
        limits: Any = self.family(**self.parameters).arg_constraints
        return {n: self._map(n, limits[n]) for n in self.parameters if n not in self.fixed}

    def _map(self, name: str, limit: Any) -> Any:
        for maps in (biject_to, transform_to):  # the second one has triangles of matrices
            try:
                return maps(limit)
            except NotImplementedError:
                pass
        raise UnsupportedError(
            f"Density cannot fit {name} of {self.family.__name__}: torch maps no free numbers to "
            f"its values. Leave it as it is: fixed=[{name!r}]."
        )

    def free(self) -> tuple[Tensor, ...]:
        """Unconstrained forms of the parameters that are not fixed, in their order."""
        maps = self._maps.items()
        return tuple(to.inv(self.parameters[name]).detach().clone() for name, to in maps)

    def at(self, free: Sequence[Tensor]) -> "Density":
        maps = self._maps.items()
        tables = {name: to(value) for (name, to), value in zip(maps, free, strict=True)}
        return replace(self, parameters={**self.parameters, **tables})

    def estimates(self) -> tuple[Tensor, ...]:
        """The parameters that are not fixed, in their order."""
        return tuple(table for name, table in self.parameters.items() if name not in self.fixed)

    def climbed(self, gain: Callable[["Density"], Tensor]) -> "Density":
        """The best point that L-BFGS visits from here, by a differentiable gain."""
        leaves = [table.requires_grad_() for table in self.free()]
        if not leaves:
            return self
        optimizer = torch.optim.LBFGS(leaves, max_iter=50, line_search_fn="strong_wolfe")
        best, least = self, math.inf

        def loss() -> Tensor:
            nonlocal best, least
            optimizer.zero_grad()
            with torch.enable_grad():
                result = -gain(self.at(leaves))
                result.backward()
            if float(result.detach()) < least:
                best = self.at([leaf.detach() for leaf in leaves])
                least = float(result.detach())
            return result.detach()

        optimizer.step(loss)
        return best

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws of the family, seeded by the generator."""
        seed = int(torch.randint(2**62, (), generator=generator))
        chosen = {name: table[states] for name, table in self.parameters.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            drawn = self.family(**chosen).sample()
        return drawn if drawn.ndim == 2 else drawn.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Durations(Parameter):
    """Durations of 1 to D steps by a family: a table (D, states) with few parameters.

    Args:
        density: of the number of steps after the first, 0 to D - 1, beyond which it is cut off.
        longest: D.

    Raises:
        ModelError: no such number, or a density of vectors.

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
        column = torch.zeros(1, 1, dtype=torch.float64, device=like.device)
        return replace(self, density=self.density.blank(states, column))

    def free(self) -> tuple[Tensor, ...]:
        return self.density.free()

    def at(self, free: Sequence[Tensor]) -> "Durations":
        return replace(self, density=self.density.at(free))

    def estimates(self) -> tuple[Tensor, ...]:
        """The parameters of the family, as `Density` has them."""
        return self.density.estimates()

    def value(self, rows: Any) -> Tensor:
        del rows
        device = next(iter(self.density.parameters.values())).device
        further = torch.arange(self.longest, dtype=torch.float64, device=device)
        return self.density.log_prob(further.unsqueeze(1)).log_softmax(0)

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Durations":
        (counts,) = statistics
        total = counts.sum() if bool((counts > 0).any()) else 1.0

        def gain(density: Density) -> Tensor:
            table = replace(self, density=density).value(None)
            return torch.where(counts > 0, counts * table, 0.0).sum() / total

        return replace(self, density=self.density.climbed(gain))
