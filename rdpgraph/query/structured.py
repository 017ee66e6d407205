"""The posterior of a structure, in the shape of its sites, and relaxed draws."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core.arguments import typed
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.recognised import StructureSolution
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.restriction import RestrictedSolution
from rdpgraph.interface.structure import Structure, is_tracked, summary
from rdpgraph.logspace.gradients import expectations
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.restriction import Support
from rdpgraph.model.soundness import holds_numbers, refuse_unsound
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.query.answers import (
    Inferred,
    StateValues,
    checked_draws,
    information_of,
)
from rdpgraph.structures.draws import straight_through

_NO_JOINTS = (
    "Joints of sites have no estimate here; use estimator=Exact(), or "
    "infer(structure.factor_graph(), estimator=...).{}."
)


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

    def status_of(self, answer: str) -> Status:
        informed = answer in ("mutual_information", "information_about")
        if informed and self._direct is not None and self._has_graph:
            return self._direct.general.status_of(answer)
        return super().status_of(answer)

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
            raise UnsupportedError(_NO_JOINTS.format("joint(...)"))
        (entry,) = self._direct.general.graph.variables
        items: list[Named] = [_site_of(entry, site) for site in asked]
        return self._direct.general.joint(items)

    def mutual_information(self, x: int | tuple[int, ...], y: int | tuple[int, ...]) -> Tensor:
        """(*batch,) the mutual information of two sites, given by their positions, in nats.

        By as many passes of the general engine as x has states; a structure that has no factor
        graph gives it by as many derivatives of its marginals. With an estimator
        it is that of the estimated joint. ``status_of("mutual_information")`` says how exact it is.

        Raises:
            ModelError: one site named twice, or one that the structure does not have.
            UnsupportedError: configurations of the structure may use a site several times, or there
                is no estimate of the joint.
        """
        numbers = [self._number(site) for site in (x, y)]
        if numbers[0] == numbers[1]:
            raise ModelError("mutual_information needs different sites; one is named twice.")
        return self._information(numbers[0])[:, numbers[1]].reshape(self.batch_shape)

    def information_about(self, x: int | tuple[int, ...]) -> Tensor:
        """(*batch, *sites) the mutual information of a site with every site, in nats.

        That of the site with itself is its entropy. It takes as many passes as the site has states,
        for all others together. Sites are named as for `joint`. How exact it is, and what is
        refused, is as for `mutual_information`.

        Raises:
            ModelError: a site that the structure does not have, or more than one site.
            UnsupportedError: as for `mutual_information`.

        Example:
            >>> import torch
            >>> import rdpgraph as rg
            >>> chain = rg.Chain(torch.zeros(3, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
            >>> rg.infer(chain).information_about(0)
            tensor([0.6931, 0.1109, 0.0230])
        """
        shape = self._variables.shape
        return self._information(self._number(x)).reshape(*self.batch_shape, *shape)

    def _number(self, site: int | tuple[int, ...]) -> int:
        """The number of a single site among the variables of the factor graph."""
        entry = self._variables
        return Domain.of([entry]).number(_site_of(entry, site))

    def _information(self, number: int) -> Tensor:
        """(B, sites) the mutual information of a site, by its number, with every site."""
        direct, solution = self._direct, self._checked
        if direct is not None and not self._has_graph:
            return self._information_by_derivatives(number)
        if direct is not None:
            joint = direct.general._joints(number)
        elif isinstance(solution, RestrictedSolution) and self.solved is not None:
            # The structure on all states, those left out forbidden, has the graph's variables.
            every = [self.solved.solve(model)._direct.general for model in solution.on_all()]
            joint = solution.replicates.mean(torch.stack([each._joints(number) for each in every]))
        else:
            raise UnsupportedError(_NO_JOINTS.format("mutual_information(x, y)"))
        return _information_with_each(joint, self._variables.size)

    @property
    def _variables(self) -> Entry:
        """The sites as variables of the structure's factor graph, or as those of its unary."""
        return self.structure.factor_graph().variables[0] if self._has_graph else self._sites

    @cached_property
    def _has_graph(self) -> bool:
        """True if there is a factor graph; an error if there are no sites to be in one state."""
        structure = self.structure
        if structure.site_places() is not None:
            raise UnsupportedError(
                f"Sites of this {type(structure).__name__} have no mutual information, because a "
                "configuration may use one several times; sample(count) says how often."
            )
        try:
            structure.factor_graph()
        except UnsupportedError:
            return False
        return True

    def _information_by_derivatives(self, number: int) -> Tensor:
        """(B, sites) the mutual information of a site, by its number, with every site.

        The derivative of the marginal of a state x in the unary log-value of a state y is their
        covariance, P(x, y) - P(x) P(y).
        """
        structure = self.structure
        states = structure.unary.shape[-1]
        lead = (math.prod(self.batch_shape), -1, states)

        def chance(unary: Tensor, state: int) -> Tensor:
            return structure.with_unary(unary).marginals().reshape(lead)[:, number, state]

        chances = self.marginals().reshape(lead)
        own = chances[:, number]
        rows = list[Tensor]()
        for state in range(states):
            _, (gradient,) = expectations(
                partial(chance, state=state), [structure.unary], tracked=is_tracked(structure)
            )
            rows.append(gradient.to(chances).reshape(lead))
        joint = torch.stack(rows, 1) + own[:, :, None, None] * chances.unsqueeze(1)
        # A site may be in no state, of either variable; what rounding leaves is no probability.
        joint = torch.cat([joint, own[:, :, None, None] - joint.sum(-1, keepdim=True)], -1)
        every = torch.cat([chances, 1 - chances.sum(-1, keepdim=True)], -1).unsqueeze(1)
        joint = torch.cat([joint, every - joint.sum(1, keepdim=True)], 1)
        joint = torch.where(joint.detach() > 64 * torch.finfo(joint.dtype).eps, joint, 0.0)
        nats = _information_with_each(joint.flatten(2), joint.shape[-1])
        return torch.where(self.solution.possible().unsqueeze(-1), nats, 0.0)

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
        """A most probable configuration: states (*batch, *sites), or the structure's type.

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
            UnsupportedError: the structure has no relaxed draws.
        """
        relaxed = self._checked.rsample(temperature, generator)
        return relaxed.reshape(self.structure.unary.shape)

    def rsample_kept(
        self, *, temperature: float, generator: torch.Generator | None = None
    ) -> RelaxedStates:
        """The draw of `rsample` on the states that an estimator kept: O(K) numbers for each site.

        The same generator gives the same draw, (*batch, *sites, K), and gradient. Without an
        estimator the weights are those of all states, and ``states`` is None.

        Raises:
            ImpossibleEvidenceError: an item has no configuration.
            UnsupportedError: the structure has no relaxed draws.
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


def _information_with_each(joint: Tensor, size: int) -> Tensor:
    """(B, sites) the information in joints (B, K, sites * size) with sites of one size."""
    count = joint.shape[-1] // size
    owner = torch.arange(count, device=joint.device).repeat_interleave(size)
    return information_of(joint, owner, count)


def _site_of(entry: Entry, site: Any) -> Entry:
    """A site among the variables of a structure, or several for slices."""
    try:
        return entry[site] if isinstance(entry, VariableArray) else entry
    except IndexError as error:
        raise ModelError(f"There is no site {site!r:.80}. {error}") from None
