"""The posterior of a factor graph."""

import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import differentiable_property
from rdpgraph.engines.solution import Solution, Status, meets
from rdpgraph.errors import BudgetError, ModelError, UnsupportedError
from rdpgraph.model.domain import Named
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.plan.plan import require_room
from rdpgraph.query.answers import (
    Assignment,
    Bounds,
    Inferred,
    Information,
    JointTable,
    StateValues,
    checked_draws,
    information_of,
)


@dataclass(frozen=True, eq=False)
class Posterior(Inferred):
    """The distribution of a factor graph's variables given its evidence, whatever the estimator.

    Answers are computed when first asked for, and cached. By exact inference, by messages and by
    estimators all are differentiable in the potentials, except states (modes and samples); those of
    `MiniBuckets`, `Search` and `Counting` have no gradients, and `Loopy(gradient=...)` says which
    part of theirs messages have. A posterior can be pickled and deep-copied, with model, plan
    and messages; other answers are recomputed, with the same results. Tensors are copied without
    gradients, a scheduler's ``progress`` not at all.

    With an estimate on a few states, ratios of estimates (marginals, entropy, samples) are biased
    and consistent. In a graph without cycles, and by `Loopy`, marginals are read at all states; in
    all other answers a state that was not kept has probability zero.

    Attributes:
        graph: the model as declared, evidence included.
        solved: the graph that was solved in its place; None where a structure was solved.
        solve: solves a graph exactly, within the budget, for joints that no factor holds.
        again: gives the posterior of another graph, by the scheduler of this one and without its
            estimator.
    """

    graph: FactorGraph
    solved: FactorGraph | None = field(repr=False)
    solve: Callable[[FactorGraph], Solution] = field(repr=False)
    again: Callable[[FactorGraph], Any] = field(repr=False)

    def __repr__(self) -> str:
        model = repr(self.graph).partition("\n")[0]
        return f"{type(self).__name__}({model}, {self.plan.route}: {self.plan.why})"

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.graph.batch_shape

    def bounds(self, *, confidence: float = 1.0) -> Bounds:
        """Certain bounds on log Z (nats).

        Both are log Z where inference is exact, up to the rounding of the model's type. Else the
        lower one is at least the score of every configuration that an answer has met so far, with
        mean field around the best one; it is -inf if none of them is possible. The upper one is
        finite at any size: by tree-reweighted messages, which pass for it in a tenth of the time
        (up to two seconds without a limit), or the largest value of each factor. `MiniBuckets`,
        which `Auto` asks where factors are not too many, gives tighter ones. All of these are
        computed in float64 and rounded outwards, also where the model is float32. With an estimator
        that approximates, -inf and +inf stand for no bound.

        Args:
            confidence: below 1, the least probability, over the draws of `MiniBuckets`, that the
                bounds of an item hold.

        Raises:
            ModelError: a confidence that is not above 0 and at most 1.
        """
        if not isinstance(confidence, int | float) or not 0.0 < confidence <= 1.0:
            raise ModelError(f"bounds needs 0 < confidence <= 1; got {confidence!r:.80}.")
        known = self._answers
        ends = known.bounds() if confidence == 1.0 else known.interval(confidence)
        return Bounds(*(end.reshape(self.graph.batch_shape) for end in ends))

    @property
    def _declared(self) -> FactorGraph:
        return self.graph

    @property
    def _is_rewritten(self) -> bool:
        return self.solved is not self.graph

    @differentiable_property
    def _flat(self) -> Tensor:
        self._require_room()
        return self._with_word(self._answers.variable_marginals())

    def _require_room(self, size: int | None = None, what: str = "Marginals") -> None:
        """Refuse tables of so many numbers (None: one per state) for each item, beyond memory."""
        graph = self.graph
        each = graph.domain.total_states if size is None else size
        count = float(each * math.prod(graph.batch_shape))
        # Small models need no plan.
        if 8.0 * count > tuning.SMALL_BYTES:
            needed = count * torch.finfo(graph.dtype).bits / 8
            require_room(needed, what, self.plan.memory)

    def marginal(self, item: Named) -> Tensor:
        """Probabilities of the states of a variable, (*batch, states), or of an array's members.

        An array (or a view of one) gives (*batch, *shape, states). Zero where log Z is -inf.

        Raises:
            ModelError: the graph has no such variable.
        """
        places, shape = self.graph.domain.state_places(item)
        return self._flat[:, places].reshape([*self.graph.batch_shape, *shape])

    def marginals(self) -> StateValues:
        """The marginal of every variable and array, from one pass up and one down."""
        return StateValues.split(self._flat, self.graph)

    def joint(self, variables: Iterable[Named]) -> JointTable:
        """The joint probabilities of a few variables, whether or not a factor holds them.

        Read off a factor that holds them all, if there is one, at no further cost. Else the model
        is solved again with a factor of zeros over them, exactly and within the budget: the
        intermediate tables hold all of these variables, so that each one more multiplies time and
        memory by its number of states, or nearly.

        Returns:
            (*batch, *sizes) in the order of the variables asked for; zero where log Z is -inf.

        Raises:
            ModelError: no variable, one named twice, an array, or an unknown one.
            BudgetError: the joint does not fit.
            UnsupportedError: no factor holds them, and the posterior is by message passing.
        """
        numbers = self._single_numbers("joint", variables)
        if not numbers:
            raise ModelError("joint needs at least one variable.")
        scope = map(self.graph.domain.variable, numbers)
        return JointTable.of(self._joint(numbers), scope, self.graph.labels)

    def _joint(self, numbers: list[int]) -> Tensor:
        names = [self.graph.domain.variable(number).name for number in numbers]
        wanted = torch.tensor([numbers], device="cpu")
        sizes = self.graph.domain.sizes[wanted[0]].tolist()
        if len(numbers) == 1:
            return self.marginal(names[0])
        self._require_room(math.prod(sizes), f"The joint of {names}")
        # Skip factors with large tables, such as parity checks.
        messages = self.solved is None or self.plan.route in ("loopy", "join graph")
        with nullcontext() if messages else suppress(UnsupportedError):  # without a table of it
            if (held := self._held(wanted, (), most=max(2**20, math.prod(sizes)))) is not None:
                return held
        if self.solved is None or messages:
            raise UnsupportedError(
                f"No factor holds {names} together, and message passing has joints of factors "
                "only; infer(graph, scheduler=Contraction()) has others, where it fits."
            )
        try:
            values = self._answers.joint(wanted[0], self.solve)
            if values is None:
                from rdpgraph.model.rewrites import with_joint

                wider = with_joint(self.solved, wanted[0], self.solved.num_factors)
                values = self.solve(wider).factor_marginals(len(wider.blocks) - 1)
        except BudgetError as error:
            raise BudgetError(f"The joint of {names} does not fit. {error}") from None
        return self._with_word(values).reshape([*self.graph.batch_shape, *sizes])

    def factor_marginal(self, factor: Factor | FactorBlock | Iterable[Named]) -> Tensor:
        """The joint probabilities over the scope of a factor.

        Args:
            factor: a factor or block of the graph, or variables that some factor holds together.

        Returns:
            (*batch, *sizes) in the order of the variables asked for; for a block
            (*batch, *block, *sizes).

        Raises:
            ModelError: no factor holds these variables together.
        """
        shape: tuple[int, ...] = ()
        if isinstance(factor, FactorBlock):
            shape = factor.shape
            wanted = torch.stack([self._numbers(slot, shape) for slot in factor.scopes], 1)
        else:
            numbers = self._single_numbers("factor_marginal", factor)
            wanted = torch.tensor([numbers], dtype=torch.long, device="cpu")
        held = self._held(wanted, shape)
        if held is None:
            names = [self.graph.domain.variable(number).name for number in wanted[0].tolist()]
            raise ModelError(
                f"No factor has all of {names} in its scope; use joint({names}), which needs no "
                "such factor."
            )
        return held

    def _single_numbers(self, asked: str, variables: Factor | Iterable[Named]) -> list[int]:
        """The numbers of variables, each single and named once."""
        numbers = [self.graph.domain.number(item) for item in _listed(asked, variables)]
        if len(set(numbers)) < len(numbers):
            raise ModelError(f"{asked} needs different variables; one is named twice.")
        return numbers

    def _numbers(self, slot: Any, shape: tuple[int, ...]) -> Tensor:
        number, many = self.graph.domain.numbers, isinstance(slot, tuple)
        numbers = torch.stack([number(one) for one in slot]) if many else number(slot)
        return numbers.expand(shape).reshape(-1)

    def _held(
        self, wanted: Tensor, shape: tuple[int, ...], most: float = math.inf
    ) -> Tensor | None:
        """The marginal over (n, k) variables of a block whose factors hold each row, or None.

        Tables of more than ``most`` numbers are skipped.
        """
        for number, block in enumerate(self.graph.blocks):
            if block.arity < wanted.shape[1] or math.prod(block.sizes) > most:
                continue
            if (place := block.holding(wanted)) is None:
                continue
            rows, slots = place
            self._answers.check_factor_marginals(number)
            self._require_room(len(rows) * math.prod(block.sizes), "The marginals of a factor")
            values = self._with_word(self._answers.factor_marginals_of(number, rows))
            self._warn_if_apart("factor_marginals")
            others = [slot + 2 for slot in range(block.arity) if slot not in slots]
            values = values.sum(others) if others else values
            order = sorted(slots)
            values = values.permute(0, 1, *(2 + order.index(slot) for slot in slots))
            return values.reshape([*self.graph.batch_shape, *shape, *values.shape[2:]])
        return None

    def entropy(self) -> Tensor:
        """(*batch,) entropy in nats: log Z less the expected score; 0 where log Z is -inf."""
        _ = self._are_finite
        entropy = self._with_word(self._answers.entropy())
        self._warn_if_apart("entropy")
        return entropy.reshape(self.graph.batch_shape)

    def mutual_information(self, x: Named, y: Named) -> Tensor:
        """(*batch,) the mutual information of two variables given the evidence, in nats.

        This is how many nats of the entropy of one variable are expected to go once the other is
        observed: the expected information of a test. Observed variables have none. By the marginals
        given each state of x or of y, whichever has fewer, so it costs as many passes as that has
        states, by the scheduler of this posterior, and is as exact as its marginals:
        ``status_of("mutual_information")`` says so. With an estimator that approximates it is that
        of the estimated joint, in which a state that was not kept has probability zero; that is
        biased and consistent.

        Raises:
            ModelError: an array, an unknown variable, or one that is named twice.
            UnsupportedError: an estimate that has no joint of the two.

        Example:
            >>> import torch
            >>> import rdpgraph as rg
            >>> x, y = rg.Variable("x", 2), rg.Variable("y", 2)
            >>> same = rg.FactorGraph([rg.Factor((x, y), rg.Table(torch.eye(2).log()))])
            >>> rg.infer(same).mutual_information(x, y)  # log 2
            tensor(0.6931)
        """
        one, other = self._single_numbers("mutual_information", [x, y])
        sizes = self.graph.domain.sizes
        if int(sizes[other]) < int(sizes[one]):
            one, other = other, one
        joint = self._joints(one)
        if joint is None:
            joint = self._joint([one, other]).reshape(-1, int(sizes[one]), int(sizes[other]))
        else:
            places, _ = self.graph.domain.state_places(self.graph.domain.variable(other))
            joint = joint[..., places]
        owner = torch.zeros(joint.shape[-1], dtype=torch.long, device=joint.device)
        return information_of(joint, owner, 1).reshape(self.graph.batch_shape)

    def information_about(self, x: Named) -> Information:
        """The mutual information of a variable with every other one, (*batch, *shape) nats each.

        The largest is the best single test for x: a variable that is not observed yet, whose state
        is expected to tell most about x. That of x with itself is its entropy; observed variables
        have none. It costs as many passes as x has states, for all others together; otherwise it is
        as `mutual_information`.

        Raises:
            ModelError: an array, or an unknown variable.
            UnsupportedError: an estimate that has no joint of x with each of the others.

        Example:
            >>> import torch
            >>> import rdpgraph as rg
            >>> x = rg.VariableArray("x", (3,), 2)
            >>> pair = rg.Table(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
            >>> chain = rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), pair)])
            >>> rg.infer(chain).information_about(x[0])[x]
            tensor([0.6931, 0.1109, 0.0230])
        """
        (number,) = self._single_numbers("information_about", [x])
        joint = self._joints(number)
        if joint is None:
            each = [self._joint_with(number, other) for other in range(self.graph.num_variables)]
            joint = torch.cat(each, -1)
        owner = torch.repeat_interleave(self.graph.domain.sizes.cpu()).to(joint.device)
        return Information.split(information_of(joint, owner, self.graph.num_variables), self.graph)

    def _joint_with(self, one: int, other: int) -> Tensor:
        """(B, K, K') the joint of two variables, or of one with itself."""
        size = int(self.graph.domain.sizes[one])
        if one == other:
            chances = self._joint([one]).reshape(-1, size)
            return torch.diag_embed(chances)
        return self._joint([one, other]).reshape(-1, size, int(self.graph.domain.sizes[other]))

    def _joints(self, number: int) -> Tensor | None:
        """(B, K, S) the joints of a variable's K states with all states of all variables.

        None: an estimate that has joints of a few variables alone.
        """
        # Tables are checked and planned as those of marginals, one for each state.
        self._require_room(int(self.graph.domain.sizes[number]) * self.graph.domain.total_states)
        if self._is_rewritten:
            return self._answers.joints(number)
        variable = self.graph.domain.variable(number)
        chances = self._flat[:, self.graph.domain.state_places(variable)[0]]
        observed = self.graph.observed
        seen = torch.full((len(chances),), MISSING, device="cpu")
        if observed is not None:
            seen = observed.reshape(len(chances), -1)[:, number].cpu()
        likely = torch.where(seen == MISSING, chances.detach().argmax(-1).cpu(), seen)
        base, given = self.graph.retract(variable), list[Tensor]()
        for state in range(chances.shape[-1]):
            # An item in which the state is impossible is asked about another one, of no weight.
            possible = chances[:, state].detach().cpu() > 0
            if bool(possible.any()):
                states = torch.where(possible, state, likely).reshape(self.graph.batch_shape)
                with warnings.catch_warnings():  # of items that are impossible it has warned
                    warnings.simplefilter("ignore")
                    after = self.again(base.condition({variable: states}))
                    given.append(after._flat)
                self._note_conditioned(after)
            else:
                given.append(self._flat)
        return chances.unsqueeze(-1) * torch.stack(given, 1)

    def _note_conditioned(self, after: "Posterior") -> None:
        """Remember, and warn once, if a conditioned model was answered less exactly than this."""
        name = "variable_marginals"
        if vars(self).get("_conditioned_apart") or not self._status_of(name).exact:
            return
        if not after._status_of(name).exact:
            vars(self)["_conditioned_apart"] = True
            warnings.warn(
                "mutual_information is approximate here: exact inference fits for the marginals, "
                "and does not fit given a state of the variable.",
                stacklevel=4,
            )

    def mode(self) -> Assignment:
        """A most probable configuration (MAP): state indices (*batch, *shape) by variable.

        Also called MPE. Max-product with a traceback, so consistent. Where exact inference does not
        fit, `Auto` continues with a search. With message passing, a configuration of probability
        zero starts a search for a possible one, in half of the seconds left, or two where there is
        no limit. If none is found, and none is proved to exist or not, the best one is the answer,
        with a warning, and `FactorGraph.violations` counts its violations; `Search` raises an error
        instead. A tie goes to the first maximum of each step of the plan; one process keeps one
        plan for a model's shape.

        Raises:
            ImpossibleEvidenceError: an item has probability zero; the message names it.
            BudgetError: `Search` found no possible configuration.
        """
        return Assignment.split(self._mode_states(), self.graph)

    def _mode_states(self) -> Tensor:
        """Return the states (B, V) of the mode; raise an error where there is none."""
        answers = self._answers
        self._require_possible("mode", answers.mode_exists())
        states = answers.possible_mode()
        # A search for it may prove that none is possible.
        self._require_possible("mode", answers.mode_is_possible())
        return states

    def mode_is_consistent(self) -> Tensor:
        """(*batch,) bool: True where every factor's best configurations include the mode.

        Always so for exact inference. For loopy belief propagation it proves the mode optimal on a
        tree, and under `TreeReweighted` on any graph; else it is a sign of a good mode.
        """
        self._mode_states()
        return self._answers.mode_is_consistent().reshape(self.graph.batch_shape)

    def mode_bound(self) -> Tensor:
        """(*batch,) an upper bound on all scores, nats, float64.

        The score of the mode where it is known to be the best, added up in float64 whatever the
        type of the model, by whose rounding another configuration may be better. Where exact
        inference does not fit, the dual bound of tree-reweighted messages (of a minimum cut, for
        pairs of binary variables) or the largest values of all factors, finite at any size, and of
        mini-buckets, all in a small part of the time. +inf with an estimator that approximates.
        """
        states = self._mode_states().reshape(*self.graph.batch_shape, self.graph.num_variables)
        known = self._answers.mode_bound().reshape(self.graph.batch_shape)
        # A sum in the type of the model may round downwards; a bound is below no score.
        from rdpgraph.engines.scores import score_range

        score = score_range(self.graph, states)[1].reshape(self.graph.batch_shape)
        known = torch.where(self.mode_is_optimal() & known.isposinf(), score, known)
        return torch.maximum(known, score)

    def mode_is_optimal(self) -> Tensor:
        """(*batch,) bool: True where the mode is proved to be the best.

        A score is proved by a bound that is above it by 1e-9 * max(1, |bound|) nats at most.
        """
        self._mode_states()
        return self._answers.mode_is_optimal().reshape(self.graph.batch_shape).cpu()

    def status_of(self, answer: str) -> Status:
        status = super().status_of(answer)
        informed = answer in ("mutual_information", "information_about")
        if informed and vars(self).get("_conditioned_apart"):
            return replace(status, exact=False, biased=True, bound="")
        return status

    def _status_of(self, name: str) -> Status:
        if name != "mode":
            return super()._status_of(name)
        exact = bool(self.mode_is_optimal().all())
        return replace(self._answers.status_of(name), exact=exact, biased=not exact, bound="")

    def max_marginals(self) -> StateValues:
        """The largest score (nats, unnormalised) of a configuration with each state."""
        self._require_room()
        flat = self._answers.max_marginals()
        self._warn_if_apart("max_marginals")
        best = flat.detach().amax(1) if flat.shape[1] else flat.detach().sum(1)
        if not bool(best.isfinite().all()):
            _ = self._are_finite
        return StateValues.split(flat, self.graph)

    def marginal_mode(self, variables: Iterable[Named]) -> Assignment:
        """The most probable configuration of some variables, the others summed out (marginal MAP).

        The order eliminates the summed variables first, and may be much wider than the
        unconstrained one. Where it does not fit, `Auto` and `Search` give the best configuration
        that a search finds; `Assignment.score`, `bound` and `optimal` of the answer give its mass,
        a bound on all masses, and True where it is proved to be the best.

        Raises:
            ImpossibleEvidenceError: an item has probability zero.
            BudgetError: the constrained order does not fit the budget, and no search is made or
                none comes to a possible configuration.
        """
        self._require_possible("marginal mode", self._answers.mode_exists())
        graph, items = self.graph, _listed("marginal_mode", variables)
        places = [graph.domain.numbers(item) for item in items]
        if not places:
            raise ModelError("marginal_mode needs at least one variable to maximise over.")
        numbers = torch.cat([place.reshape(-1) for place in places])
        states = self._answers.marginal_mode(numbers)
        parts = states.split([place.numel() for place in places], 1)
        result = {
            graph[item] if isinstance(item, str) else item: part.reshape(
                [*graph.batch_shape, *place.shape]
            )
            for item, place, part in zip(items, places, parts, strict=True)
        }
        answer = Assignment(result, graph.domain, graph.labels)
        scores = self._answers.marginal_mode_scores(numbers)
        answer.score, answer.bound = (values.reshape(graph.batch_shape) for values in scores)
        answer.optimal = meets(answer.score, answer.bound)
        return answer

    def sample(self, count: int, generator: torch.Generator | None = None) -> Assignment:
        """Independent exact draws: (count, *batch, *shape) state indices per variable or array.

        Raises:
            ImpossibleEvidenceError: the evidence has probability zero.
        """
        count = checked_draws(count, generator, (*self.batch_shape, self.graph.num_variables))
        self._require_possible("sample")
        return Assignment.split(self._answers.sample(count, generator), self.graph, count)

    def rsample(
        self, *, temperature: float, generator: torch.Generator | None = None
    ) -> StateValues:
        """A relaxed draw: weights of the states of every variable, differentiable.

        The marginals of the model with independent Gumbel noise at each state of each variable, all
        at a temperature (the stochastic softmax of Paulus et al. 2020, arXiv:2006.08063). Towards
        temperature 0 they become one-hot vectors of the perturbed model's mode, which is possible
        but no exact draw from the posterior unless the variables are independent: use
        `sample(count)` for these. `Chain.rsample` draws exactly.

        Costs the solution of one more model of this shape, by the same scheduler; with message
        passing the weights are beliefs. With an estimate the draw is on the states of a replicate
        drawn in proportion to its Z, and zero elsewhere.

        Args:
            temperature: above 0.
            generator: of the noise.

        Raises:
            ImpossibleEvidenceError: the evidence has probability zero.
            ModelError: a temperature that is not above 0.
            UnsupportedError: the estimator has none.
        """
        # Few ask for relaxed draws.
        from rdpgraph.structures.draws import checked_temperature, perturbed_graph
        from rdpgraph.structures.structure_potential import StructurePotential

        checked_temperature(temperature)
        self._require_possible("relaxed sample")
        self._require_room()
        joint = any(isinstance(each.potential, StructurePotential) for each in self.graph.blocks)
        if joint or self.solved is not self.graph:  # a structure draws by its own recursion
            return StateValues.split(self._answers.rsample(temperature, generator), self.graph)
        return self.again(perturbed_graph(self.graph, temperature, generator)).marginals()

    def _require_possible(self, what: str, known: Tensor | None = None) -> None:
        if known is None or not bool(known.all()):
            _ = self._are_finite
            known = self._answers.possible() if known is None else known
            from rdpgraph.model.soundness import require_possible

            require_possible(f"There is no {what}", known.reshape(self.graph.batch_shape))


def _listed(asked: str, items: Factor | Iterable[Named]) -> list[Named]:
    """A list of the variables of a factor, or of those given."""
    if isinstance(items, Factor):
        return list(items.variables)
    if isinstance(items, str | Variable | VariableArray):
        name = items if isinstance(items, str) else items.name
        raise ModelError(f"{asked} needs a list of variables, as [{name!r}]; got {name!r} alone.")
    if not isinstance(items, Iterable):
        raise ModelError(f"{asked} needs a list of variables; got {items!r:.80}.")
    return list(items)
