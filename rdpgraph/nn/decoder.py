"""Decoders of structured VAEs: words and hidden states, one after the other."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rdpgraph._numbers import is_whole
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.query.relaxed import RelaxedStates


class Joint(NamedTuple):
    """The two parts of log p(x, y), (B,) nats each.

    Attributes:
        words: sum over steps of log p(word | the state of its step, all before).
        states: sum over steps of log p(state | all words and states before).
    """

    words: Tensor
    states: Tensor


class Decoder(Protocol):
    """What `StructuredVAE` asks of a decoder: a module that is called like this."""

    def __call__(self, tokens: Tensor, lengths: Tensor, draw: RelaxedStates) -> Joint:
        """Log p(x, y) at relaxed or certain states.

        Certain states have one weight each, of 1 (`RelaxedStates.of`), and there the answer is
        exact; at relaxed ones it is whatever is differentiable in the weights and agrees with that.
        `RelaxedStates.mean` and `RelaxedStates.pick` are all that is needed of them.

        Args:
            tokens: (B, T) int64, 0 beyond the lengths.
            lengths: (B,).
            draw: (B, T, K) states with weights, zero beyond the lengths.
        """
        ...


class LSTMDecoder(nn.Module):
    """An autoregressive decoder of words and states: `Decoder` by an LSTM.

    At every step the LSTM has read the words and states before it; from what it remembers a network
    predicts the state, and another one, given that state too, the word. A relaxed state is the
    weighted mean of embeddings where it is read, and of log-probabilities where it is predicted.
    Fu, Cunningham and Lapata 2022 (arXiv:2112.03638v3), eq. 32.

    A step costs O(K) for the states drawn, and O(states + vocabulary) for the normalisers.

    Args:
        states: how many.
        vocabulary: how many words.
        hidden: of the LSTM and of the networks.
        dimension: of the embeddings of words and of states.

    Raises:
        ModelError: sizes below 1.
    """

    def __init__(
        self, *, states: int, vocabulary: int, hidden: int = 256, dimension: int = 128
    ) -> None:
        if not all(is_whole(size, 1) for size in (states, vocabulary, hidden, dimension)):
            raise ModelError(
                "LSTMDecoder needs states, vocabulary, hidden and dimension >= 1; got "
                f"{states!r:.20}, {vocabulary!r:.20}, {hidden!r:.20} and {dimension!r:.20}."
            )
        super().__init__()
        self.words = nn.Embedding(vocabulary, dimension)
        self.states = nn.Embedding(states, dimension)
        self.lstm = nn.LSTM(2 * dimension, hidden, batch_first=True)
        self.state_logits = _network(hidden, hidden, states)
        self.word_logits = _network(hidden + dimension, hidden, vocabulary)

    def forward(self, tokens: Tensor, lengths: Tensor, draw: RelaxedStates) -> Joint:
        """Log p(x, y), as `Decoder` has it.

        Raises:
            EvidenceError: a token that is out of range.
        """
        vocabulary = self.words.num_embeddings
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            wrong = tokens[(tokens < 0) | (tokens >= vocabulary)][0]
            raise EvidenceError(
                f"LSTMDecoder of {vocabulary} words got token {int(wrong)}; use 0 to "
                f"{vocabulary - 1}."
            )
        inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1)
        states = draw.mean(self.states.weight)
        read = torch.cat([self.words(tokens), states], 2)
        # What is read at a step is of the step before; at the first, nothing.
        read = nn.functional.pad(read, (0, 0, 1, 0))[:, :-1]
        memory, _ = self.lstm(read)
        told = draw.pick(self.state_logits(memory).log_softmax(-1))
        logits = self.word_logits(torch.cat([memory, states], 2))
        words = -nn.functional.cross_entropy(logits.mT, tokens, reduction="none")
        return Joint(torch.where(inside, words, 0.0).sum(1), torch.where(inside, told, 0.0).sum(1))


def _network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
