"""Hidden Markov and semi-Markov models, of chains and of segments."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.learn.densities import Durations
from rdpgraph.learn.hidden import HiddenStates, Values
from rdpgraph.learn.parameters import Parameter, Probabilities
from rdpgraph.learn.sequences import PaddedBatch
from rdpgraph.model.potentials.lowrank import LowRank
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
            stay in both, as those of `left_to_right`. `LowRank`: a fit of a rank goes on.
        start_prior: pseudo-counts of first states.
        transition_prior: pseudo-counts of transitions, one number or a table.
        sticky: more pseudo-counts, of staying in a state.
        rank: transitions go through so many classes, ``p(j | i) = sum_k p(k | i) p(j | k)``; a
            step then costs O(states rank). None: any table.
        starts: fits, of which the best is taken.
        limit: of steps.
        tolerance: the gain of a step, in nats for each sequence, below which a fit ends.
        hard: counts are those of the most probable states, whose score takes the place of the
            log-likelihood.
        progress: called with a `Step` after every step.

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
    rank: int | None = None

    @property
    def transition_(self) -> Any:
        """(states, states) log-probabilities, [from, to], or `LowRank`."""
        values = {n: p.value(None) for n, p in self._fitted().items() if n != "emission"}
        return _transition(values)

    @property
    def _complete(self) -> bool:
        return self.transition is not None

    def _tables(self, like: Tensor, generator: torch.Generator | None) -> dict[str, Parameter]:
        states, rank, given = self.states, self.rank, self.transition
        tables: dict[str, Parameter] = {
            "start": self._start_table("start", (states,), like, self.start_prior, generator)
        }
        if rank is None and not isinstance(given, LowRank):
            prior = torch.as_tensor(self.transition_prior, dtype=torch.float64)
            prior = prior + self.sticky * torch.eye(states, dtype=torch.float64)
            tables["transition"] = self._start_table(
                "transition", (states, states), like, prior, generator
            )
            return tables
        begun: list[Tensor] = []
        if isinstance(given, LowRank) and given.shape == (states, states) and rank is None:
            begun = [given.log_left, given.log_right.mT]
        if self.sticky or not (begun or (is_whole(rank, 1) and given is None)):
            raise ModelError(
                f"HMM of low rank needs a rank, at least 1, or a LowRank transition, "
                f"and no sticky prior; got rank {rank!r:.80}."
            )
        if rank is not None:  # equal ranks would stay equal
            generator = generator or torch.Generator()
            begun = [
                torch.full(shape, -math.log(shape[1])) for shape in ((states, rank), (rank, states))
            ]
        for name, table in zip(("into", "out"), begun, strict=True):
            own = Probabilities(table.to(like.device).double(), prior=self.transition_prior)
            tables[name] = own if generator is None else own.drawn(generator)
        return tables

    def _model(self, values: Values, rows: PaddedBatch) -> Chain:
        unary = with_ends(values["emission"], values["start"], None, None)
        return Chain(unary, _transition(values), lengths=rows["lengths"])

    def _path(self, structure: Chain) -> tuple[Tensor, Tensor]:
        path = structure.mode()
        return path, structure.score(path)

    def _marginals(self, structure: Chain) -> Tensor:
        return structure.marginals()


@dataclass(eq=False, kw_only=True)
class HSMM(HiddenStates):
    """Hidden semi-Markov model: a state lasts as long as its own distribution of durations says.

    Its structure is a `SemiMarkov`. The last segment of a sequence goes on beyond its end with the
    probability that it lasts longer (Guedon 2003, "Estimating hidden semi-Markov chains"), so that
    probabilities of sequences of any one length sum to one; with ``censored=False`` it ends there.

    Args:
        states: their number.
        emission: of what is observed in a state.
        durations: the longest duration D; or (D, states) log-probabilities of 1 to D steps to start
            from, of which -inf stays; or `Durations`, of a family.
        start: as for `HMM`; so are start_prior and transition_prior.
        transition: as for `HMM`, between segments; None: no state follows itself.
        duration_prior: pseudo-counts of durations.
        censored: as said above.
        starts: as for `HMM`; so are limit, tolerance, hard and progress.

    Attributes:
        fit_: the `Fit`.
    """

    _cells = 2**21  # large, as the layout of steps costs the same for any batch
    durations: Any = field(kw_only=False)
    duration_prior: Any = 0.0
    censored: bool = True

    @property
    def transition_(self) -> Tensor:
        """(states, states) log-probabilities, [from, to]."""
        return self._fitted()["transition"].value(None)

    @property
    def duration_(self) -> Tensor:
        """(D, states) log-probabilities of 1 to D steps."""
        return self._fitted()["duration"].value(None)

    @property
    def _complete(self) -> bool:
        given = self.durations
        own = given.density.given if isinstance(given, Durations) else not is_whole(given)
        return self.transition is not None and own

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

    @property
    def _width(self) -> int:
        return self.states * self._longest

    def _tables(self, like: Tensor, generator: torch.Generator | None) -> dict[str, Parameter]:
        states, square = self.states, (self.states, self.states)
        prior = self.transition_prior
        follows = self._start_table("transition", square, like, prior, generator)
        if self.transition is None and states > 1:
            table = torch.full(square, -math.log(states - 1), dtype=torch.float64).to(like.device)
            follows = Probabilities(table.fill_diagonal_(-math.inf), prior=prior)
            follows = follows if generator is None else follows.drawn(generator)
        if isinstance(self.durations, Durations):
            lasts: Parameter = self.durations.spread(states, like)
        else:
            shape = (self._longest, states)
            lasts = self._start_table("durations", shape, like, self.duration_prior, generator, 0)
        start = self._start_table("start", (states,), like, self.start_prior, generator)
        return {"start": start, "transition": follows, "duration": lasts}

    def _model(self, values: Values, rows: PaddedBatch) -> SemiMarkov:
        emission, duration, lengths = values["emission"], values["duration"], rows["lengths"]
        sums = SemiMarkov.from_unary(emission, values["transition"], torch.zeros_like(duration))
        steps, longest = sums.unary.shape[1:3]
        place = torch.arange(steps, device=emission.device)
        lasts = duration.expand(steps, *duration.shape)
        if self.censored:
            tails = duration.exp().flip(0).cumsum(0).flip(0)
            tails = torch.where(tails > 0, torch.where(tails > 0, tails, 1.0).log(), -math.inf)
            last = (place == lengths.unsqueeze(1) - 1)[:, :, None, None]
            lasts = torch.where(last, tails, duration)
        age = torch.arange(longest, device=emission.device)
        first = (place.unsqueeze(1) == age).unsqueeze(2)
        segments = sums.unary + lasts + torch.where(first, values["start"], 0.0)
        return SemiMarkov(segments, values["transition"], lengths=lengths)

    def _path(self, structure: SemiMarkov) -> tuple[Tensor, Tensor]:
        cut = structure.mode()
        return cut.labels, structure.score(cut)

    def _marginals(self, structure: SemiMarkov) -> Tensor:
        return structure.position_marginals()


def left_to_right(states: int, skip: int = 1) -> Tensor:
    """(states, states) uniform log-probabilities of staying, or going up to so many states on."""
    place = torch.arange(states)
    ahead = place - place.unsqueeze(1)
    allowed = ((ahead >= 0) & (ahead <= skip)).to(torch.float64)
    return (allowed / allowed.sum(1, keepdim=True)).log()


def _transition(values: Values) -> Tensor | LowRank:
    if "into" in values:
        return LowRank(values["into"], values["out"].mT)
    return values["transition"]
