"""The posterior of a structure, in the shape of its sites, and relaxed draws."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core.arguments import typed
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.recognised import StructureSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.restriction import RestrictedSolution
from rdpgraph.interface.structure import Structure, summary
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.restriction import Support
from rdpgraph.model.soundness import holds_numbers, refuse_unsound
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.query.answers import Inferred, StateValues, checked_draws, relative_entropy
from rdpgraph.structures.draws import straight_through


@dataclass(frozen=True, eq=False)
class RelaxedStates:
    """States of every site with weights that sum to one, or to zero where there is no site.

    A function of states becomes, on a relaxed draw, the weighted mean of its values: `mean` of a
    table with a row for each state, `pick` of numbers that each site has for each state. Both cost
    O(K) for each site, however many states there are.

    Attributes:
        weights: (*lead, K) non-negative; differentiable in the potentials.
        states: (*lead, K) the states; repeats stay separate. None: all, in order.
    """

    weights: Tensor
    states: Tensor | None = None

    def __post_init__(self) -> None:
        if self.states is not None and self.states.shape != self.weights.shape:
            raise ModelError(
                "RelaxedStates need weights and states of one shape (*lead, K); got "
                f"{tuple(self.weights.shape)} and {tuple(self.states.shape)}."
            )

    @staticmethod
    @typed()
    def of(states: Tensor, like: Tensor) -> "RelaxedStates":
        """Certain states (*lead) of weight one, in the type of ``like``; -1 has no weight."""
        present = states.unsqueeze(-1) >= 0
        return RelaxedStates(present.to(like), states.unsqueeze(-1).clamp(min=0))

    def hard(self) -> "RelaxedStates":
        """The state of the largest weight of each site; gradients as of `straight_through`."""
        return RelaxedStates(straight_through(self.weights), self.states)

    def mean(self, table: Tensor) -> Tensor:
        """(*lead, d) the weighted mean of rows of a table (N, d); zeros where there is no site."""
        if self.states is None:
            return self.weights @ table
        lead, count = self.weights.shape[:-1], self.weights.shape[-1]
        embedded = functional.embedding_bag(
            self.states.reshape(-1, count), table, mode="sum",
            per_sample_weights=self.weights.reshape(-1, count),
        )  # fmt: skip
        return embedded.reshape(*lead, table.shape[-1])

    def pick(self, values: Tensor) -> Tensor:
        """(*lead) the weighted mean of values (*lead, N), one for each state of each site."""
        chosen = values if self.states is None else values.gather(-1, self.states)
        return (self.weights * chosen).sum(-1)


@dataclass(frozen=True, eq=False)
class StructuredPosterior(Inferred):
    """The distribution over a structure's sites: a posterior with answers in the sites' shape.

    The structure answers; other questions are asked of the same model as a general graph. Sites
    that a batch item lacks have marginals zero, where the structure answers, and state -1. With an
    estimate on a few states, ratios of estimates (marginals, entropy, samples) are biased and
    consistent. Marginals are read at all states where `Randomized` says so; in all other answers a
    state that was not kept has probability zero. Pickled or deep-copied, it
    recomputes its answers, without gradients, on the states chosen.

    Attributes:
        structure: the model as declared.
        solved: the answers of the structure that was solved in its place; None where a graph was
            solved.
    """

    structure: Structure
    solved: StructureSolution | None = field(repr=False)

    def __repr__(self) -> str:
        return f"StructuredPosterior({summary(self.structure)}, {self.plan.why})"

    @property
    def batch_shape(self) -> tuple[int, ...]:
        solved = self.solved if self.solution is self.solved else None
        return (solved or self.structure).batch_shape

    @property
    def _direct(self) -> StructureSolution | None:
        """The structure's answers, in its types, where no estimator changes them."""
        return self.solved if self._checked is self.solved else None

    @property
    def _checked(self) -> Solution:
        _ = self._numbers
        return self._answers

    @property
    def _declared(self) -> Structure:
        return self.structure

    @property
    def _is_rewritten(self) -> bool:
        return self._direct is None

    @cached_property
    def _numbers(self) -> bool:
        """True, or an error: reads the fields once, as recursions for maxima pass over a NaN."""
        if self.solved is not None and not holds_numbers(self.solved.structure):
            refuse_unsound(self.solved.structure)
        return True

    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities."""
        return self._flat.reshape(self.structure.unary.shape)

    @differentiable_property
    def _flat(self) -> Tensor:
        return self._with_word(self._checked.variable_marginals())

    @property
    def _sites(self) -> Entry:
        """The sites of a batch item as variables, named as those of `Structure.factor_graph`."""
        *sites, states = self.structure.unary.shape[len(self.batch_shape) :]
        return VariableArray("site", tuple(sites), states) if sites else Variable("site", states)

    def marginal(self, site: Any) -> Tensor:
        """Probabilities of the states of a site, (*batch, states); zeros where an item lacks it.

        Args:
            site: for a chain a step, as ``3``; else a tuple, as ``(0, 2)``. Slices give several,
                (*batch, *shape, states).

        Raises:
            ModelError: the structure has no such site.
        """
        entry = self._sites
        numbers = Domain.of([entry]).numbers(_site_of(entry, site))
        rows = self.marginals().reshape([*self.batch_shape, math.prod(entry.shape), entry.size])
        return rows[..., numbers, :]

    def to_frame(self) -> Any:
        """The marginals as a pandas DataFrame, like `StateValues.to_frame` of a graph.

        A row for each site and state, such as ``("site[3]", 1)``. One column ``"value"``; for a
        batch a column for each item.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        sites = self._sites
        return StateValues({sites: self.marginals()}, Domain.of([sites])).to_frame()

    def joint(self, sites: Iterable[int | tuple[int, ...]]) -> Tensor:
        """(*batch, *sizes) the joint probabilities of a few sites, given by their positions.

        By the general engine, exactly, as `Posterior.joint`: one more site multiplies the cost by
        the number of its states. A site that an item lacks is in state 0 there, and a span that is
        no constituent in an additional last state. With an estimate, the mean of the replicates,
        each at the cost of all states, those left out forbidden.

        Args:
            sites: for a chain steps, as ``[0, 3]``; else tuples, as ``[(0, 1), (2, 2)]``.

        Raises:
            ModelError: no site, one named twice, or one that the structure does not have.
            BudgetError: the joint does not fit.
            UnsupportedError: the structure has no general form, or was not solved by itself.
        """
        if not isinstance(sites, Iterable):
            raise ModelError(f"joint needs a list of sites, as [{sites!r}]; got {sites!r} alone.")
        asked, solution = list(sites), self._checked
        if isinstance(solution, RestrictedSolution) and self.solved is not None:
            each = [self.solved.solve(replicate).joint(asked) for replicate in solution.on_all()]
            rows = torch.stack(each).reshape(len(each), -1, *each[0].shape[len(self.batch_shape) :])
            return solution.replicates.mean(rows).reshape(each[0].shape)
        if self._direct is None:
            raise UnsupportedError(
                "Joints of sites have no estimate here; use estimator=Exact(), or "
                "infer(structure.factor_graph(), estimator=...).joint(...)."
            )
        (entry,) = self._direct.general.graph.variables
        items: list[Named] = [_site_of(entry, site) for site in asked]
        return self._direct.general.joint(items)

    def mutual_information(self, x: int | tuple[int, ...], y: int | tuple[int, ...]) -> Tensor:
        """(*batch,) the mutual information of two sites, given by their positions, in nats.

        By the general engine, as `joint`; with an estimate that of the estimated joint.

        Raises:
            ModelError: one site named twice, or one that the structure does not have.
            UnsupportedError: the structure has no general form, or was not solved by itself.
        """
        if self._direct is None:
            joint = self.joint([x, y])
            apart = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
            return relative_entropy(joint, apart).flatten(-2).sum(-1)
        (entry,) = self._direct.general.graph.variables
        one, other = (_site_of(entry, site) for site in (x, y))
        return self._direct.general.mutual_information(one, other)

    def entropy(self) -> Tensor:
        """(*batch,) entropy in nats; 0 where log Z is -inf."""
        entropy = self._with_word(self._checked.entropy())
        self._warn_if_apart("entropy")
        return entropy.reshape(self.batch_shape)

    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) the largest score with each state (nats, unnormalised)."""
        values = self._checked.max_marginals()
        self._warn_if_apart("max_marginals")
        return values.reshape(self.structure.unary.shape)

    def mode(self) -> Any:
        """A most probable configuration: states (*batch, *sizes), or the structure's type.

        A `SemiMarkov` has a `Segmentation`. With an estimate, the best configuration of states kept
        together in one replicate.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        if self._direct is not None:
            return self._direct.shaped_mode()
        states = self._checked.mode().reshape(self.structure.states_shape)
        return self.structure.configuration(states)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Any:
        """Independent draws: states (count, *batch, *sites), or the type of the structure's mode.

        Raises:
            ImpossibleEvidenceError: an item has no configuration.
        """
        count = checked_draws(count, generator, self.structure.states_shape)
        if self._direct is not None:
            return self._direct.shaped_sample(count, generator)
        states = self._checked.sample(count, generator)
        return self.structure.configuration(states.reshape([count, *self.structure.states_shape]))

    def rsample(self, *, temperature: float, generator: torch.Generator | None = None) -> Tensor:
        """(*batch, *sites, states): a relaxed one-hot draw, differentiable in the potentials.

        With an estimate from one replicate, drawn in proportion to its Z.

        Raises:
            ImpossibleEvidenceError: an item has no configuration.
            UnsupportedError: the structure has none.
        """
        relaxed = self._checked.rsample(temperature, generator)
        return relaxed.reshape(self.structure.unary.shape)

    def rsample_kept(
        self, *, temperature: float, generator: torch.Generator | None = None
    ) -> RelaxedStates:
        """The draw of `rsample` on the states that an estimator kept: O(K) numbers for each site.

        The same generator gives the same draw, (*batch, *sites, K), and gradient. Without an
        estimator all states are kept, and not listed.

        Raises:
            ImpossibleEvidenceError: an item has no configuration.
            UnsupportedError: the structure has none.
        """
        solution = self._checked
        if not isinstance(solution, RestrictedSolution):
            return RelaxedStates(self.rsample(temperature=temperature, generator=generator))
        states, weights = solution.rsample_kept(temperature, generator)
        shape = self.supports.states.shape[1:]
        return RelaxedStates(weights.reshape(shape), states.reshape(shape))

    @property
    def supports(self) -> Support:
        """(replicates, *batch, *sites, kept) the states that an estimator kept, and their weights.

        Raises:
            UnsupportedError: there is no such estimator.
        """
        if not isinstance(self.solution, RestrictedSolution):
            raise UnsupportedError(
                "There are no supports, because no states were left out of the model."
            )
        (support,) = self.solution.restriction.supports
        assert support is not None
        return support


def _site_of(entry: Entry, site: Any) -> Entry:
    """A site among the variables of a structure, or several for slices."""
    try:
        return entry[site] if isinstance(entry, VariableArray) else entry
    except IndexError as error:
        raise ModelError(f"There is no site {site!r:.80}. {error}") from None
