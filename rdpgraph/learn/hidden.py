"""Hidden Markov and semi-Markov models that are fitted to sequences."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.portable import Arguments
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.learn.covariates import Driven, DrivenTransition
from rdpgraph.learn.em import EM, Fit, Step, best_fit
from rdpgraph.learn.emissions import Emission
from rdpgraph.learn.gradient import standard_errors
from rdpgraph.learn.parameters import Parameter, Probabilities, require_table
from rdpgraph.learn.sequences import PaddedBatch, as_rows, batches_of, sequences_of, without
from rdpgraph.model.potentials.lowrank import LowRank

Values = dict[str, Tensor]


@dataclass(eq=False, kw_only=True)
class HiddenStates(Arguments, ABC):
    """Base of models of sequences whose steps are in hidden states.

    Sequences are X of shape (steps, columns), end to end, and their lengths; or a list of arrays.
    NaN, None or a masked one is a missing entry, also -1 of symbols and counts; steps may be
    missing as a whole. Answers are tensors of all steps, end to end. `structure` has all other
    questions.
    """

    states: int = field(kw_only=False)
    emission: Emission = field(kw_only=False)
    start: Any = None
    transition: Any = None
    start_prior: Any = 0.0
    transition_prior: Any = 0.0
    fixed: Sequence[str] = ()
    rank: int | None = None
    starts: int = 1
    limit: int = 100
    tolerance: float = 1e-4
    hard: bool = False
    progress: Callable[[Step], None] | None = None
    covariates: Sequence[int] = ()

    @property
    def _complete(self) -> bool:
        """True where the arguments give all tables but that of the start."""
        return self.transition is not None and self.emission.given

    @abstractmethod
    def _model(self, values: Values, rows: PaddedBatch) -> Any:
        """The structure of a batch."""

    @abstractmethod
    def _tables(self, like: Tensor, generator: torch.Generator | None) -> dict[str, Parameter]:
        """The parameters to start from, except for the emission."""

    _names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "start": ("start",), "transition": ("transition", "into", "out"),
        "emission": ("emission",),
    }  # fmt: skip
    """The parameters of EM for each name that `fixed` may have."""

    _cells: ClassVar[int] = 120_000
    """Log-values of a batch: half as many or twice take up to a quarter longer in a chain."""

    @property
    def _longest(self) -> int:
        """The number of steps of the longest segment."""
        return 1

    @torch.inference_mode(mode=False)
    @typed()
    def fit(self, X: Any, lengths: Any = None, *, generator: torch.Generator | None = None) -> Self:
        """Fit by expectation maximisation: the best of some starts.

        Tables that the arguments give are where the first start begins, and their entries of -inf
        stay; others are drawn from the data, differently in each start.

        Args:
            X: (steps, columns) of all sequences, end to end; or a list of arrays.
            lengths: of the sequences.
            generator: draws the starts; None: one of torch's default seed.

        Raises:
            EvidenceError: data that does not fit the emission.
            ImpossibleEvidenceError: a sequence of probability zero; the message has its number.
            ModelError: an argument that does not fit; or, in every start, a state that has lost all
                mass or whose covariance is singular: the message has its number, and the prior to
                set. Starts in which that happens are dropped, and the fit's status counts them.
        """
        require_fields(
            self, states="[1, inf)", starts="[1, inf)", limit="[0, inf)", tolerance="[0, inf]"
        )
        sequences = sequences_of(X, lengths)
        observed = self._shown(sequences)
        if not len(observed):
            raise EvidenceError(f"{type(self).__name__} is fitted to sequences; X has no step.")
        given = generator or torch.Generator()
        # Arguments that do not fit are told as they are, and not as the collapse of a start.
        begin = self._tables(observed, None)
        self.emission.blank(self.states, observed)
        batches = list(self._batches(sequences))
        fixed = self._fixed_parameters(begin)

        def fitted(number: int) -> Fit:
            tables = self._tables(observed, given) if number else begin
            tables |= {name: begin[name] for name in fixed if name in begin}
            emission = self.emission.started(self.states, observed, given)
            parameters = {**tables, "emission": emission}
            em = EM(
                self._model, parameters, tolerance=self.tolerance, limit=self.limit, fixed=fixed,
                hard=self.hard, progress=self._told(number),
            )  # fmt: skip
            try:
                return em.fit([rows for rows, _ in batches])
            except ImpossibleEvidenceError:
                self._refuse_dead(batches, parameters)
                raise

        self.fit_: Fit = best_fit(self.starts, fitted)
        self.n_features_in_ = sequences[0].shape[1]
        return self

    def _fixed_parameters(self, tables: Mapping[str, Parameter]) -> list[str]:
        """The names of EM's parameters that stay, of those in ``tables`` and the emission.

        Raises:
            ModelError: a name of no parameter, or of one without a value to keep.
        """
        model, result = type(self).__name__, list[str]()
        for name in self.fixed:
            if name not in self._names:
                raise ModelError(
                    f"{model} cannot keep {name!r} fixed, which is none of "
                    f"{', '.join(self._names)}; tables of the emission are fixed by its own "
                    f"fixed=[{name!r}]."
                )
            drawn = name == "transition" and self._of_rank and self.transition is None
            if drawn or (name == "emission" and not self.emission.given):
                raise ModelError(
                    f"{model} cannot keep its {name} fixed, because it has no tables of it: give "
                    "them."
                )
            result += [each for each in self._names[name] if each in tables or each == "emission"]
        return result

    def _refuse_dead(
        self, batches: Sequence[tuple[PaddedBatch, list[int]]], parameters: dict[str, Parameter]
    ) -> None:
        """Raise `ImpossibleEvidenceError` that names the first sequence of probability zero."""
        for rows, numbers in batches:
            log_z = self._of(rows, parameters).log_partition()
            if float(log_z.min()) > -math.inf:
                continue
            place = int(log_z.argmin())
            cause = "check its values and the entries of -inf, or give a prior"
            # A step that no state can show is the cause by itself.
            dead = (parameters["emission"].value(rows)[place] == -math.inf).all(1).nonzero()
            if len(dead):
                step = int(dead[0])
                row, got = int(rows["places"][place, 0]) + step, rows["observed"][place, step]
                cause = (
                    f"no state can give {got.tolist()} in row {row}. Check it, or give other "
                    "starting parameters"
                )
            raise ImpossibleEvidenceError(
                f"{type(self).__name__} gives sequence {numbers[place]} probability zero at the "
                f"start: {cause}."
            ) from None

    @property
    def emission_(self) -> Any:
        """The emission that was fitted."""
        return self._fitted()["emission"]

    @property
    def start_(self) -> Tensor:
        """(states,) log-probabilities of the first state."""
        return self._fitted()["start"].value(None)

    @property
    def transition_(self) -> Any:
        """The fitted transition: (states, states) log-probabilities, [from, to], or a `LowRank`.

        Of a module of covariates, a copy of the module with the weights that were fitted.
        """
        driven = self._fitted().get("transition")
        if isinstance(driven, DrivenTransition):
            return driven.learned
        values = {n: p.value(None) for n, p in self._fitted().items() if n != "emission"}
        return transition_of(values)

    def standard_errors(self, X: Any, lengths: Any = None) -> dict[str, tuple[Tensor, ...]]:
        """Standard errors of each parameter's `estimates`, by the observed information of the data.

        Infinite where the data does not determine one. It takes a backward pass for each free
        parameter. Raises `ModelError` where the fit is not at a maximum.
        """
        batches = [rows for rows, _ in self._batches(self._read(X, lengths))]
        parameters = self._fitted()
        em = EM(self._model, parameters, fixed=self._fixed_parameters(parameters))
        return standard_errors(em, self.fit_, batches)

    def structure(self, X: Any, lengths: Any = None) -> Any:
        """Return a `Chain` or `SemiMarkov` of all sequences, padded; log Z (B,) is their score."""
        sequences = self._read(X, lengths)
        return self._of(as_rows(sequences, covariates=self.covariates), self._fitted())

    def score(self, X: Any, lengths: Any = None) -> float:
        """The log-likelihood of all sequences (nats)."""
        return float(sum(self._each(X, lengths, lambda model: model.log_partition())))

    def predict(self, X: Any, lengths: Any = None) -> Tensor:
        """(steps,) the most probable sequences of states."""
        return self.decode(X, lengths)[1]

    def decode(self, X: Any, lengths: Any = None) -> tuple[float, Tensor]:
        """Return the log-probability of the data with its best states, and these (steps,)."""
        total = 0.0

        def ask(model: Any) -> Tensor:
            nonlocal total
            path = model.mode()
            total += float(model.score(path).sum())
            return _labels(path)

        states = torch.cat(self._each(X, lengths, ask))
        return total, states

    def predict_proba(self, X: Any, lengths: Any = None) -> Tensor:
        """(steps, states) the probability of each state, given the whole sequence."""

        def ask(model: Any) -> Tensor:
            return getattr(model, "position_marginals", model.marginals)()

        return torch.cat(self._each(X, lengths, ask))

    def sample(
        self, steps: int, generator: torch.Generator | None = None, *, covariates: Any = None
    ) -> tuple[Tensor, Tensor]:
        """A sequence (steps, columns), and its states (steps,).

        Given covariates (steps, k), where the model has these; the columns are then the others.

        Raises:
            ModelError: a number of steps that is none, or covariates that do not fit.
        """
        if not is_whole(steps):
            raise ModelError(f"sample needs a number of steps; got {steps!r:.80}.")
        rows: PaddedBatch = as_rows([torch.full((steps, 1), math.nan, dtype=torch.float64)])
        driving = None
        if self.covariates:
            (driving,) = sequences_of([] if covariates is None else covariates)
            if driving.shape != (steps, len(self.covariates)) or bool(driving.isnan().any()):
                raise ModelError(
                    f"sample needs covariates ({steps}, {len(self.covariates)}) of the steps, "
                    f"without gaps; got {tuple(driving.shape)}."
                )
            rows = {**rows, "covariates": driving.unsqueeze(0)}
        parameters = self._fitted()
        values = {name: p.value(rows) for name, p in parameters.items() if name != "emission"}
        values["emission"] = torch.zeros(1, steps, self.states, dtype=torch.float64)
        drawn = self._model(values, rows).sample(1, generator)
        states = _labels(drawn).reshape(steps)
        if isinstance(self.emission_, Driven):
            return self.emission_.sample(states, generator, driving), states
        return self.emission_.sample(states, generator), states

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion, 2 k - 2 log-likelihood; smaller is better."""
        return 2 * self._size - 2 * self.score(X, lengths)

    def bic(self, X: Any, lengths: Any = None) -> float:
        """Bayes' criterion, k log(steps) - 2 log-likelihood; smaller is better."""
        steps = sum(len(each) for each in sequences_of(X, lengths))
        if not steps:
            raise EvidenceError("bic needs the steps that were fitted; X has none.")
        return self._size * math.log(steps) - 2 * self.score(X, lengths)

    @property
    def _size(self) -> int:
        """The number of free parameters."""
        parameters = self._fitted()
        fixed = self._fixed_parameters(parameters)
        return sum(p.size for name, p in parameters.items() if name not in fixed)

    def _fitted(self) -> dict[str, Parameter]:
        """The fitted parameters, or those given, if all are."""
        fit = getattr(self, "fit_", None)
        if fit is not None:
            return fit.parameters
        if self.start is not None and self._complete:
            like = torch.zeros((), dtype=torch.float64)
            return {**self._tables(like, None), "emission": self.emission}
        raise ModelError(
            f"{type(self).__name__} is not fitted: call fit(X, lengths), or give all tables."
        )

    def _read(self, X: Any, lengths: Any) -> list[Tensor]:
        """Sequences checked against the emission."""
        sequences, emission = sequences_of(X, lengths), self.emission_
        shown = self._shown(sequences)
        try:
            emission.blank(self.states, shown)
        except ModelError as error:
            raise EvidenceError(f"X does not fit the tables: {error}") from None
        return sequences

    def _shown(self, sequences: Sequence[Tensor]) -> Tensor:
        """(steps, columns) of all sequences without their covariates, which are checked."""
        every = torch.cat(list(sequences))
        columns, driving = every.shape[1], [*self.covariates]
        if not driving:
            return every
        if not all(is_whole(c, 0) and c < columns for c in driving) or len({*driving}) >= columns:
            raise ModelError(
                f"covariates name columns of X, from 0 to {columns - 1}, and leave one to be "
                f"observed; got {driving!r:.80}."
            )
        lacking = every[:, driving].isnan().any(1).nonzero()
        if len(lacking):
            raise EvidenceError(
                f"Row {int(lacking[0])} of X lacks a covariate; observations may be missing, and "
                "covariates may not: fill them in, or leave the row out."
            )
        return every[:, without(driving, columns)]

    def _told(self, start: int) -> Callable[[Step], None] | None:
        tell = self.progress
        return None if tell is None else lambda step: tell(replace(step, start=start))

    def _of(self, rows: PaddedBatch, parameters: dict[str, Parameter]) -> Any:
        return self._model({name: p.value(rows) for name, p in parameters.items()}, rows)

    def _batches(self, sequences: Sequence[Tensor]) -> Iterator[tuple[PaddedBatch, list[int]]]:
        longest = max(map(len, sequences), default=0)
        require_table(
            f"The longest sequence of {type(self).__name__}, in steps, states and durations,",
            (longest, self.states, self._longest),
            "cut it into several, or take fewer states or durations",
        )
        return batches_of(sequences, self.states * self._longest, self._cells, self.covariates)

    def _each(self, X: Any, lengths: Any, ask: Callable[[Any], Tensor]) -> list[Tensor]:
        """Answers for each sequence, cut to its length where they are by steps."""
        sequences, parameters = self._read(X, lengths), self._fitted()
        answers: list[Tensor] = [torch.empty(0)] * len(sequences)
        for rows, numbers in self._batches(sequences):
            for number, answer in zip(numbers, ask(self._of(rows, parameters)), strict=True):
                answers[number] = answer[: len(sequences[number])] if answer.ndim else answer
        return answers

    @property
    def _of_rank(self) -> bool:
        return self.rank is not None or isinstance(self.transition, LowRank)

    def _start_tables(
        self, like: Tensor, prior: Any, generator: torch.Generator | None
    ) -> dict[str, Parameter]:
        """Tables of the first state and of transitions, which are two where they have a rank."""
        states, rank, given = self.states, self.rank, self.transition
        first = self._start_table("start", (states,), like, self.start_prior, generator)
        tables: dict[str, Parameter] = {"start": first}
        if isinstance(given, torch.nn.Module):
            if rank is not None:
                raise ModelError(f"{type(self).__name__} takes a rank or a module, and not both.")
            given = DrivenTransition(given, states=states)
        if isinstance(given, Parameter):
            driven = given if generator is None else given.drawn(generator)
            return {**tables, "transition": driven}
        if not self._of_rank:
            square = (states, states)
            table = self._start_table("transition", square, like, prior, generator)
            return {**tables, "transition": table}
        if isinstance(given, LowRank) and given.shape == (states, states) and rank is None:
            begun = [given.log_left, given.log_right.mT]
        elif rank is not None and is_whole(rank, 1) and given is None:
            generator = generator or torch.Generator()  # equal ranks would stay equal
            shapes = (states, rank), (rank, states)
            self._require_table("transition", shapes[0])
            begun = [torch.full(shape, -math.log(shape[1])) for shape in shapes]
        else:
            raise ModelError(
                f"{type(self).__name__} of low rank needs a rank, at least 1, or a LowRank "
                f"transition over its states; got rank {rank!r:.80}."
            )
        for name, table in zip(("into", "out"), begun, strict=True):
            parameter = Probabilities(table.to(like.device).double(), prior=prior)
            tables[name] = parameter if generator is None else parameter.drawn(generator)
        return tables

    def _require_table(self, name: str, shape: tuple[int, ...]) -> None:
        few = "durations" if name == "durations" else "states"
        rank = ", or give a smaller rank" if self._of_rank else ", or give a rank"
        rank = rank if name == "transition" else ""
        what = f"The table {name!r} of {type(self).__name__}"
        require_table(what, shape, f"take fewer {few}{rank}")

    def _start_table(
        self, name: str, shape: tuple[int, ...], like: Tensor, prior: Any,
        generator: torch.Generator | None, over: int = -1,
    ) -> Probabilities:  # fmt: skip
        """A table as given, or uniform; drawn if there is a generator."""
        given = getattr(self, name)
        if given is None or is_whole(given):
            self._require_table(name, shape)
            given = torch.full(shape, -math.log(shape[over]))
        given = present(f"{type(self).__name__}'s {name}", given)
        table = torch.as_tensor(given, dtype=torch.float64, device=like.device)
        if tuple(table.shape) != shape:
            raise ModelError(
                f"{type(self).__name__} needs {name} of log-probabilities {shape}; got "
                f"{tuple(table.shape)}."
            )
        prior = prior.to(table) if isinstance(prior, Tensor) else prior
        parameter = Probabilities(table, over=over, prior=prior)
        return parameter if generator is None else parameter.drawn(generator)


def _labels(configuration: Any) -> Tensor:
    """The states of a path or a segmentation."""
    return getattr(configuration, "labels", configuration)


def transition_of(values: Values) -> Tensor | LowRank:
    """The transition of parameters' values, a table or of low rank."""
    return LowRank(values["into"], values["out"].mT) if "into" in values else values["transition"]


@typed(folds="[2, inf)")
def held_out(
    model: HiddenStates, X: Any, lengths: Any = None, *, states: Sequence[int], folds: int = 3,
    generator: torch.Generator | None = None,
) -> dict[int, float]:  # fmt: skip
    """The mean log-likelihood of a step (nats) of sequences left out of fits, by number of states.

    ``max(scores, key=lambda count: scores[count])`` is the choice of a number. A number has the
    score -inf if the likelihood of one of its fits has no maximum, because a state collapses.

    Args:
        model: whose other arguments are taken; it is not changed.
        X: as for `fit`.
        lengths: as for `fit`.
        states: the numbers to compare.
        folds: parts of the sequences, each left out once.
        generator: shuffles the sequences, and draws starts.

    Raises:
        EvidenceError: fewer sequences than folds.
        ModelError: no number has fits with a maximum.
    """
    sequences = sequences_of(X, lengths)
    if len(sequences) < folds:
        raise EvidenceError(
            f"held_out needs at least 2 folds and a sequence for each; got {folds!r:.80} folds "
            f"and {len(sequences)} sequences. Give lengths."
        )
    generator = generator or torch.Generator()
    # The same folds for every number of states, so that scores are comparable.
    order = torch.randperm(len(sequences), generator=generator).tolist()
    result, errors = dict[int, float](), list[ModelError]()
    for count in states:
        total = 0.0
        for fold in range(folds):
            # The model that was passed stays as it is.
            candidate = copy.copy(model).set_params(states=count)
            out = set(order[fold::folds])
            kept = [each for number, each in enumerate(sequences) if number not in out]
            try:
                candidate.fit(kept, generator=generator)
            except ModelError as error:
                # A state collapsed on its data: a likelihood without a maximum chooses no number.
                errors.append(error)
                total = -math.inf
                break
            total += candidate.score([sequences[number] for number in sorted(out)])
        result[count] = total / sum(map(len, sequences))
    if errors and len(errors) == len(result):
        raise errors[0]
    return result
