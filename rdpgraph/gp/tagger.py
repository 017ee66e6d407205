"""A Bayesian tagger: Gaussian processes over features, a structured likelihood over labels."""

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, pairwise
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph._core.portable import Arguments
from rdpgraph.errors import ModelError
from rdpgraph.gp.estimators import GradientEstimator, Reparameterised
from rdpgraph.gp.inducing import PaddedGroup, basis_of
from rdpgraph.gp.kernels import Features, Kernel, Linear, feature_list
from rdpgraph.gp.likelihoods import ChainLikelihood, Labelling, Likelihood
from rdpgraph.gp.posterior import (
    Covariance,
    DiagonalCovariance,
    EntropyBound,
    Functions,
    PairwiseBound,
    VariationalPosterior,
)
from rdpgraph.gp.training import EvidenceLowerBound, Training

Label = TypeVar("Label", bound=Hashable)
_CHOICES = {
    "kernel": Kernel, "likelihood": Likelihood, "covariance": Covariance, "entropy": EntropyBound,
    "estimator": GradientEstimator, "training": Training,
}  # fmt: skip


@dataclass(eq=False)
class StructuredGP(Arguments):
    """Tags sequences by a Gaussian process for each label, with the uncertainty of the functions.

    The score of a label at a position is a function of the features there, drawn from a Gaussian
    process; the score of a pair of neighbouring labels is normal. Given the scores, labels have the
    probability given by the likelihood, by default that of a linear chain. The posterior over
    functions is a mixture of Gaussians over the values at inducing points, fitted by maximising a
    lower bound of the evidence.

    In the manner of scikit-learn: arguments are attributes of the same names, `fit` returns the
    object, what is learned ends in an underscore; `get_params` and `set_params` are there, and
    ``sklearn.base.clone`` works. Sequences are matrices of features, one row for each position:
    tensors, sparse tensors, sparse matrices of scipy, or arrays. Sparse ones stay so.

    Args:
        labels: the names of all labels, in the order of probabilities.
        kernel: covariance of the functions, or a dict of one for each label; `fit` learns the
            hyperparameters of a copy where ``training.kernel_every`` is above 0.
        inducing: the number of inducing points, chosen among the positions of training by their
            variances; or a matrix of their features, or a dict of one for each label; None for as
            many as determine the functions at all positions, which is the full Gaussian process.
        likelihood: of labels given scores.
        components: of the mixture.
        covariance: of each component.
        entropy: the bound of the mixture's entropy; that of one component is exact, without it.
        estimator: of the expected log-likelihood and its gradient.
        training: the optimiser and its steps.
        pairwise_scale: prior standard deviation of the score of a pair of labels; or the covariance
            (V^2, V^2) of the scores of all pairs, [from, to] flattened.
        nugget: variance of independent noise in the scores at each position, a part of the model;
            it keeps their covariances positive definite where two positions have the same features.
        scale: the first standard deviations of the posterior, as shares of the prior's.
        predictive_samples: of the functions in predictions.

    Attributes:
        posterior_: the posterior over functions.
        kernel_: with its hyperparameters learned; a dict where kernels or points are by labels.
        bounds_: estimates of the evidence lower bound in nats, one for each step of training.
        inducing_: features of the inducing points; a dict likewise.

    Example:
        >>> import torch
        >>> from rdpgraph.gp import RBF, StructuredGP
        >>> position = torch.arange(6.0).unsqueeze(1)
        >>> tagger = StructuredGP(("low", "high"), RBF(2.0, variance=4.0))
        >>> tagger = tagger.fit([position], [["low", "low", "low", "high", "high", "high"]])
        >>> tagger.predict([position + 0.2])
        [['low', 'low', 'low', 'high', 'high', 'high']]

    Galliani, Dezfouli, Bonilla and Quadrianto 2017, "Gray-box inference for structured Gaussian
    process models".
    """

    labels: Sequence[Hashable]
    kernel: Kernel | Mapping[Any, Kernel] | None = None
    _: KW_ONLY
    inducing: int | Any | None = None
    likelihood: Likelihood | None = None
    components: int = 1
    covariance: Covariance | None = None
    entropy: EntropyBound | None = None
    estimator: GradientEstimator | None = None
    training: Training | None = None
    pairwise_scale: float | Tensor = 1.0
    nugget: float = 1e-4
    scale: float = 0.1
    predictive_samples: int = 100

    @torch.inference_mode(mode=False)
    def fit(
        self,
        sequences: Iterable[Any],
        labels: Iterable[Sequence[Hashable]],
        *,
        edges: Iterable[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Fit the posterior over functions.

        Args:
            sequences: for each, a matrix (positions, features), dense or sparse.
            labels: for each, the names of the labels at its positions.
            edges: for each, the pairs of positions (E, 2) that influence each other, for
                `GraphLikelihood` and `PiecewisePseudoLikelihood`; default: neighbours. Give
                predictions theirs, too.
            generator: of all randomness.

        Raises:
            ModelError: sequences and labels that do not fit, an empty sequence, an unknown label,
                arguments out of range, or inducing points that determine each other.
            UnsupportedError: edges for a likelihood of chains.
        """
        # Data as tensors, and the basis: inducing points, chosen or given, and one kernel or one
        # for each label.
        self._check()
        features = feature_list(sequences)
        states = self._states(labels, features)
        pairs = _edge_list(edges, features)
        kernel = copy.deepcopy(self.kernel) if self.kernel is not None else Linear()
        everything = Features.stacked(features)
        basis = self._basis = basis_of(self.labels, kernel, self.inducing, everything, self.nugget)
        if len(basis.kernels) == 1:
            self.kernel_, self.inducing_ = kernel, basis.points[0]
        else:
            self.kernel_ = dict(zip(self.labels, basis.kernels, strict=True))
            self.inducing_ = dict(zip(self.labels, basis.points, strict=True))
        # The posterior is over the functions at inducing points.
        self.posterior_ = VariationalPosterior(
            len(self.labels),
            basis.width,
            components=self.components,
            covariance=self.covariance or DiagonalCovariance(),
            entropy=self.entropy or PairwiseBound(),
            pairwise_scale=self.pairwise_scale,
            scale=self.scale,
            generator=generator,
            device=features[0].device,
        )
        # Maximise the bound on groups of sequences of like length; what the basis kept for training
        # is then dropped.
        training = self.training or Training()
        groups = basis.groups(training.sequences or tuning.SEQUENCES, features, states, pairs)
        self.bounds_ = training.run(self._objective(), groups, generator)
        basis.forget()
        return self

    def predict(
        self,
        sequences: Iterable[Any],
        *,
        edges: Iterable[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[Any]]:
        """The most probable label at each position, functions averaged over.

        It minimises the expected number of wrong labels.
        """
        marginals = self.predict_marginals(sequences, edges=edges, generator=generator)
        return [[self.labels[state] for state in one.argmax(-1).tolist()] for one in marginals]

    def predict_marginals(
        self,
        sequences: Iterable[Any],
        *,
        edges: Iterable[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> list[Tensor]:
        """Probabilities (positions, labels) for each sequence, under the posterior.

        An average over ``predictive_samples`` draws of the latent functions, in antithetic pairs;
        the same draws each time if there is no generator.

        Args:
            sequences: for each, a matrix (positions, features), as for `fit`.
            edges: for each, the pairs of positions (E, 2) that influence each other, as for `fit`;
                default: neighbours.
            generator: of the draws.

        Raises:
            ModelError: not fitted, an empty sequence, or features unlike those of training.
        """
        likelihood = self._likelihood()

        def ask(labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
            return likelihood.marginals(labels, unary, pairwise).double().mean(0)

        return self._answers(ask, sequences, edges, generator)

    def sample(
        self,
        sequences: Iterable[Any],
        *,
        edges: Iterable[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[list[Any]]]:
        """Draws of labels for each sequence, ``predictive_samples`` of them, functions drawn too.

        Draws of one number share their functions; given these, labels of different sequences are
        independent.

        Raises:
            ModelError: not fitted, an empty sequence, or features unlike those of training.
        """
        likelihood, apart = self._likelihood(), None
        if generator is not None:  # another one: that of functions starts again for each sequence
            seed = torch.randint(2**62, (), generator=generator, device=generator.device)
            apart = torch.Generator(generator.device).manual_seed(int(seed))

        def ask(labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
            return likelihood.sample(labels, unary, pairwise, apart).movedim(0, -1)

        drawn = self._answers(ask, sequences, edges, generator)
        return [[[self.labels[state] for state in row] for row in one.mT.tolist()] for one in drawn]

    def score(
        self,
        sequences: Iterable[Any],
        labels: Iterable[Sequence[Hashable]],
        *,
        edges: Iterable[Tensor] | None = None,
    ) -> float:
        """The share of positions whose label is predicted."""
        guesses = self.predict(sequences, edges=edges)
        truths = _label_lists(labels, [len(guess) for guess in guesses])
        pairs = zip(chain(*guesses), chain(*truths), strict=True)
        right = [one == other for one, other in pairs]
        return sum(right) / len(right)

    @torch.no_grad()
    def elbo(
        self,
        sequences: Iterable[Any],
        labels: Iterable[Sequence[Hashable]],
        *,
        edges: Iterable[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> float:
        """An estimate, in nats, of the lower bound of the log evidence of labelled sequences.

        It is unbiased, by as many samples as the gradient estimator draws, and a lower bound on the
        log evidence if the sequences are those of training. Without a generator each call draws
        anew.

        Raises:
            ModelError: not fitted, or sequences and labels that do not fit.
        """
        groups = self._groups(sequences, labels, edges)
        objective = self._objective()
        expected = sum(float(objective.expected(group, generator)) for group in groups)
        return expected - float(self.posterior_.divergence())

    def _answers(
        self,
        ask: Callable[[Labelling, Tensor, Tensor], Tensor],
        sequences: Iterable[Any],
        edges: Iterable[Tensor] | None,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """(positions, ...) answers for each sequence, from those of `ask` for batches of scores."""
        groups = self._groups(sequences, None, edges)
        generator = generator or torch.Generator().manual_seed(0)
        begun = generator.get_state()
        posterior = self.posterior_
        # Samples of each component, in proportion to its weight.
        bounds = (posterior.weights().cumsum(0) * self.predictive_samples).round().long().tolist()
        answers: dict[int, Tensor] = {}
        for group in groups:
            # The same functions for all sequences, however they are grouped.
            generator.set_state(begun)
            with torch.no_grad():
                given = self._basis.conditional(group)
                scores = [
                    Functions(posterior, given, component).drawn(
                        stop - start, dtype=torch.float32, generator=generator
                    )
                    for component, (start, stop) in enumerate(pairwise([0, *bounds]))
                    if stop > start
                ]
            answer = ask(group.labels, *map(torch.cat, zip(*scores, strict=True)))
            for item, place in enumerate(group.places):
                answers[place] = answer[item, : int(group.labels.lengths[item])]
        return [answers[place] for place in range(len(answers))]

    def _groups(
        self,
        sequences: Iterable[Any],
        labels: Iterable[Sequence[Hashable]] | None,
        edges: Iterable[Tensor] | None,
    ) -> list[PaddedGroup]:
        if not hasattr(self, "posterior_"):
            raise ModelError("This StructuredGP is not fitted; call fit(sequences, labels) first.")
        features = feature_list(sequences, columns=self._basis.points[0].columns)
        states = None if labels is None else self._states(labels, features)
        size = 1 if labels is None else tuning.SEQUENCES
        return self._basis.groups(size, features, states, _edge_list(edges, features))

    def _objective(self) -> EvidenceLowerBound:
        estimator = self.estimator or Reparameterised()
        return EvidenceLowerBound(self.posterior_, self._basis, self._likelihood(), estimator)

    def _likelihood(self) -> Likelihood:
        return self.likelihood or ChainLikelihood()

    def _check(self) -> None:
        labels = self.labels if isinstance(self.labels, Sequence) else ()
        if not labels or len(set(labels)) != len(labels):
            raise ModelError(f"StructuredGP needs distinct labels; got {self.labels!r:.80}.")
        self._check_pairs()
        counts = ("components", "predictive_samples")
        for name in ("nugget", "scale", *counts):
            value, kind = getattr(self, name), "whole number" if name in counts else "number"
            fits = is_whole(value, 1) if name in counts else is_real(value) and 0 < value < math.inf
            if not fits:
                raise ModelError(f"StructuredGP needs {name} above 0, a {kind}; got {value!r:.80}.")
        for name, kind in _CHOICES.items():
            value = getattr(self, name)
            if name == "kernel" and isinstance(value, Mapping):
                continue
            if value is not None and not isinstance(value, kind):
                raise ModelError(
                    f"StructuredGP needs {name} as an object, a {kind.__name__}; got {value!r:.80}."
                )

    def _states(
        self, labels: Iterable[Sequence[Hashable]], features: list[Features]
    ) -> list[Tensor]:
        numbers = {name: number for number, name in enumerate(self.labels)}
        given = _label_lists(labels, [one.rows for one in features])
        numbered: list[Tensor] = []
        for place, (listed, one) in enumerate(zip(given, features, strict=True)):
            unknown = [name for name in listed if name not in numbers]
            if unknown:
                raise ModelError(
                    f"Sequence {place} has the label {unknown[0]!r}, which is none of "
                    f"{tuple(self.labels)!r:.80}."
                )
            numbered.append(torch.tensor([numbers[name] for name in listed], device=one.device))
        return numbered

    def _check_pairs(self) -> None:
        value = present("StructuredGP's pairwise_scale", self.pairwise_scale)
        size = len(set(self.labels)) ** 2
        if isinstance(value, Tensor) and value.ndim:
            if value.shape == (size, size) and torch.equal(value, value.mT):
                return
            shown = f"a tensor {tuple(value.shape)}"
        elif is_real(value) and value > 0:
            return
        else:
            shown = f"{value!r:.80}"
        raise ModelError(
            "StructuredGP needs pairwise_scale above 0, or a symmetric covariance "
            f"{(size, size)} of the pairs of labels; got {shown}."
        )


def _label_lists(labels: Iterable[Any], sizes: list[int]) -> list[list[Any]]:
    """The labels of sequences of given sizes."""
    each = [present("Labels", one) for one in (labels if isinstance(labels, Iterable) else ())]
    given = [
        one.tolist() if isinstance(one, Tensor) else list(one) if isinstance(one, Iterable) else []
        for one in each
    ]
    if len(given) != len(sizes):
        raise ModelError(
            f"StructuredGP needs labels for each of {len(sizes)} sequences; got labels for "
            f"{len(given)}."
        )
    for place, (listed, size) in enumerate(zip(given, sizes, strict=True)):
        if len(listed) != size:
            raise ModelError(
                f"Sequence {place} needs a label for each of {size} positions; got {len(listed)} "
                "labels."
            )
    return given


def _edge_list(edges: Iterable[Tensor] | None, features: list[Features]) -> list[Tensor] | None:
    if edges is None:
        return None
    pairs = [torch.as_tensor(present("Edges", one)) for one in edges]
    if len(pairs) != len(features):
        raise ModelError(
            f"StructuredGP needs edges for each of {len(features)} sequences; got edges for "
            f"{len(pairs)}."
        )
    for place, (one, sequence) in enumerate(zip(pairs, features, strict=True)):
        whole = one.shape[1:] == (2,) and not one.is_floating_point()
        if one.numel() and not (whole and 0 <= int(one.min()) <= int(one.max()) < sequence.rows):
            raise ModelError(
                f"Sequence {place} needs edges (E, 2) between positions 0 to {sequence.rows - 1}; "
                f"got {one.tolist()!r:.80}."
            )
        if one.numel() and bool((one[:, 0] == one[:, 1]).any()):
            raise ModelError(
                f"Sequence {place} needs edges between two positions; got {one.tolist()!r:.80}."
            )
    return [one.long().reshape(-1, 2).to(features[0].device) for one in pairs]
