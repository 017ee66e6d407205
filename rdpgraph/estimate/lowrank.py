"""Low-rank pairwise factors as two factors with an added variable, and proposals from these."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.solution import OF_LOG_PARTITION, OF_MODES, Question, Solution, Status, Value
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.estimate.estimator import Estimator, Lift, Model, Problem, Setting
from rdpgraph.estimate.feature_errors import PartitionError, numbered, partition_error
from rdpgraph.estimate.proposals import LocalGlobal, Proposal, Scores, SoftmaxGlobal, mixed
from rdpgraph.estimate.redrawn import Inexact, Lifted
from rdpgraph.estimate.replicates import averaged
from rdpgraph.estimate.signed import SignedEstimate, checked_waves, signed_features
from rdpgraph.interface.structure import Structure
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import Bilinear, LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.rewrites import with_joint
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.draws import perturbed_graph
from rdpgraph.structures.grammar.rules import BilinearRules, FactorisedRules, LowRankRules

_READ_OFF = {
    *OF_LOG_PARTITION, "status", "possible", "variable_marginals", "sample", "joint", "joints",
}  # fmt: skip
"""Questions that the model with further variables answers in place of the plain one."""


@dataclass(frozen=True, eq=False)
class AddedVariables:
    """Lift from a model with further variables, which come last and are summed out.

    Blocks that are in both models, potential and scopes the same objects, are answered by the one
    that is solved.

    Attributes:
        plain: the model without them: as declared, or its approximation.
        model: its marginal over the plain model's variables is the distribution of that model.
        solve: gives the posterior of a model, as in `Estimator.prepare`.
        exact: the plain model is the one declared.
    """

    plain: FactorGraph
    model: FactorGraph
    solve: Callable[[Model], Any] = field(repr=False)
    exact: bool = True

    def __call__(self, solution: Solution) -> Solution:
        """Solution of the plain model."""
        summed = SummedOut(solution, self)
        return summed if self.exact else Inexact(summed)

    @cached_property
    def blocks(self) -> dict[int, int]:
        """Numbers of the plain model's blocks that are in the other, and their numbers there."""
        known = {(id(b.potential), id(b.scopes)): n for n, b in enumerate(self.model.blocks)}
        asked = ((n, (id(b.potential), id(b.scopes))) for n, b in enumerate(self.plain.blocks))
        return {number: known[key] for number, key in asked if key in known}


@dataclass(frozen=True, eq=False)
class SummedOut(Lifted):
    """Answers of two models: sums over the added variables of one, the rest of the plain one.

    log Z, marginals of variables, samples and the joints of factors that were not rewritten cost
    what the solved model does. Maxima over added variables, and logs of sums over them, are not
    those over states: modes, max-marginals, the entropy and the joints of rewritten factors come
    from the plain model, solved when they are asked for.

    Attributes:
        inner: the solution of the model with further variables.
        lift: both models.
    """

    lift: AddedVariables

    @differentiable_property
    def _plain(self) -> Solution:
        plain: Solution = self.lift.solve(self.lift.plain).solution
        return plain._plain if isinstance(plain, SummedOut) else plain

    def _ask(self, question: Question[Value]) -> Value:
        return question(self._in_charge(question.subject))

    def _in_charge(self, answer: str) -> Solution:
        """The solution that gives an answer."""
        whole = len(self.lift.blocks) == len(self.lift.plain.blocks)  # no factor is rewritten
        if answer in _READ_OFF or (answer == "factor_marginals" and whole):
            return self.inner
        self._require_as_exact(answer)
        return self._plain

    def status_of(self, answer: str) -> Status:
        """Status of the solution that gives the answer."""
        return self._in_charge(answer).status_of(answer)

    def _require_as_exact(self, answer: str) -> None:
        """Refuse an approximation where log Z is exact."""
        if answer in OF_MODES:
            answer = "mode"
        elif answer.startswith("marginal_mode"):  # which says itself if it is proved
            answer = "log_partition"
        exact = self.inner.status_of("log_partition").exact
        if exact and not self._plain.status_of(answer).exact:
            raise BudgetError(
                "Modes, max-marginals, the entropy and joints of low-rank factors need the model "
                "with its full tables, which is beyond exact inference; give Contraction(...) a "
                "larger budget, or use Loopy() for an approximation."
            )

    def variable_marginals(self) -> Tensor:
        """(B, S) of the plain model's variables, by the model with further ones."""
        return self.inner.variable_marginals()[:, : self.lift.plain.domain.total_states]

    def check_factor_marginals(self, block: int) -> None:
        """Refuse marginals that the model with further variables does not form."""
        if block in self.lift.blocks:
            self.inner.check_factor_marginals(self.lift.blocks[block])

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes); those of rewritten factors come from the plain model."""
        if block not in self.lift.blocks:
            self._require_as_exact("factor_marginals")
            return self._plain.factor_marginals(block)
        return self.inner.factor_marginals(self.lift.blocks[block])

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        """(B, *sizes) by one more solution of the model with further variables."""
        graph = self.lift.model
        wider = with_joint(graph, numbers, graph.num_factors)
        return solve(wider).factor_marginals(len(graph.blocks)).squeeze(1)

    def joints(self, number: int) -> Tensor:
        """(B, K, S) with the plain model's variables, by the model with further ones."""
        joint = self.lift.solve(self.lift.model)._joints(number)
        return joint[..., : self.lift.plain.domain.total_states]

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws of the model with further variables, without these."""
        return self.inner.sample(count, generator)[..., : self.lift.plain.num_variables]

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(B, S) of the plain model: at a temperature, further variables do not sum out."""
        graph = perturbed_graph(self.lift.plain, temperature, generator)
        return self.lift.solve(graph).solution.variable_marginals()


@dataclass(frozen=True)
class LowRankFactors(Estimator):
    """Rewrites pairwise `LowRank` or `Bilinear` factors as two factors joined by a rank variable.

    In a graph, ``sum_k l(x, k) r(y, k)`` becomes the factors l and r over a new variable k, and
    the order of contraction does the rest: O(T N r) for a chain, O(N r deg) for a star, whose
    middle has deg factors of rank r. A structure keeps its shape, and gets a `LowRank` transition
    for its `Bilinear` one: one for each step of a `Chain`. A `SemiMarkov` of three or more steps
    takes only one for all steps, and needs ``shared``.

    `LowRank` factors are rewritten exactly. `Bilinear` ones by `RandomFeatures`: with a map for
    every factor, drawn independently, the expectation of Z is the exact Z, on every graph, since
    Z is a sum of products of factors that are independent and right on average. With one map for
    all (``shared``), factors are right on average but their product is not, and Z is biased
    unless there is one factor; memory is then O(N r) and not O(F N r). log Z is too low on
    average in the first case.

    Answers are about the model's variables. log Z, marginals and samples cost what is said above.
    Maxima over states and logarithms do not pass through a sum over ranks: modes, max-marginals,
    the entropy and the joints of rewritten factors have no such shortcut, and are those of the
    graph with its `LowRank` factors left whole.

    Args:
        features: how many random features for each `Bilinear` factor; needed where there is one.
            Where there is none, this and the other arguments have no effect: `LowRank` factors are
            rewritten exactly, and a model without them is solved as it is.
        orthogonal: as for `RandomFeatures`.
        shared: one map for all factors.
        replicates: how many independent draws of the features, solved together and averaged in Z;
            four and more give a standard error. Marginals and samples are those of the replicates
            in proportion to their Z; the mode, the entropy and joints of rewritten factors are
            refused, as an average of models has no shortcut to them.

    Raises:
        ModelError: fewer than one feature or replicate; or, without ``shared``, a structure with
            several factors that takes one low-rank potential for all.

    Source: Chiu 2021, "Random Fourier features for scaling MRFs", sections 3 to 5.
    """

    features: int | None = None
    orthogonal: bool = True
    shared: bool = False
    replicates: int = 1

    def __post_init__(self) -> None:
        require_fields(self, features="[1, inf)", replicates="[1, inf)")

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """Rewrite the model; exact if every factor that was rewritten is a `LowRank`."""
        if isinstance(model, Structure):
            return self._structure(model, generator)
        exact = not any(isinstance(block.potential, Bilinear) for block in model.blocks)
        rewritten = with_ranks(plain := model if exact else self._featured(model, generator))
        if rewritten is model:
            return Problem(model)
        return self._problem(rewritten, AddedVariables(plain, rewritten, solve, exact), exact=exact)

    def _problem(self, model: Model, lift: Lift, *, exact: bool) -> Problem:
        if exact or self.replicates == 1:
            return Problem(model, lift)
        return Problem(model, partial(averaged, lift, self.replicates))

    @typed(samples="[1, inf)")
    def predicted_error(
        self,
        model: Model,
        *,
        solve: Callable[[Model], Any],
        samples: int = 1000,
        signed: bool = False,
        generator: torch.Generator | None = None,
    ) -> PartitionError:
        """Bias and deviation of log Z under one draw of the features, before any is drawn.

        With independent maps the second moment of Z^ is the Z of two copies of the model, joined
        by every factor: where that fits, on chains, trees and graphs of few states, it is summed
        exactly. Elsewhere it is an average over pairs of draws from the model, of the product over
        factors of ``1 + (exp(s . s') - 1) / d`` with s = x + y of the two states of a factor. Both
        are about independent features; orthogonal ones err less. With one map for all factors it is
        an expansion to order 1 / d, as for a `Hypertree` with `BilinearRules`, which uses rules
        repeatedly. R replicates divide the variance by R.

        Args:
            model: to be solved exactly, or with samples: a smaller one stands for a larger.
            solve: `rdpgraph.infer`.
            samples: pairs of draws, or drawn trees.
            signed: the error of `signed`, by cosines and sines.
            generator: the randomness.

        Raises:
            ModelError: features that are not asked for, or a structure without a `factor_graph`.

        Source: "Random Fourier features for scaling MRFs", sections 2.2 and 4.2, left open there.
        """
        if self.features is None:
            raise ModelError("predicted_error needs LowRankFactors(features=...).")
        if signed:
            checked_waves(self.features, shared=self.shared)
        return partition_error(
            model, self.features, shared=self.shared, signed=signed, samples=samples, solve=solve,
            generator=generator,
        )  # fmt: skip

    @typed()
    def signed(self, model: Model, *, generator: torch.Generator | None = None) -> SignedEstimate:
        """Z of a chain or a forest by cosines and sines in place of positive features.

        ``exp(x . y) = exp((|x|^2 + |y|^2) / 2) E_w[cos w . (x - y)]`` with Gaussian w: some values
        are negative, and so may messages and Z^ be. Factors draw independent directions, so Z^ is
        unbiased. The squared error of a pair, relative to its squared value, is
        ``4 sinh^2(|x - y|^2 / 2) / d``, that of positive features ``(exp(|x + y|^2) - 1) / d``: so
        these are better where x and y are alike in the pairs that weigh most. Other factors are
        summed as they are. O(T N d) for a chain, in doubles.

        Args:
            model: a `Chain`, or a graph without cycles of factors over one and two variables.
            generator: the randomness.

        Raises:
            ModelError: one map for all factors, or a number of features that is odd.
            UnsupportedError: a structure that is not written as factors, a factor over three
                variables and more, or a cycle: engines for these sum logs of positive values.

        Source: Rahimi and Recht 2007; errors: Choromanski et al. 2021 (arXiv:2009.14794), lemma 2.
        """
        return signed_features(
            model, checked_waves(self.features, shared=self.shared), replicates=self.replicates,
            orthogonal=self.orthogonal, generator=generator,
        )  # fmt: skip

    def _structure(self, model: Structure, generator: torch.Generator | None) -> Problem:
        """A structure with low-rank potentials instead of bilinear ones.

        One for each step if the structure takes that: a field of three dims after the batch.
        """
        changed: dict[str, Any] = {}
        for part in fields(model) if is_dataclass(model) else ():
            value = getattr(model, part.name)
            if isinstance(value, BilinearRules):
                low = self._low_rank(value, value.shape[:1], len(value.batch_shape), generator)
                changed[part.name] = FactorisedRules(low.log_left, low.log_right)
            if isinstance(value, Bilinear):
                lead, steps, apart = value.lead(2), (), 0
                if part.metadata.get("dims") == 3:
                    apart = max(model.unary.shape[len(model.batch_shape)] - 1, 1)
                    steps = lead[-1:] if math.prod(lead) > 1 else (apart,)
                low = self._low_rank(value, steps, len(model.batch_shape), generator)
                if self.replicates > 1 and self.shared and apart:  # a step for each in a batch
                    sides = (low.log_left, low.log_right)
                    lead = (*low.lead(2)[:-1], apart)
                    low = LowRank(*(side.expand(*lead, -1, -1) for side in sides))
                changed[part.name] = low
        if not changed:
            return Problem(model)
        try:
            if self.replicates > 1:
                for part in fields(model):  # those that have the dims of the batch, no fewer
                    value = getattr(model, part.name)
                    whole = part.name == "unary" or part.metadata.get("dims") == 0
                    if whole and value is not None:
                        changed[part.name] = value.expand(self.replicates, *value.shape)
            return self._problem(replace(model, **changed), Inexact, exact=False)
        except ModelError:
            if self.shared:
                raise
            raise ModelError(
                f"LowRankFactors draws a random map for each factor, but {type(model).__name__} "
                "takes a single LowRank for all. Use LowRankFactors(..., shared=True), with which "
                "Z is biased."
            ) from None

    def _low_rank(
        self,
        potential: Bilinear | BilinearRules,
        maps: tuple[int, ...],
        batch: int,
        generator: torch.Generator | None,
    ) -> LowRank:
        """Features of a potential: a map for each of ``maps``, dims after those of a batch."""
        if self.features is None:
            raise ModelError(
                "LowRankFactors needs a number of features for a Bilinear potential; give "
                "LowRankFactors(features=...)."
            )
        each = () if self.shared or math.prod(maps) == 1 else maps
        if self.replicates > 1:
            each = self.replicates, *(1,) * batch, *(each or (1,) * len(maps))
        drawn = RandomFeatures(
            potential.left.shape[-1], self.features, orthogonal=self.orthogonal, maps=each,
            generator=generator, dtype=potential.left.dtype,
        )  # fmt: skip
        return drawn.low_rank(potential.left, potential.right)

    def _featured(self, graph: FactorGraph, generator: torch.Generator | None) -> FactorGraph:
        """Graph with random features instead of `Bilinear` potentials."""
        blocks = list[Block]()
        for block in graph.blocks:
            potential = block.select()
            if isinstance(potential, Bilinear):
                low = self._low_rank(potential, (block.count,), len(graph.batch_shape), generator)
                block = Block(block.scopes, low, low.lead(2)[-1:], None, block.declared)
            blocks.append(block)
        return FactorGraph.from_blocks(graph.domain, blocks, graph.observed)


def with_ranks(graph: FactorGraph) -> FactorGraph:
    """Graph with every block of `LowRank` potentials as two over new variables, which come last."""
    blocks, ranks, count = list[Block](), list[VariableArray](), graph.num_variables
    for number, block in enumerate(graph.blocks):
        potential = block.select()
        if not isinstance(potential, LowRank):
            blocks.append(block)
            continue
        ranks.append(VariableArray(f"rank {number}", (block.count,), potential.rank))
        rank = torch.arange(count, count + block.count, device="cpu")
        count += block.count
        for slot, values in enumerate((potential.log_left, potential.log_right)):
            values = values if values.ndim > 2 else values.unsqueeze(0)
            scopes = torch.stack([block.scopes[:, slot], rank], 1)
            shape = (values.shape[-3],)
            blocks.append(Block(scopes, Table.from_logs(values), shape, None, block.declared))
    if not ranks:
        return graph
    observed = graph.observed
    if observed is not None:
        more = count - graph.num_variables
        observed = torch.nn.functional.pad(observed, (0, more), value=MISSING)
    domain = Domain.of([*graph.variables, *ranks])
    return FactorGraph.from_blocks(domain, list(numbered(blocks)), observed)


_CHEAP = 2.0**20
"""Entries of tables that are summed exactly beside factors of low rank, whatever these cost."""


def _require_ranks(setting: Setting, features: int | None) -> None:
    """Refuse a model whose low-rank form would cost what exact inference does."""
    model, remedy = setting.model, "use Pilot(), which needs no ranks"
    if isinstance(model, Structure):
        parts = [getattr(model, part.name) for part in fields(model)]
        if not any(isinstance(part, _RANKED) for part in parts):
            raise ModelError(
                f"LowRankPilot solves a model of low rank, and this {type(model).__name__} has no "
                f"LowRank or Bilinear potential or rules: {remedy}."
            )
        return
    # States that are possible by evidence and hard zeros; observed variables are no sites.
    sizes = torch.ones_like(model.domain.sizes)
    for sites in setting.groups:
        assert sites.numbers is not None
        possible = (sites.unary > -math.inf).reshape(-1, *sites.unary.shape[-2:]).any(0)
        sizes[sites.numbers.cpu()] = possible.sum(-1).to(sizes)
    # The work of factors with ranks, and the entries of tables of the others.
    ranked, whole = 0.0, dict[int, float]()
    for number, block in enumerate(model.blocks):
        potential, free = block.potential, sizes[block.scopes].double()
        if isinstance(potential, LowRank | Bilinear):
            rank = potential.rank if isinstance(potential, LowRank) else features or 1
            ranked += rank * float(free.sum())
        elif block.arity > 1 and block.select().decompose() is None:
            whole[number] = float(free.prod(1).sum())
    if not whole or (ranked and sum(whole.values()) <= max(ranked, _CHEAP)):
        return
    worst = model.blocks[max(whole, key=whole.__getitem__)]
    names = [model.domain.variable(number).name for number in worst.scopes[0].tolist()]
    raise ModelError(
        f"LowRankPilot needs large factors to be LowRank or Bilinear, and the factor over "
        f"{names!r:.80} of shape {worst.sizes} is neither: {remedy}."
    )


_RANKED = (LowRank, Bilinear, PairOperator, BilinearRules, FactorisedRules, LowRankRules)


@dataclass(frozen=True)
class LowRankPilot(Proposal):
    """Scores states by their marginals in a model with random features in place of `Bilinear`.

    Messages of the low-rank model look ahead and back over all states, in O(T N r) for a chain,
    where other proposals see a site and its neighbours alone. States drawn by them have weights
    that keep Z unbiased, however poor the features are: those are one map for all factors, and
    their error costs variance. As good as the features: with a predicted relative error
    (`RandomFeatures.predicted_error`) below 1 it comes close to the exact marginals, and above that
    it may be worse than the base alone. `LowRank` potentials are used as they are, and the
    marginals are then exact.

    Factors of other kinds are summed whole. A model in which these cost more than the ones of low
    rank, or that has none of these, is refused: `Pilot` needs no ranks.

    Args:
        features: for each `Bilinear` factor, without effect where there is none.
        base: mixed in, for states that the features miss.
        share: the part of the low-rank marginals in the mixture.

    Raises:
        ModelError: a share outside (0, 1); when states are chosen, a model without ranks.
    """

    features: int | None = None
    base: Proposal = field(default_factory=lambda: LocalGlobal(SoftmaxGlobal()))
    share: float = 0.5

    def __post_init__(self) -> None:
        require_fields(self, features="[1, inf)", share="(0, 1)")

    def scores_of(self, setting: Setting) -> Scores:
        """Mixture of the low-rank marginals and the base."""
        _require_ranks(setting, self.features)
        rewrite, solve = LowRankFactors(self.features, shared=True), setting.solve
        low = rewrite.prepare(setting.model, solve=solve, generator=setting.generator).model
        marginals = tuple(part.detach().log() for part in setting.marginals(solve(low)))
        return mixed((marginals, self.base.scores_of(setting)), (self.share, 1.0 - self.share))
