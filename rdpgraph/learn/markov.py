"""Hidden Markov and semi-Markov models, of chains and of segments."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import typed
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.learn.densities import Durations
from rdpgraph.learn.hidden import HiddenStates, Values, transition_of
from rdpgraph.learn.parameters import Parameter, Probabilities, require_table
from rdpgraph.learn.sequences import PaddedBatch
from rdpgraph.logspace.logmatrix import finite, safe_log, soft_sum
from rdpgraph.structures.chain.constructors import with_ends
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.semimarkov import SemiMarkov


@dataclass(eq=False, kw_only=True)
class HMM(HiddenStates):
    """Hidden Markov model, fitted to sequences; its structure is a `Chain`.

    Args:
        states: their number.
        emission: of what is observed in a state, such as `Gaussian`.
        start: (states,) log-probabilities of the first state to start from; None: uniform.
        transition: (states, states) those of a state after another, [from, to]. Entries of -inf
            stay in both, as those of `left_to_right`. `LowRank`: a fit of a rank goes on. A module
            of torch gives scores (rows, states, states) of the covariates (rows, k) of the step
            that a transition leads into, whose softmax over the last dim they are; its weights are
            fitted by gradient in every step of EM. `Rates` is one for irregular times. Or a
            `Parameter`, such as `Probabilities` of which some entries are held.
        end: (states,) log-probabilities that a sequence ends after each state, to start from; they
            are fitted with the transition, whose rows are those of sequences that go on. None:
            sequences are cut anywhere.
        start_prior: pseudo-counts of first states.
        transition_prior: pseudo-counts of transitions, one number or a table.
        fixed: names of what stays as it is given: "start", "transition", "emission". Tables of an
            emission are fixed by its own argument of that name.
        sticky: additional pseudo-counts for staying in a state.
        rank: transitions go through so many classes, ``p(j | i) = sum_k p(k | i) p(j | k)``; a
            step then costs O(states rank). None: any table.
        starts: fits, of which the best is taken. Those in which a state collapses are dropped.
        limit: of steps.
        tolerance: the gain of a step, in nats for each sequence, below which a fit ends.
        hard: counts are those of the most probable states, whose score takes the place of the
            log-likelihood.
        progress: called with a `Step` after every step.
        covariates: columns of X that are covariates, without gaps; the others are observed.
            `Driven` is an emission that depends on them.

    Attributes:
        fit_: the `Fit`; its history is the log-likelihood plus the log-prior (nats).

    Example:
        >>> from rdpgraph.learn import HMM, Gaussian
        >>> steps = torch.tensor([0.1, -0.2, 0.1, 5.2, 4.9, 5.1, 0.0, 0.2, 5.0])
        >>> model = HMM(2, Gaussian(covariance_prior=0.01)).fit(steps)
        >>> states = model.predict(steps)
        >>> (states == states[0]).tolist()
        [True, True, True, False, False, False, True, True, False]
    """

    sticky: float = 0.0
    end: Any = None

    @property
    def end_(self) -> Tensor:
        """(states,) log-probabilities that a sequence ends after each state."""
        if self.end is None:
            raise ModelError("The HMM has no end: give end=, log-probabilities to start from.")
        return self._fitted()["transition"].value(None)[:, -1]

    @property
    def transition_(self) -> Any:
        """As of `HiddenStates`; with an end, of sequences that go on."""
        table = super().transition_
        if self.end is None:
            return table
        totals = soft_sum(going := table[:, :-1], 1).unsqueeze(1)
        alike = torch.full_like(going, -math.log(self.states))
        return torch.where(totals > -math.inf, going - finite(totals), alike)

    def _tables(self, like: Tensor, generator: torch.Generator | None) -> dict[str, Parameter]:
        if self.sticky and self._of_rank:
            raise ModelError("HMM of low rank takes no sticky prior: it has no table to put it on.")
        prior = present("HMM's transition_prior", self.transition_prior)
        prior = torch.as_tensor(prior, dtype=torch.float64)
        if self.sticky:
            prior = prior + self.sticky * torch.eye(self.states, dtype=torch.float64)
        tables = self._start_tables(like, prior, None if self.end is not None else generator)
        if self.end is None:
            return tables
        follows = tables.get("transition")
        if not isinstance(follows, Probabilities) or isinstance(self.transition, Parameter):
            raise ModelError("HMM with an end needs a table of transitions, and no rank or module.")
        ends = present("HMM's end", self.end)
        ends = torch.as_tensor(ends, dtype=torch.float64, device=like.device)
        if tuple(ends.shape) != (self.states,) or not bool((ends <= 0).all()):
            raise ModelError(
                f"HMM needs an end of log-probabilities {(self.states,)}; got "
                f"{tuple(ends.shape)}, the largest {float(ends.max()) if ends.numel() else 0.0:g}."
            )
        # One table: the states that follow, and the end.
        going = safe_log(-torch.expm1(ends)).unsqueeze(1) + follows.log_values
        joint = torch.cat([going, ends.unsqueeze(1)], 1)
        pseudo = torch.as_tensor(follows.prior).to(joint)
        if pseudo.ndim and pseudo.shape[-1] == self.states > 1:
            pseudo = torch.nn.functional.pad(pseudo, (0, 1))
        elif self.sticky or pseudo.ndim:
            pseudo = torch.nn.functional.pad(pseudo.expand(follows.log_values.shape), (0, 1))
        made = Probabilities(joint, prior=pseudo)
        start = tables["start"]
        if generator is not None:
            start, made = start.drawn(generator), made.drawn(generator)
        return {**tables, "start": start, "transition": made}

    def _model(self, values: Values, rows: PaddedBatch) -> Chain:
        transition, end = transition_of(values), None
        if self.end is not None and isinstance(transition, Tensor):
            transition, end = transition[..., :-1], transition[..., -1]
        lengths = None if end is None else rows["lengths"]
        unary = with_ends(values["emission"], values["start"], end, lengths)
        return Chain(unary, transition, lengths=rows["lengths"])


@dataclass(eq=False, kw_only=True)
class HSMM(HiddenStates):
    """Hidden semi-Markov model: each state has a distribution of durations.

    Its structure is a `SemiMarkov`. The last segment of a sequence goes on beyond its end with the
    probability that it lasts longer (Guedon 2003, "Estimating hidden semi-Markov chains"), so that
    probabilities of sequences of any one length sum to one; with ``censored=False`` it ends there.

    Args:
        states: their number.
        emission: of what is observed in a state.
        durations: the longest duration D; or (D, states) log-probabilities of 1 to D steps to start
            from, of which -inf stays; or `Durations`, of a family.
        start: as for `HMM`; so are start_prior and transition_prior.
        transition: as for `HMM`, between segments; None: no state follows itself, unless there is a
            rank.
        covariates: as for `HMM`, for an emission that depends on them.
        rank: as for `HMM`, between segments.
        duration_prior: pseudo-counts of durations.
        fixed: as for `HMM`, and "durations".
        censored: as said above.
        starts: as for `HMM`; so are limit, tolerance, hard and progress.

    Attributes:
        fit_: the `Fit`.
    """

    _cells = 2**21  # large, as the layout of steps costs the same for any batch
    _names = {**HiddenStates._names, "durations": ("duration",)}  # noqa: RUF012
    durations: Any = field(kw_only=False)
    duration_prior: Any = 0.0
    censored: bool = True

    @property
    def duration_(self) -> Tensor:
        """(D, states) log-probabilities of 1 to D steps."""
        return self._fitted()["duration"].value(None)

    @property
    def _complete(self) -> bool:
        given = self.durations
        known = given.density.given if isinstance(given, Durations) else not is_whole(given)
        return super()._complete and known

    @property
    def _longest(self) -> int:
        given = self.durations
        if isinstance(given, Durations):
            return given.longest
        if not is_whole(given, 1) and not getattr(given, "shape", None):
            raise ModelError(
                "HSMM needs durations: the longest, at least 1, log-probabilities (D, states), or "
                f"learn.Durations; got {given!r:.80}."
            )
        return int(given) if is_whole(given) else given.shape[0]

    def _tables(self, like: Tensor, generator: torch.Generator | None) -> dict[str, Parameter]:
        states, prior = self.states, self.transition_prior
        if isinstance(self.transition, torch.nn.Module):
            raise ModelError(
                "HSMM takes a table of transitions between segments; a module of covariates is the "
                "transition of an HMM."
            )
        tables = self._start_tables(like, prior, generator)
        if self.transition is None and states > 1 and not self._of_rank:
            self._require_table("transition", (states, states))
            table = torch.full((states, states), -math.log(states - 1), dtype=torch.float64)
            table = table.to(like.device).fill_diagonal_(-math.inf)
            follows = Probabilities(table, prior=prior)
            tables["transition"] = follows if generator is None else follows.drawn(generator)
        if isinstance(self.durations, Durations):
            return {**tables, "duration": self.durations.blank(states, like)}
        shape = (self._longest, states)
        lasts = self._start_table("durations", shape, like, self.duration_prior, generator, 0)
        return {**tables, "duration": lasts}

    def _model(self, values: Values, rows: PaddedBatch) -> SemiMarkov:
        emission, duration, lengths = values["emission"], values["duration"], rows["lengths"]
        transition = transition_of(values)
        sums = SemiMarkov.from_unary(emission, transition, torch.zeros_like(duration))
        steps, longest = sums.unary.shape[1:3]
        place = torch.arange(steps, device=emission.device)
        lasts = duration.expand(steps, *duration.shape)
        if self.censored:
            tails = safe_log(duration.exp().flip(0).cumsum(0).flip(0))
            last = (place == lengths.unsqueeze(1) - 1)[:, :, None, None]
            lasts = torch.where(last, tails, duration)
        age = torch.arange(longest, device=emission.device)
        first = (place.unsqueeze(1) == age).unsqueeze(2)
        segments = sums.unary + lasts + torch.where(first, values["start"], 0.0)
        return SemiMarkov(segments, transition, lengths=lengths)


@typed(states="[0, inf)", skip="[0, inf)")
def left_to_right(states: int, skip: int = 1) -> Tensor:
    """(states, states) uniform log-probabilities of staying, or going up to so many states on.

    Raises:
        ModelError: a number of states or steps that is none.
        BudgetError: a table that would not fit into the memory.
    """
    require_table("The table of left_to_right", (states, states), "take fewer states")
    place = torch.arange(states)
    ahead = place - place.unsqueeze(1)
    allowed = ((ahead >= 0) & (ahead <= skip)).to(torch.float64)
    return (allowed / allowed.sum(1, keepdim=True)).log()
