"""Parity models: independent bits whose parities are observed, as of codes and their errors."""

import math
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from os import PathLike
from os.path import exists
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import ArrayLike, broadcast_shapes
from rdpgraph.errors import BudgetError, EvidenceError, ModelError
from rdpgraph.interface.structure import Match
from rdpgraph.io.detectors import is_detectors, parse_detectors, read_detectors
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.table import Table, as_values, checked_log_values
from rdpgraph.model.restriction import Support
from rdpgraph.model.soundness import require_possible
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.draws import (
    KBestConfigurations,
    checked_best,
    checked_count,
    require_generator,
)
from rdpgraph.structures.parity import sweeps
from rdpgraph.structures.parity.kept import WIDER, KeptCosets, kept_cosets
from rdpgraph.structures.parity.parities import Parities, recognised
from rdpgraph.structures.parity.sweeps import ParityCost, checked_syndrome, normalised
from rdpgraph.structures.summed_scores import SummedScores


@dataclass(frozen=True, eq=False)
class ParityModel(SummedScores):
    """Independent bits, errors, some of whose parities, the checks, are observed.

    Sites are errors, with the states 0 (did not happen) and 1. log Z is log P(s), the
    log-probability of the syndrome; marginals are P(e | s), the mode is the most probable set of
    errors, samples are drawn from P(e | s). Observables are parities of interest: `log_cosets`
    gives log P(s, l) for all their values.

    Exact answers sweep over the checks: one opens with the first error that flips it, and closes
    after the last, in an order that leaves few open. A state is the parities of open checks that
    are still to be explained, so that an answer takes about errors x 2^open, without cancellation;
    `cost()` gives the open checks. `kept(states)` answers where that does not fit. Gradients flow
    to log-odds and log-potentials. Answers on the CPU are compiled; masses that may be over 10^260
    apart, and second derivatives, are left to torch.

    Args:
        checks: (checks, errors) which errors flip which checks, odd entries: dense, or sparse of
            scipy or torch, or the path of a file: alist, or scipy's ``.npz``.
        log_odds: (*batch, errors) log p - log (1 - p) of each error; -inf and +inf for p = 0 and 1.
        observables: (observables, errors), as checks. All cosets of 20 are listed at most;
            `decoding.CosetDecoder` decides on any number.
        syndrome: (*batch, checks) 0 or 1, and -1 where a check is erased; default: none is known.
        unary: (*batch, errors, 2) log-potentials (nats) instead of log-odds.

    Raises:
        ModelError: shapes that do not fit, NaN, no error at all.
        EvidenceError: a syndrome of another length, or of other numbers.
        FileFormatError, OSError: a file that cannot be read, or is no matrix.

    Example:
        >>> flips = ParityModel([[1, 1, 0], [0, 1, 1]], torch.tensor([-2.0, -1.0, -2.0]))
        >>> flips.condition(torch.tensor([[1, 1], [1, 0], [1, -1]])).mode()
        tensor([[0, 1, 0],
                [1, 0, 0],
                [0, 1, 0]])
    """

    unary: Tensor = field(kw_only=True, default=None)  # pyright: ignore[reportAssignmentType]
    checks: Any = None
    log_odds: InitVar[Any] = None
    observables: InitVar[Any] = field(kw_only=True, default=None)
    syndrome: Tensor | None = field(kw_only=True, default=None, metadata={"dims": 1})
    # (*batch, errors, 2) weights that are 0, with the gradients that their logs in unary have lost.
    _zeros: Tensor | None = field(kw_only=True, default=None, repr=False, metadata={"dims": 2})

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            checks: Any,
            log_odds: ArrayLike | None = None,
            *,
            observables: Any = None,
            syndrome: ArrayLike | None = None,
            unary: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self, log_odds: Any, observables: Any) -> None:
        parities = Parities.of(self.checks, observables)
        object.__setattr__(self, "checks", parities)
        total = len(parities.columns)
        given: Any = self.unary
        if (log_odds is None) == (given is None):
            raise ModelError("ParityModel needs log_odds, or unary log-potentials, not both.")
        # Log-odds x of an error are the log-probabilities log sigmoid(-x) and log sigmoid(x).
        if log_odds is not None:
            odds = as_values("ParityModel's log_odds", log_odds)
            both = torch.stack([-odds, odds], -1) if odds.ndim else odds
            unary = torch.nn.functional.logsigmoid(both)
        else:
            unary = as_values("ParityModel's unary", given)
        checked_log_values("ParityModel's unary", unary)
        if unary.ndim < 2 or tuple(unary.shape[-2:]) != (total, 2):
            shape = tuple(unary.shape if log_odds is None else unary.shape[:-1])
            raise ModelError(
                f"ParityModel of {parities} needs log-odds (*batch, errors), or "
                f"unary (*batch, errors, 2); got {shape}."
            )
        if self.syndrome is not None:
            # Syndromes and potentials broadcast to one batch.
            syndrome = checked_syndrome(self.syndrome, parities.num_checks).to(unary.device)
            object.__setattr__(self, "syndrome", syndrome)
            try:
                batch = broadcast_shapes(unary.shape[:-2], syndrome.shape[:-1])
            except RuntimeError:
                raise EvidenceError(
                    f"ParityModel of batch {tuple(unary.shape[:-2])} needs syndromes whose batch "
                    f"dims broadcast with these; got shape {tuple(syndrome.shape)}."
                ) from None
            unary = unary.expand(*batch, total, 2)
        object.__setattr__(self, "unary", unary)
        if self._zeros is not None:
            object.__setattr__(self, "_zeros", self._zeros.expand(unary.shape))

    @classmethod
    def from_dem(cls, model: Any, *, dtype: torch.dtype = torch.float64) -> "ParityModel":
        r"""Return the model of the errors of a detector error model: of stim, its text, or a file.

        All of stim's language is read, and stim is not needed. Equal errors stay separate, and are
        merged where they are summed over. A text without errors gives a model without errors, whose
        only possible syndrome is all zeros.

        Args:
            model: a ``stim.DetectorErrorModel``, its text, or the path of a file.
            dtype: of the log-odds.

        Raises:
            FileFormatError: the text is not in stim's language; the error gives the line.
            OSError: the file cannot be read.

        Example:
            >>> ParityModel.from_dem("error(0.1) D0 L0\nerror(0.2) D0").log_cosets().exp()
            tensor([0.9000, 0.1000], dtype=torch.float64)
        """
        path = isinstance(model, PathLike)
        if isinstance(model, str) and not is_detectors(model):
            path = "(" not in model or exists(model)
        read = read_detectors(model) if path else parse_detectors(str(model))
        parities = Parities(read.columns, read.num_detectors, read.num_observables)
        return cls(parities, torch.tensor(read.rates, dtype=dtype).logit())

    @classmethod
    def from_rates(
        cls, checks: Any, rates: ArrayLike, *, observables: Any = None,
        syndrome: ArrayLike | None = None,
    ) -> "ParityModel":  # fmt: skip
        """The model with given probabilities of errors.

        Args:
            checks: as for the class.
            rates: (*batch, errors) in 0..1; above one half is allowed. At rates of 0 and 1 the
                gradients of `log_partition`, `log_cosets`, `score` and `log_prob` are the
                derivatives into the interval; those of other answers are zero there.
            observables: as for the class.
            syndrome: as for the class.

        Raises:
            ModelError: a rate below 0 or above 1.
        """
        given = in_full_precision(as_values("ParityModel's rates", rates))
        wrong = given[~((given >= 0) & (given <= 1))]
        if wrong.numel():
            raise ModelError(
                f"ParityModel needs rates of errors from 0 to 1; got {float(wrong[0]):g}."
            )
        absent = torch.where(given < 1, -given, -0.5).log1p().where(given < 1, -math.inf)
        unary = torch.stack([absent, safe_log(given)], -1)
        model = cls(checks, observables=observables, syndrome=syndrome, unary=unary)
        weights = torch.stack([1 - given, given], -1)
        if not weights.requires_grad or bool((weights > 0).all()):
            return model
        return replace(model, _zeros=torch.where(weights > 0, 0.0, weights))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[:-2])

    def condition(self, syndrome: ArrayLike) -> Self:
        """The same errors, given other syndromes (*batch, checks); -1: erased."""
        given = checked_syndrome(syndrome, self.checks.num_checks)
        return replace(self, syndrome=given)

    def with_unary(self, unary: Tensor) -> Self:
        return replace(self, unary=unary, _zeros=None)

    def cost(self) -> ParityCost:
        """The cost of exact answers: open checks, work and memory for a shot."""
        program, checks = self.checks.program(observables=True, merged=True), self.checks
        memory = 8.0 * 2.0 ** min(program.width, 900)
        return ParityCost(
            checks.open_checks, program.work, memory, checks.order, checks.undetectable
        )

    def work(self) -> float:
        program = self.checks.program(observables=False, merged=True)
        return math.prod(self.batch_shape) * program.work

    def width(self) -> float:
        return min(900.0, self.checks.program(observables=False, merged=True).width)

    def log_partition(self) -> Tensor:
        """(*batch,) log P(s) in nats; -inf where no errors explain the syndrome."""
        return self._cosets(observables=False)[..., 0]

    def log_cosets(self) -> Tensor:
        """(*batch, 2^observables) log P(s, l) nats, with gradients; bit i of l is observable i.

        Raises:
            ModelError: more than 20 observables.
        """
        self._require_list()
        return self._cosets(observables=True)

    def _require_list(self) -> None:
        """Raise `ModelError` if there are too many cosets to list."""
        if self.checks.num_observables > tuning.MOST_OBSERVABLES:
            raise ModelError(
                f"The cosets of {tuning.MOST_OBSERVABLES} observables are listed at most; this "
                f"ParityModel has {self.checks.num_observables}: give those that are asked about, "
                "or decide on all of them by decoding.CosetDecoder."
            )

    def coset_probabilities(self) -> Tensor:
        """(*batch, 2^observables) P(l | s); uniform where the syndrome is impossible."""
        return normalised(self.log_cosets())

    def coset_entropy(self) -> Tensor:
        """(*batch,) the entropy of the observables given the syndrome, in nats."""
        chances = self.coset_probabilities()
        return -(chances * torch.where(chances > 0, chances, 1.0).log()).sum(-1)

    @typed(states="[1, inf)", replicates="[0, inf)")
    def kept(
        self, states: int, *, replicates: int = 0, generator: torch.Generator | None = None,
        bounded: bool = True,
    ) -> KeptCosets:  # fmt: skip
        """Log P(s, l) from the most promising states, about ``states`` at each step.

        States are compared by their masses times an estimate of what is ahead of them: belief
        propagation on the checks that are not closed yet, for each syndrome. Without replicates the
        others are dropped, for a lower bound, and ``log_dropped`` bounds what they might have
        added; ``interval`` has the ends that hold P(l | s) for certain, and ``log_kept`` estimates
        the part of P(s) that was kept. Once some are dropped, so are those that have less than a
        millionth of all masses times estimates: easy shots take less time. With replicates they are
        sampled (Fearnhead and Clifford 2003): P(s, l) is unbiased in each, and so are its gradients
        (of P, not log P). O(errors x states) for a shot and replicate, however many checks are
        open. Needs the compiled library. The gradient in `unary` of the log of P(s) is P(e | s)
        among what is kept.

        Args:
            states: the number kept; up to half as many more are kept before any are left out.
            replicates: independent runs; 0 for the bound.
            generator: the randomness of the sampling.
            bounded: False leaves out ``log_dropped``, which takes a third of the time.

        Raises:
            ModelError: numbers out of range, or more than 20 observables.
            BudgetError: more than 512 checks and observables are open.
            UnsupportedError: there is no compiled library.
        """
        self._require_list()
        unary, syndrome = self._parts()
        zeros = self._zero_rows()
        seed = int(torch.randint(2**62, (), generator=generator)) if replicates else -1

        def masses(states: int, replicates: int, seed: int) -> tuple[Tensor, Tensor | None, Tensor]:
            logs, lost, left = kept_cosets(
                self.checks,
                unary.cpu(),
                syndrome.cpu(),
                states,
                replicates,
                seed,
                zeros=None if zeros is None else zeros.cpu(),
                bounded=bounded,
            )
            logs = logs.to(self.unary).reshape(len(logs), *self.batch_shape, logs.shape[-1])
            if lost is not None:
                lost = lost.to(self.unary).reshape(self.batch_shape)
            return logs, lost, left.to(self.unary)

        # Without replicates what is kept is a lower bound of P(s, l).
        logs, lost, left = masses(states, max(replicates, 1), seed)
        if not replicates:
            return KeptCosets(logs[0], "lower", lost, left.reshape(self.batch_shape))
        least = torch.full_like(logs[0], -math.inf)
        with torch.no_grad(), suppress(BudgetError):
            least = masses(states * min(replicates, WIDER), 1, -1)[0][0]
        return KeptCosets.of(logs, least)

    def _require_alike(self, other: Any) -> None:
        super()._require_alike(other)
        ours, theirs = self._parts()[1], other._parts()[1]
        if self.checks.columns != other.checks.columns or not torch.equal(ours, theirs):
            raise ModelError(
                "A ParityModel can be compared only with another of its checks and its syndrome; "
                "got others."
            )

    def max_marginals(self) -> Tensor:
        """(*batch, errors, 2) the largest score with each error absent, and present (nats).

        About errors x 2^open for a shot, by torch; differentiable.
        """
        best = sweeps.max_marginals(self.checks, *self._parts())
        return best.to(self.unary.dtype).reshape(*self.states_shape, 2)

    def mode(self) -> Tensor:
        """Return the most probable errors that explain each syndrome, (*batch, errors).

        Entries are 0 and 1. Where several sets of errors are equally probable, it is one of them.

        Raises:
            ImpossibleEvidenceError: no errors explain a syndrome.
        """
        return self._errors(1, None, best=True)[0]

    def k_best(self, k: int) -> KBestConfigurations:
        """The k most probable sets of errors, best first; the scores are differentiable.

        Ties are listed one by one. About errors x (2^open + k) for a shot, by torch. The best
        cosets are ``log_cosets().topk(k)``.

        Raises:
            ModelError: k below 1.
        """
        k = checked_best("ParityModel", k, self.states_shape)
        states = sweeps.k_best(self.checks, *self._parts(), k).reshape(k, *self.states_shape)
        there = (states >= 0).all(-1)
        if not self.checks.columns:
            there[1:] = False  # without errors there is one set, the empty one
        scores = torch.where(there, self.score(states.clamp(min=0)), -math.inf)
        return KBestConfigurations(states, scores)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, errors) independent draws of errors given the syndrome.

        Raises:
            ImpossibleEvidenceError: no errors explain a syndrome.
        """
        count = checked_count(count, self.states_shape)
        require_generator(generator)
        return self._errors(count, generator, best=False)

    def _errors(self, count: int, generator: torch.Generator | None, *, best: bool) -> Tensor:
        with torch.no_grad():
            possible = self.log_partition() > -math.inf
        require_possible("No errors explain a syndrome", possible)
        unary, syndrome = self._parts()
        drawn = sweeps.errors(self.checks, unary, syndrome, count, generator, best=best)
        return drawn.reshape(count, *self.states_shape)

    def syndrome_of(self, errors: Tensor) -> tuple[Tensor, Tensor]:
        """(*lead, checks) and (*lead, observables) that errors (*lead, errors) flip, int64."""
        checks, seen = self.checks.matrices
        given = sweeps.as_bits("The errors", errors).double()
        return tuple((given @ part.to(given.device).T).long() % 2 for part in (checks, seen))  # pyright: ignore

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials of errors; -inf if they contradict a check.

        Raises:
            EvidenceError: another shape, or other states than 0 and 1.
        """
        states = sweeps.as_bits("Errors", states)
        shape = self.states_shape
        fits = tuple(states.shape[states.ndim - len(shape) :]) == shape
        if not fits or states.is_floating_point():
            raise EvidenceError(
                f"ParityModel needs errors as integers (*lead, *{shape}); got {states.dtype} of "
                f"shape {tuple(states.shape)}."
            )
        whole = (states == 0) | (states == 1)
        some = torch.where(whole, states, 0).long()
        picked = self.unary.expand(*some.shape, 2).gather(-1, some.unsqueeze(-1)).squeeze(-1)
        fits = whole.all(-1)
        if self.syndrome is not None:
            flipped = self.syndrome_of(some)[0]
            fits = fits & ((flipped == self.syndrome) | (self.syndrome < 0)).all(-1)
        return torch.where(fits, picked.sum(-1), -math.inf)

    def factor_graph(self) -> FactorGraph:
        """Errors as variables, and a factor for each check: the parity of its errors."""
        sites = VariableArray("site", (len(self.checks.columns),), 2)
        unary, syndrome = self.unary, self.syndrome
        if self._zeros is not None:
            # A table cannot hold the gradient of a weight of 0, nor that of the other weight alone.
            unary = torch.where((unary > -math.inf).all(-1, keepdim=True), unary, unary.detach())
        factors: list[Factor | FactorBlock] = []
        turn = torch.tensor([[0, 1], [1, 0]])
        rows: list[list[int]] = self.checks.rows if syndrome is not None else []
        for check, row in enumerate(rows):
            assert syndrome is not None
            seen = syndrome[..., check : check + 1]
            seen = seen.expand(*self.batch_shape, 1)
            zero = torch.zeros_like(seen, dtype=unary.dtype)
            either = [zero.masked_fill(seen == other, -math.inf) for other in (1, 0)]
            if row:
                accept = torch.cat(either, -1)
                factors.append(Factor([sites[at] for at in row], Automaton(turn, accept, len(row))))
            elif self.checks.columns:  # a check that no error flips
                unary = unary + either[0].unsqueeze(-1)
            else:
                factors.append(Factor((), Table(either[0].squeeze(-1))))
        return FactorGraph([FactorBlock((sites,), Table(unary)), *factors])

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """Recognise binary variables under `Xor` factors, where few checks are open at a time.

        Other factors are over one variable each. None if the graph has others, or if every order
        that is tried leaves too many checks open.
        """
        if (parts := recognised(graph)) is None:
            return None
        parities, unary, syndrome, numbers = parts
        return Match(cls(parities, unary=unary, syndrome=syndrome), numbers)

    def restrict(self, states: Tensor, log_weights: Tensor) -> Self:
        few = super().restrict(states, log_weights)
        if self._zeros is None:
            return few
        weights = Support(states, log_weights).over(2).log_weights
        return replace(few, _zeros=self._zeros * weights.exp())

    def _parts(self) -> tuple[Tensor, Tensor]:
        """(B or 1, errors, 2) log-potentials and (B, checks) syndromes."""
        count, checks = math.prod(self.batch_shape), self.checks.num_checks
        unary = self.unary.reshape(count, *self.unary.shape[-2:])
        tracked = unary.requires_grad and torch.is_grad_enabled()
        if count > 1 and unary.stride(0) == 0 and not tracked:
            unary = unary[:1]  # the same errors in all items
        if self.syndrome is None:
            return unary, torch.full((count, checks), -1, dtype=torch.int8, device=unary.device)
        return unary, self.syndrome.expand(*self.batch_shape, checks).reshape(count, checks)

    def _zero_rows(self) -> Tensor | None:
        """(B, errors, 2) zeros with gradients, as `sweeps.linear` adds them; None without any."""
        zeros = self._zeros
        if zeros is None or not torch.is_grad_enabled():
            return None
        return zeros.reshape(-1, *zeros.shape[-2:])

    def _cosets(self, *, observables: bool) -> Tensor:
        unary, syndrome = self._parts()
        logs = sweeps.log_cosets(
            self.checks, unary, syndrome, observables=observables, zeros=self._zero_rows()
        )
        return logs.to(self.unary.dtype).reshape(*self.batch_shape, logs.shape[-1])
