"""Variational autoencoders whose hidden states are a chain, and their decoders."""

import math
import warnings
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Estimator
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.infer import infer
from rdpgraph.model.potentials.lowrank import Bilinear
from rdpgraph.nn.words import checked_tokens, require_known
from rdpgraph.query.structured import RelaxedStates
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.parts import inside


class Joint(NamedTuple):
    """The two parts of log p(x, y), (B,) nats each.

    Attributes:
        words: sum over steps of log p(word | the state of its step, all before).
        states: sum over steps of log p(state | all words and states before).
    """

    words: Tensor
    states: Tensor


class Decoder(Protocol):
    """The signature of decoders for `StructuredVAE`."""

    def __call__(self, tokens: Tensor, lengths: Tensor, draw: RelaxedStates) -> Joint:
        """Log p(x, y) at relaxed or certain states.

        Exact at certain states, which have one weight of 1 each (`RelaxedStates.of`); at relaxed
        ones any function that is differentiable in the weights and agrees with that, such as by
        `RelaxedStates.mean` and `RelaxedStates.pick`.

        Args:
            tokens: (B, T) int64, 0 beyond the lengths.
            lengths: (B,).
            draw: (B, T, K) states with weights, zero beyond the lengths.
        """
        ...


class LSTMDecoder(nn.Module):
    """An autoregressive decoder of words and states by an LSTM.

    At every step the LSTM has read the words and states before it; from its memory a network
    predicts the state, and another one, given that state too, the word. A relaxed state is the
    weighted mean of embeddings where it is read, and of log-probabilities where it is predicted.
    Fu, Cunningham and Lapata 2022 (arXiv:2112.03638v3), eq. 32.

    A step costs O(K) for the states drawn, and O(states + vocabulary) for the normalisers.

    Args:
        states: the number of states.
        vocabulary: the number of words.
        hidden: of the LSTM and of the networks.
        dimension: of the embeddings of words and of states.

    Raises:
        ModelError: sizes below 1.
    """

    @typed(states="[1, inf)", vocabulary="[1, inf)", hidden="[1, inf)", dimension="[1, inf)")
    def __init__(
        self, *, states: int, vocabulary: int, hidden: int = 256, dimension: int = 128
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dimension)
        self.states = nn.Embedding(states, dimension)
        self.lstm = nn.LSTM(2 * dimension, hidden, batch_first=True)
        self.state_logits = _network(hidden, hidden, states)
        self.word_logits = _network(hidden + dimension, hidden, vocabulary)

    def forward(self, tokens: Tensor, lengths: Tensor, draw: RelaxedStates) -> Joint:
        """Log p(x, y), as specified by `Decoder`.

        Raises:
            EvidenceError: a token that is out of range.
        """
        vocabulary = self.words.num_embeddings
        require_known(f"LSTMDecoder of {vocabulary} words", tokens, vocabulary)
        states = draw.mean(self.states.weight)
        read = torch.cat([self.words(tokens), states], 2)
        # Each step reads the inputs of the step before; the first reads zeros.
        read = nn.functional.pad(read, (0, 0, 1, 0))[:, :-1]
        memory, _ = self.lstm(read)
        told = draw.pick(self.state_logits(memory).log_softmax(-1))
        logits = self.word_logits(torch.cat([memory, states], 2))
        words = -nn.functional.cross_entropy(logits.mT, tokens, reduction="none")
        within = inside(lengths, tokens.shape[1])
        return Joint(torch.where(within, words, 0.0).sum(1), torch.where(within, told, 0.0).sum(1))


def _network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


_COLLAPSED = 0.01  # nats a token of what the states say, below which the posterior has collapsed


class Objective(NamedTuple):
    """The parts of the evidence lower bound of each sentence, (B,) nats, differentiable.

    Attributes:
        words: log p(y | x) of the drawn states x.
        states: the sum over steps of log p(x_t | words before t), of the drawn states.
        entropy: the entropy of q(x | y).
    """

    words: Tensor
    states: Tensor
    entropy: Tensor

    @property
    def elbo(self) -> Tensor:
        """The objective of each item, whose mean is maximised in training.

        If q is over all states, or over those of `Top`, its average over draws with
        ``straight_through`` is a lower bound on log p(y). With drawn states it is an estimate whose
        mean may lie above the bound: maximise it, but report a bound by `Top`, or
        `StructuredVAE.importance_log_likelihood`.
        """
        return self.words + self.states + self.entropy

    @property
    def kl(self) -> Tensor:
        """(batch,) the divergence of q from the decoder's prediction of the states, in nats.

        Estimated by one draw, so it may be negative. `words` less beta times this is the objective
        with a weight, as used to keep the states from being ignored early in training.
        """
        return -self.states - self.entropy


class ImportanceEstimate(NamedTuple):
    """An estimate of log p(y) of each sentence by importance sampling, (B,) each.

    Attributes:
        log_likelihood: nats; p(y) is unbiased, and its logarithm too low on average.
        standard_error: of the log-likelihood, as of `Replicates`; +inf for fewer than four samples,
            or where all samples are the same states. What q hardly ever draws does not show.
        effective_sample_size: the number of equal samples with the same variance.
        kl: the divergence of q from the decoder's prediction of the states, nats.
    """

    log_likelihood: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor
    kl: Tensor


class StructuredVAE(nn.Module):
    """A model of sentences y with a chain of hidden states x, trained by its lower bound.

    q(x | y) is a linear-chain CRF: states have embeddings e, a step has r from the encoder, and
    sequences the score of the sum of e(x_t) . r_t and e(x_t) . e(x_t+1). p(x, y) is the decoder's.
    The bound is E_q[log p(x, y)] + H(q); its first term is estimated by one relaxed draw. Fu,
    Cunningham and Lapata 2022 (arXiv:2112.03638v3), section 4.

    With an ``estimator`` both terms are computed on a few of the N states of each step, and the
    decoder reads these alone. `Randomized` with `Top` bounds log p(y) from below as all states do;
    with drawn states it is an estimate of that bound, and may lie above it on average.

    Args:
        encoder: a module called with tokens (B, T) and lengths (B,), which gives r, (B, T, d);
            tokens are 0 beyond the lengths.
        decoder: a module called as `Decoder` is, such as `LSTMDecoder`.
        states: how many, N.
        dimension: of the embeddings, d.
        estimator: of the bound; None: all states.

    Attributes:
        embeddings: (N, d) those of q.

    Raises:
        ModelError: sizes below 1, or no estimator where one is given.

    Example:
        >>> class Encoder(torch.nn.Embedding):
        ...     def forward(self, tokens, lengths):
        ...         return super().forward(tokens)
        >>> import rdpgraph as rg
        >>> from rdpgraph.nn import LSTMDecoder, StructuredVAE
        >>> decoder = LSTMDecoder(states=50, vocabulary=20, hidden=16, dimension=8)
        >>> estimator = rg.Randomized.default(keep=10)
        >>> vae = StructuredVAE(Encoder(20, 8), decoder, states=50, dimension=8,
        ...                     estimator=estimator)
        >>> tokens, lengths = torch.randint(20, (3, 7)), torch.tensor([7, 5, 2])
        >>> vae(tokens, lengths, temperature=0.5).elbo.shape
        torch.Size([3])
        >>> vae.importance_log_likelihood(tokens, lengths, samples=20).log_likelihood.shape
        torch.Size([3])
    """

    @typed(states="[1, inf)", dimension="[1, inf)")
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        states: int,
        dimension: int,
        estimator: Estimator | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder: Decoder = decoder
        self.embeddings = nn.Parameter(torch.randn(states, dimension) / dimension**0.5)
        self.estimator = estimator

    def chain(self, tokens: Tensor, lengths: Tensor | None = None) -> Chain:
        """q(x | y) of each sentence, with all states.

        Args:
            tokens: (B, T) integers; tokens beyond a length are ignored.
            lengths: (B,), default all T.

        Raises:
            EvidenceError: tokens of another shape or type.
            ModelError: lengths that do not fit, or an encoder that gives another shape.
        """
        return self._chain(*checked_tokens("StructuredVAE", tokens, lengths))

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        *,
        temperature: float = 1.0,
        straight_through: bool = False,
        generator: torch.Generator | None = None,
    ) -> Objective:
        """The parts of the lower bound, by one draw of the states of each sentence.

        Relaxed draws make the first term differentiable in q, and biased, in its value and its
        gradients: less so at lower temperatures, where the gradients vary more. With
        ``straight_through`` the decoder reads one state for each step, an exact draw: the value and
        the gradients in the decoder's parameters are then unbiased, if all states are kept, and
        those in q remain biased. The entropy has no such error; on a few states it is an estimate
        of its own (`StructuredPosterior.entropy`).

        Args:
            tokens: as for `chain`.
            lengths: as for `chain`.
            temperature: of the draw, above 0; lower it in the course of training.
            straight_through: round the states.
            generator: the randomness of the states kept and of the draw.

        Raises:
            EvidenceError: as for `chain`.
            ModelError: as for `chain`; or a temperature that is not above 0.
        """
        tokens, lengths = checked_tokens("StructuredVAE", tokens, lengths)
        chain = self._chain(tokens, lengths)
        posterior = infer(chain, estimator=self.estimator, generator=generator)
        draw = posterior.rsample_kept(temperature=temperature, generator=generator)
        joint = self.decoder(tokens, lengths, draw.hard() if straight_through else draw)
        return Objective(joint.words, joint.states, posterior.entropy())

    @torch.no_grad()
    def importance_log_likelihood(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        *,
        samples: int,
        proposal: Estimator | None = None,
        generator: torch.Generator | None = None,
    ) -> ImportanceEstimate:
        """Log p(y) of each sentence by importance sampling from q, with its standard error.

        The mean of p(x, y) / q(x | y) over exact draws from q: of all states, whatever the
        estimator of the bound, at O(T N^2) for a sentence and O(T N) for each sample; or of those
        that a ``proposal`` keeps, O(T K^2) and O(T K). p(y) is unbiased if these are drawn and
        weighted, and too low if they are only the largest ones. Each replicate of the proposal
        draws ``samples`` of its own; the estimate is the mean over replicates, and the standard
        error that of this mean. With one replicate it does not include the choice of states.

        Warns where the divergence is below 0.01 nats a token: the states have collapsed, and the
        estimate is that of a model without them.

        Args:
            tokens: as for `chain`.
            lengths: as for `chain`.
            samples: draws for each sentence, and for each replicate.
            proposal: keeps states, as `Randomized` does; None: all.
            generator: of the draws.

        Raises:
            EvidenceError: as for `chain`.
            ModelError: as for `chain`; less than one sample; or a decoder that gives NaN or +inf.
        """
        if not is_whole(samples, 1):
            raise ModelError(f"importance_log_likelihood needs samples >= 1; got {samples!r}.")
        tokens, lengths = checked_tokens("StructuredVAE", tokens, lengths)
        chain = self._chain(tokens, lengths)
        if proposal is None:
            states = chain.sample(samples, generator).unsqueeze(1)
            log_q = chain.log_prob(states)
        else:
            kept = infer(chain, estimator=proposal, generator=generator).supports
            few = chain.restrict(kept.states, kept.log_weights)
            states = few.sample(samples, generator)
            place = states.clamp(min=0).unsqueeze(-1)
            within = inside(lengths, tokens.shape[1])
            # A kept state represents exp(weight) states.
            stands = kept.log_weights.unsqueeze(0).take_along_dim(place, -1).squeeze(-1)
            log_q = few.log_prob(states) - torch.where(within, stands, 0.0).sum(-1)
            chosen = kept.states.unsqueeze(0).take_along_dim(place, -1).squeeze(-1)
            states = torch.where(within, chosen, -1)
        at_once = max(1, tuning.DECODED_TOKENS // max(1, tokens.numel()))
        parts = [self._decoded(tokens, lengths, s) for s in states.flatten(0, 1).split(at_once)]
        words, told = (torch.cat(part).reshape(log_q.shape) for part in zip(*parts, strict=True))
        for name, part in (("words", words), ("states", told)):
            if not bool((part < math.inf).all()):
                raise ModelError(
                    f"importance_log_likelihood needs a decoder that gives log-probabilities; its "
                    f"{name} are NaN or +inf: look at its parameters."
                )
        kl = (log_q - told).mean((0, 1))
        # Replicates are independent; samples within one are not.
        each = Replicates(words + told - log_q).log_partition
        estimates = Replicates(each if len(each) > 1 else (words + told - log_q).squeeze(1))
        alone = (states == states[:1, :1]).all(-1).all(0).all(0) & (len(self.embeddings) > 1)
        error = torch.where(alone, math.inf, estimates.standard_error)
        if lengths.numel() and bool(kl.sum() < _COLLAPSED * lengths.sum()):
            warnings.warn(
                f"The states have collapsed: q differs by {float(kl.sum() / lengths.sum()):.2g} "
                "nats a token from what the decoder predicts without the words. Weigh the "
                "divergence less in the first part of training, or make the decoder weaker.",
                stacklevel=2,
            )
        return ImportanceEstimate(
            estimates.log_partition, error, estimates.effective_sample_size, kl
        )

    def extra_repr(self) -> str:
        states, dimension = self.embeddings.shape
        return f"states={states}, dimension={dimension}, estimator={self.estimator}"

    def _chain(self, tokens: Tensor, lengths: Tensor) -> Chain:
        encoded = self.encoder(tokens, lengths)
        expected = (*tokens.shape, self.embeddings.shape[1])
        if tuple(encoded.shape) != expected:
            raise ModelError(
                f"StructuredVAE needs an encoder that gives {expected}; got {tuple(encoded.shape)}."
            )
        unary = encoded @ self.embeddings.mT
        return Chain(unary, Bilinear(self.embeddings, self.embeddings), lengths=lengths)

    def _decoded(self, tokens: Tensor, lengths: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(n, B) both parts of log p(x, y) for states (n, B, T)."""
        count, batch = states.shape[:2]
        draw = RelaxedStates.of(states.flatten(0, 1), self.embeddings)
        joint = self.decoder(tokens.repeat(count, 1), lengths.repeat(count), draw)
        return joint.words.reshape(count, batch), joint.states.reshape(count, batch)
