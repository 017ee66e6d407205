"""Structures that are given by a recursion on a tape."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import ClassVar

import torch
from torch import Tensor

from rdpgraph._core.cache import current_property
from rdpgraph._core.portable import tensors_in
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Structure, is_tracked
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.potentials.table import as_states, checked_log_values, settle
from rdpgraph.model.restriction import gathered
from rdpgraph.structures.chain import paths
from rdpgraph.structures.configurations import KBestConfigurations
from rdpgraph.structures.draws import checked_best, checked_count, perturbed
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.descend import Drawn, best, configurations, descend
from rdpgraph.structures.recursion.down import (
    exhausting,
    log_sum,
    max_marginals,
    mean_values,
    scored_alone,
    usable,
)
from rdpgraph.structures.recursion.inputs import chain_of, known_program
from rdpgraph.structures.recursion.layouts import is_slow, laid_out, whole
from rdpgraph.structures.recursion.moments import cross_entropy, entropy
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value


@dataclass(frozen=True, eq=False)
class Recursion(Structure):
    """A structure that is laid out as a `Tape`, which answers every question.

    A derivation uses some of the sites, each once at most and in one state; its score is the sum
    of their potentials and of its links and rules. A configuration gives the state of each site,
    -1 for unused ones; its score is the log-sum of all derivations with those states.

    Your class sets `site_dims` and lays out its recursion. All answers follow: on CPU or GPU, for
    any batch dims, on all states of the sites or on a few. It may override any of them, such as
    `log_partition` by a kernel.

    The potentials take the widest dtype of all tensors in the fields. log Z, modes and draws are
    computed in it, at least in float32; other answers in float64.

    Attributes:
        unary: (*batch, *sites, states) log-potentials (nats) of the sites' states.
        site_dims: the number of dims of the sites, one for all objects of a class.
        doubles: whether log Z is summed in float64, too.
    """

    site_dims: ClassVar[int] = 1
    doubles: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the potentials; a `__post_init__` of a subclass calls this one."""
        settle(self, "unary")
        checked_log_values(f"{self.name}'s unary", self.unary)
        dtypes = (part.dtype for part in tensors_in(self) if part.is_floating_point())
        dtype = reduce(torch.promote_types, dtypes)
        if dtype != self.unary.dtype:
            object.__setattr__(self, "unary", self.unary.to(dtype))
        if self.unary.ndim <= self._dims or not self.unary.shape[-1]:
            raise ModelError(
                f"{self.name} needs unary (*batch, *sites, states), {self._dims} dims of sites and "
                f"a state at least; got {tuple(self.unary.shape)}."
            )

    @abstractmethod
    def recursion(self, tape: Tape) -> Value:
        """Lay out the recursion, and return the value of the whole, which has one place.

        Sites' potentials come from `tape.sites`, and batch dims from the tape, which may have more
        of them and fewer states than `unary`. Further tensors with batch dims go through
        `tape.flat` and `tape.lengths`.
        """

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[: self.unary.ndim - self._dims - 1])

    @property
    def name(self) -> str:
        """The name of the structure, for error messages."""
        return type(self).__name__

    @property
    def _dims(self) -> int:
        return self.site_dims

    def potentials(self, unary: Tensor) -> Tensor:
        """The potentials of states that may be kept: -inf for those that no derivation has."""
        return unary

    def to_tape(
        self, *, unary: Tensor | None = None, ranks: bool = True, double: bool = False
    ) -> Tape:
        """The tape on which the recursion is written.

        Args:
            unary: other potentials, with further dims in front.
            ranks: see `Tape`.
            double: whether in float64, whatever the dtype of the potentials.
        """
        return whole(self._laid_out(unary, ranks=ranks, double=double))

    def _laid_out(
        self, unary: Tensor | None = None, *, ranks: bool = True, double: bool = False
    ) -> Tape:
        """The tape; its steps may be an earlier one's, with other tensors."""
        blank = self._blank(self.unary if unary is None else unary, ranks=ranks, double=double)
        return laid_out(blank, self)

    def _blank(self, unary: Tensor, *, ranks: bool, double: bool) -> Tape:
        least = torch.float64 if double or self.doubles else torch.float32
        dtype = torch.promote_types(self.unary.dtype, least)
        return Tape(unary, self._dims, ranks=ranks, dtype=dtype)

    def _sum_tape(self) -> Tape:
        """The tape of log Z; cached where it needs no gradient."""
        # A tape laid out without gradients does not show which tensors need them.
        fleeting = is_tracked(self) or not torch.is_grad_enabled()
        return self._laid_out() if fleeting else self._tape

    @current_property(where=is_slow)
    def _tape(self) -> Tape:
        return self._laid_out()

    @current_property(where=is_slow)
    @torch.no_grad()
    def _best_tape(self) -> Tape:
        """The tape of maxima, without gradient."""
        return self._laid_out(ranks=False, double=True)

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; -inf where nothing is possible. Twice differentiable."""
        return log_sum(self._sum_tape()).to(self.unary)

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the scores of configurations (*lead, *batch, *sites); differentiable.

        The recursion on one state of each site; -inf for what is no configuration.

        Raises:
            EvidenceError: another shape, or a state out of range.
        """
        states = as_states(f"A configuration of {self.name}", states)
        shape = tuple(self.unary.shape)
        lead = states.ndim - len(shape) + 1
        if lead < 0 or tuple(states.shape[lead:]) != shape[:-1] or states.dtype != torch.long:
            raise EvidenceError(
                f"{self.name} needs configurations (*lead, *{shape[:-1]}) of int64; got "
                f"{tuple(states.shape)} of {states.dtype}."
            )
        if states.numel() and not -1 <= int(states.min()) <= int(states.max()) < shape[-1]:
            raise EvidenceError(
                f"{self.name} has states 0 to {shape[-1] - 1}, and -1 for a site that is "
                f"not used; got {int(states.min())} to {int(states.max())}."
            )
        used = states >= 0
        wanted = used.flatten(states.ndim - self._dims).sum(-1)
        if machine.serves(self._blank(self.unary, ranks=True, double=True)):
            laid = partial(self._laid_out, double=True)
            score = scored_alone(self.unary, states, wanted, laid, split=lead > 0)
            if score is not None:
                return score.to(self.unary)
        weights = torch.where(used, 0.0, -math.inf).to(self.unary).unsqueeze(-1)
        only = self.restrict(states.clamp(min=0).unsqueeze(-1), weights)
        return exhausting(only.to_tape(double=True), wanted).to(self.unary)

    def entropy(self) -> Tensor:
        """(*batch,) nats, of derivations; 0 where nothing is possible. Differentiable.

        Links and rules of low rank are written out.
        """
        return entropy(self._laid_out(ranks=False, double=True)).to(self.unary)

    def cross_entropy(self, other: "Recursion") -> Tensor:
        """(*batch,) nats: the mean of minus the log-probability in another of the same shape.

        +inf where the other forbids what is possible here; 0 where nothing is. Differentiable in
        both. Links and rules of low rank are written out.

        Raises:
            ModelError: the other has another shape.
        """
        return self._compared(other, divergence=False)

    def kl_divergence(self, other: "Recursion") -> Tensor:
        """(*batch,) nats: `cross_entropy` less `entropy`, choice by choice.

        Raises:
            ModelError: the other has another shape.
        """
        return self._compared(other, divergence=True)

    def _compared(self, other: "Recursion", *, divergence: bool) -> Tensor:
        if type(other) is not type(self) or other.unary.shape != self.unary.shape:
            shape = f" of {tuple(other.unary.shape)}" if isinstance(other, Structure) else ""
            raise ModelError(
                f"{self.name} can be compared only with another of its shape, "
                f"{tuple(self.unary.shape)}; got {type(other).__name__}{shape}."
            )
        tapes = [each._laid_out(ranks=False, double=True) for each in (self, other)]
        return cross_entropy(*tapes, divergence=divergence).to(self.unary)

    @torch.no_grad()
    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) the best score with each state of each site; -inf: none.

        Links and rules of low rank are written out. Not differentiable.
        """
        return max_marginals(self._best_tape)

    @torch.no_grad()
    def mode(self) -> Tensor:
        """(*batch, *sites) the states of one best derivation, -1 at unused sites.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        tape = self._quick_tape(ranks=False) or self._best_tape
        return configurations(tape, 1, name=self.name, best=True)[0]

    def _best(self) -> tuple[Tape, Drawn]:
        """The tape of maxima, and the sites of one best derivation."""
        tape = self._quick_tape(ranks=False) or self._best_tape
        return tape, descend(tape, 1, name=self.name, best=True)

    def _quick_tape(self, *, ranks: bool) -> Tape | None:
        """A tape in float32, where the machine runs it and keeps its digits."""
        blank = self._blank(self.unary, ranks=ranks, double=False)
        if blank.dtype != torch.float32 or not machine.serves(blank):
            return None
        tape = laid_out(blank, self)
        return None if known_program(tape) is None else tape

    def k_best(self, k: int) -> KBestConfigurations:
        """The k best derivations, best first; the scores are differentiable.

        By lazy lists of nodes (Huang and Chiang 2005, algorithm 3); without the compiled machine by
        lists of all entries, in about k times the time and memory of the maxima.

        Raises:
            ModelError: k below 1.
        """
        tape, drawn, scores = self._best_few(k)
        return KBestConfigurations(drawn.states(tape, k), scores)

    def _best_few(self, k: int) -> tuple[Tape, Drawn, Tensor]:
        """A tape, the k best derivations on it, and their scores (k, *batch)."""
        k = checked_best(self.name, k, self.states_shape)
        tracked = is_tracked(self) and torch.is_grad_enabled()
        tape = self._laid_out(ranks=False, double=True) if tracked else self._best_tape
        return tape, *best(tape, k)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, *sites) independent exact draws, as `mode` gives its configuration.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        count = checked_count(count, self.states_shape)
        tape = self._quick_tape(ranks=True) or self._laid_out(double=True)
        return configurations(tape, count, name=self.name, best=False, generator=generator)

    def _draws(self, count: int, generator: torch.Generator | None) -> tuple[Tape, Drawn]:
        """A tape, and the sites of independent draws on it."""
        count = checked_count(count, self.states_shape)
        tape = self._quick_tape(ranks=True) or self._laid_out(double=True)
        return tape, descend(tape, count, name=self.name, best=False, generator=generator)

    @by_autograd
    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, *sites, states) relaxed draws, differentiable.

        Of a chain on all states, in which each site is linked to the one before it and to nothing
        else, they are those of `Chain.rsample`, whose argmaxes are exact draws. Others are a
        stochastic softmax: marginals at a temperature of the model with Gumbel noise on every
        state. As the temperature falls to 0 they become the best configuration of the noisy model,
        which is not an exact draw (Paulus et al. 2020, arXiv:2006.08063). Ranks are written out.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        chain = chain_of(self._laid_out(ranks=False))
        if chain is not None:
            count = checked_count(count, self.unary.shape)
            drawn = paths.relaxed(*chain, count, temperature, generator).to(self.unary)
            return drawn.reshape(count, *self.unary.shape)
        noisy = perturbed(self.unary, count, temperature, generator)

        def log_partition(unary: Tensor) -> Tensor:
            return log_sum(self._laid_out(unary, ranks=False), temperature)

        _, (gradient,) = expectations(log_partition, [noisy], tracked=is_tracked(self))
        return gradient

    def restrict(self, states: Tensor, log_weights: Tensor) -> "KeptStates":
        """The recursion on some states of each site, with weights, as estimators solve it.

        A derivation uses a site once at most, so Z is unbiased if the weights of each site are.

        Args:
            states: (*replicates, *batch, *sites, kept); repeats stay separate.
            log_weights: of that shape; added to the potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        unary = self.potentials(self.unary)
        unary = gathered(self.name, unary, states, log_weights, sites=self._dims)
        return KeptStates(unary, states, self)

    def sites(self) -> Sites | None:
        """The sites that a derivation of an item may use; others have -inf.

        A state's mean factor value is the mean of its links over random states at their other ends,
        averaged over alternative links; rules are left out.
        """
        unary = torch.where(usable(self._shape_only()), self.unary, -math.inf)
        return Sites(unary, restrict=self.restrict, means=self._means)

    def _shape_only(self) -> Tape:
        """The tape on one state of each site; on all states where steps depend on them."""
        unary = torch.zeros_like(self.unary)
        one = KeptStates(unary[..., :1], unary[..., :1].long(), self).to_tape()
        return self.to_tape(unary=unary) if one.tells_states else one

    @torch.no_grad()
    def _means(self, landmarks: int, generator: torch.Generator | None) -> Tensor:
        tape = self._blank(self.unary, ranks=True, double=False)
        tape.finish(self.recursion(tape))
        return mean_values(tape, landmarks, generator).to(self.unary)

    def work(self) -> float:
        return self._sum_tape().work


@dataclass(frozen=True, eq=False)
class KeptStates(Recursion):
    """A recursion on some states of each site, numbered 0..K-1, made by `Recursion.restrict`.

    Potentials are (*lead, *sites, K), weights included; the original's batch dims end the lead.
    """

    states: Tensor = field(metadata={"dims": "unary"})  # (*lead, *sites, K); repeats are separate
    original: Recursion = field(repr=False)

    def __post_init__(self) -> None:
        """Skip the checks, which the original has passed."""

    @property
    def name(self) -> str:
        return self.original.name

    @property
    def _dims(self) -> int:
        return self.original._dims

    def recursion(self, tape: Tape) -> Value:
        return self.original.recursion(tape)

    def _blank(self, unary: Tensor, *, ranks: bool, double: bool) -> Tape:
        dtype = self.original._blank(self.unary, ranks=ranks, double=double).dtype
        return Tape(unary, self._dims, states=self.states, ranks=ranks, dtype=dtype)

    def restrict(self, states: Tensor, log_weights: Tensor) -> "KeptStates":
        """The recursion on some of the states kept."""
        unary = gathered(self.name, self.unary, states, log_weights, sites=self._dims)
        kept = self.states.expand(*states.shape[:-1], -1).gather(-1, states)
        return KeptStates(unary, kept, self.original)
