"""A hidden Markov model of text as a module."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import FileFormatError, ModelError
from rdpgraph.io import hub
from rdpgraph.io.tensors import read_tensors, require_like, write_tensors
from rdpgraph.io.text import PathLike, write_bytes_atomically
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import Banded, Monarch, PairOperator
from rdpgraph.model.potentials.table import as_values
from rdpgraph.nn.features import FeatureMap
from rdpgraph.nn.tokens import checked_tokens, require_known
from rdpgraph.structures.chain import rank_chains
from rdpgraph.structures.chain.constructors import checked_rows
from rdpgraph.structures.chain.model import Chain

_SPREAD = 2.0


class HMM(nn.Module):
    """A language model with hidden states: p(tokens) = sum over states of transitions x emissions.

    Every state has embeddings, from which softmaxes make the start, the transitions and the
    emissions. With a ``rank``, transitions are `LowRank.normalised` on a learned `FeatureMap`: a
    sentence of T tokens then costs O(T N r) in place of O(T N^2), and tens of thousands of states
    can be trained. The loss is ``-log_likelihood``. Chiu, Deng and Rush 2021 (arXiv:2201.02715).

    Work for S tokens in all and embeddings of d numbers: S N r for transitions, and N d V for the
    normalisers of the emissions, which is most of it where a batch has few tokens. Memory: S N, and
    N V, of which no more than 2**24 entries at a time; beyond these they are made once more for the
    gradient. Symbols of a small vocabulary have their r x r matrices made once where that is
    faster. Under autocast the products are in its type, and the recursion is in the parameters'.

    Example:
        >>> model = HMM(states=64, vocabulary=20, rank=8)
        >>> tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 0, 0]])
        >>> model.log_likelihood(tokens, torch.tensor([4, 2])).shape
        torch.Size([2])

    Args:
        states: how many, N.
        vocabulary: the number of tokens, V.
        rank: of the transitions; None: a dense N x N softmax.
        transition: in place of a rank, a `Banded` or `Monarch` over the states, where its
            log-values begin. They are parameters, and rows are normalised at every use.
        dimension: of the embeddings; None: none, and the tables are the parameters.
        dropout: the share of states that each training call leaves out, renormalised over the
            rest; fewer states are also less work. Chiu and Rush 2020 (arXiv:2011.04640), 3.3.
        counts: (V,) of the tokens in the training text: the emissions begin near their
            frequencies (a token counted 0 as half of one), which saves the first epochs. Default:
            near uniform.
        generator: of the initial parameters. States begin different enough, logits of standard
            deviation 2, to be told apart from the first step on.

    Raises:
        ModelError: sizes below 1, a dropout outside [0, 1), or counts of another shape or below 0.
    """

    def __init__(
        self,
        *,
        states: int,
        vocabulary: int,
        rank: int | None = None,
        transition: PairOperator | None = None,
        dimension: int | None = 128,
        dropout: float = 0.0,
        counts: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        sizes = (states, vocabulary, dimension, rank)
        fits = is_real(dropout) and is_whole(states, 1) and is_whole(vocabulary, 1)
        fits = fits and all(size is None or is_whole(size, 1) for size in sizes[2:])
        if not fits or not 0.0 <= dropout < 1.0:
            raise ModelError(
                "HMM needs states, vocabulary, dimension and rank >= 1 and a dropout in [0, 1); "
                f"got {states!r:.20}, {vocabulary!r:.20}, {dimension!r:.20}, {rank!r:.20} and "
                f"{dropout!r:.20}."
            )
        if transition and (rank or dropout or transition.shape != (states, states)):
            raise ModelError(
                f"HMM with a {type(transition).__name__} transition needs it over its {states} "
                f"states, no rank and no dropout; got {transition.shape}, {rank} and {dropout}."
            )
        if counts is not None and (counts.shape != (vocabulary,) or bool((counts < 0).any())):
            raise ModelError(
                f"HMM of {vocabulary} tokens needs their counts, ({vocabulary},), not below 0; got "
                f"{tuple(counts.shape)}."
            )
        super().__init__()
        self.dropout, self.rank = dropout, rank
        self.vocabulary, self.dimension = vocabulary, dimension
        # Of products of two, or by itself, a deviation of _SPREAD.
        scale = _SPREAD if dimension is None else math.sqrt(_SPREAD) / dimension**0.25

        def drawn(size: int, columns: int) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(size, columns, generator=generator))

        self.start, self.features = nn.Parameter(torch.zeros(states)), None
        self.before = self.after = self.tokens = None
        links = () if transition is None else transition.tensors
        self.links = nn.ParameterList(part.detach().clone() for part in links)
        # Its kind and offsets; the values are in `links`.
        zeros = [part.new_zeros(()).expand(part.shape) for part in links]
        self._kind = transition and transition.replaced(zeros)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        columns = dimension or rank or states
        if transition is None:
            self.before = drawn(states, columns)
            self.after = drawn(states, columns) if dimension or rank else None
        self.emitting = drawn(states, dimension or vocabulary)
        self.tokens = drawn(vocabulary, dimension) if dimension else None
        if counts is not None:
            frequent = counts.to(self.bias).clamp(min=0.5).log()
            self.bias.data = frequent - frequent.mean()
        if rank and dimension:
            self.features = FeatureMap(dimension, rank, generator=generator)
            self.features.weight.data *= scale

    @classmethod
    def from_probabilities(
        cls, start: ArrayLike, transition: ArrayLike | LowRank | PairOperator, emission: ArrayLike
    ) -> "HMM":
        """The model of three matrices, which are its parameters (`dimension` is None).

        Each may hold probabilities or their logs, which is told by what its rows sum to.

        Args:
            start: (N,) or (1, N) of the first state.
            transition: (N, N), [from, to], or the logs of a `LowRank`, `Banded` or `Monarch`.
            emission: (N, V) of the tokens in each state.

        Raises:
            ModelError: rows that sum to one in neither form, or shapes that do not fit.
        """
        first = _logs("start", start).flatten()
        rank = transition.rank if isinstance(transition, LowRank) else None
        kind = transition if isinstance(transition, PairOperator) else None
        if isinstance(transition, LowRank | PairOperator):
            checked_rows("HMM's transition", transition)
        else:
            transition = _logs("transition", transition)
        shown, states = _logs("emission", emission), len(first)
        square, shape = tuple(transition.shape), tuple(shown.shape)
        if (square, shape) != ((states, states), (states, shape[-1])):
            raise ModelError(
                "HMM needs start (N,), transition (N, N) and emission (N, V); got "
                f"{(states,)}, {square} and {shape}."
            )
        with torch.device("meta"):
            model = cls(
                states=states, vocabulary=shape[1], rank=rank, transition=kind, dimension=None
            )
        if isinstance(transition, PairOperator):
            given = {f"links.{place}": part for place, part in enumerate(transition.tensors)}
        elif isinstance(transition, LowRank):
            given = {"before": transition.log_left, "after": transition.log_right}
        else:
            given = {"before": transition}
        given |= {"start": first, "emitting": shown, "bias": shown.new_zeros(shown.shape[1])}
        model.load_state_dict({name: part.to(shown) for name, part in given.items()}, assign=True)
        return model.requires_grad_()

    def save_pretrained(self, folder: PathLike) -> None:
        """Write ``config.json`` and ``model.safetensors`` to a folder, each of them atomically.

        Raises:
            UnsupportedError: safetensors is not installed.
            OSError: they cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        config = {name: getattr(self, name) for name in _SIZES} | {"states": len(self.start)}
        config |= {"offsets": getattr(self._kind, "offsets", None)}
        write_tensors(Path(folder, "model.safetensors"), self.state_dict(), {"format": "pt"})
        data = json.dumps({"model_type": "rdpgraph.nn.HMM", **config}, indent=2)
        write_bytes_atomically(Path(folder, "config.json"), data.encode())

    def push_to_hub(
        self, name: str, *, token: str | None = None, private: bool | None = None,
        commit_message: str = "Upload a hidden Markov model",
    ) -> str:  # fmt: skip
        """Upload what `save_pretrained` writes to a repository of the hub; the commit's address.

        Args:
            name: ``"owner/name"``, which is made if there is none.
            token: of the account; default: the one that huggingface_hub keeps.
            private: where the repository is made.
            commit_message: of the commit.

        Raises:
            UnsupportedError: huggingface_hub or safetensors is not installed, or the hub refuses.
        """
        return hub.upload(
            self.save_pretrained, name, token=token, private=private, note=commit_message
        )

    @classmethod
    def from_pretrained(
        cls, folder: PathLike, *, names: tuple[str, str, str] | None = None
    ) -> "HMM":
        """The model of a folder that `save_pretrained` wrote; or that of another program.

        Args:
            folder: one that is here; or, where huggingface_hub is installed, the name of a
                repository, ``"owner/name"``, that it downloads or has kept.
            names: of the start, the transition and the emission in another program's
                ``model.safetensors``: what `from_probabilities` is given.

        Raises:
            FileFormatError: not such files.
            UnsupportedError: safetensors is not installed.
        """
        folder = hub.downloaded(folder)
        path = Path(folder, "model.safetensors")
        known, _ = read_tensors(path, "the tensors of an HMM")
        if names is not None:
            lacking = [name for name in names if name not in known]
            if lacking:
                raise FileFormatError(f"{path} has no {lacking[0]!r:.80}; it has {sorted(known)}.")
            return cls.from_probabilities(*(known[name] for name in names))
        config = Path(folder, "config.json")
        try:
            told = json.loads(config.read_bytes())
            links = [known[name] for name in sorted(known) if name.startswith("links.")]
            kind = _operator(told.get("offsets"), links)
            model = cls(transition=kind, **{name: told[name] for name in ("states", *_SIZES)})
        except (ValueError, KeyError, TypeError) as error:  # a ModelError is a ValueError
            raise FileFormatError(f"{config}: not the sizes of an HMM: {error!s:.200}") from None
        wanted = model.state_dict()
        kept = {name: require_like(path, name, known.get(name), wanted[name]) for name in wanted}
        model.to(known["start"].dtype).load_state_dict({name: known[name] for name in kept})
        return model

    def log_likelihood(
        self, tokens: Tensor, lengths: Tensor | None = None,
        *, generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """(B,) log-probabilities of sequences in nats, given their lengths; differentiable.

        Args:
            tokens: (B, T) integers; tokens beyond a length are ignored.
            lengths: (B,), default all T.
            generator: of the dropped states, in training.

        Raises:
            EvidenceError: a token that is out of range, or of another shape.
        """
        tokens, lengths = self._checked(tokens, lengths)
        active = self._active(generator)
        transition = self._transition(active)
        if isinstance(transition, LowRank) and tokens.shape[1]:
            symbols, rows = tokens.unique(return_inverse=True)
            quick = rank_chains.symbols_worthwhile(
                len(symbols), (tokens.shape[0], tokens.shape[1]), transition.shape[0],
                transition.rank, device=tokens.device,
            )  # fmt: skip
            if quick:
                emission = self._emission(symbols, active)
                made = rank_chains.Symbols.of(self._start(active), transition, emission)
                return made.log_score(rows, lengths)
        return self._chain(tokens, lengths, active, transition).log_partition()

    def forward(
        self, tokens: Tensor, lengths: Tensor | None = None,
        *, generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """(B,) the log-likelihood of sequences, as `log_likelihood` has it."""
        return self.log_likelihood(tokens, lengths, generator=generator)

    def chain(self, tokens: Tensor, lengths: Tensor | None = None) -> Chain:
        """The distribution of all hidden states given the tokens.

        Raises:
            EvidenceError: as for `log_likelihood`.
        """
        tokens, lengths = self._checked(tokens, lengths)
        return self._chain(tokens, lengths, None, self._transition(None))

    def transition(self) -> Tensor | LowRank | PairOperator:
        """The log-probabilities of a state after another, (N, N) or as the model has them."""
        return self._transition(None)

    def emission(self) -> Tensor:
        """(N, V) the log-probabilities of tokens in each state."""
        every = torch.arange(self.vocabulary, device=self.start.device)
        return self._emission(every, None).mT

    def matrices(self) -> tuple[Tensor, Tensor | LowRank | PairOperator, Tensor]:
        """Start (N,), transition and emission, as `Chain.hmm` and `ConstrainedHMM` take them."""
        return self._start(None), self.transition(), self.emission()

    def _chain(
        self, tokens: Tensor, lengths: Tensor, active: Tensor | None,
        transition: Tensor | LowRank | PairOperator,
    ) -> Chain:  # fmt: skip
        unary = self._emission(tokens, active)
        first = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(1) == 0
        unary = torch.where(first, unary + self._start(active), unary)
        return Chain(unary, transition, lengths=lengths)

    def _start(self, active: Tensor | None) -> Tensor:
        return _shares(_some(self.start, active))

    def _transition(self, active: Tensor | None) -> Tensor | LowRank | PairOperator:
        if self.before is None:
            assert self._kind is not None
            return self._kind.replaced(list(self.links)).normal()
        before = _some(self.before, active)
        if self.after is None:
            return _shares(before if active is None else before[:, active])
        after = _some(self.after, active)
        if self.tokens is None:
            return LowRank.normalised(before, after)
        if self.features is None:
            return (before @ after.mT).to(before.dtype).log_softmax(1)
        features = (self.features(side).to(side.dtype) for side in (before, after))
        return LowRank.normalised(*features)  # in full, whatever autocast makes of the products

    def _emission(self, tokens: Tensor, active: Tensor | None) -> Tensor:
        """(*tokens.shape, N) log-probabilities of tokens in each state."""
        emitting, known, bias = _some(self.emitting, active), self.tokens, self.bias
        symbols, rows = tokens.unique(return_inverse=True)
        if known is None:
            shown = _shares(emitting + bias)[:, symbols]
            return nn.functional.embedding(rows, shown.mT)

        def total(block: Tensor) -> Tensor:
            """Log-normalisers of some states; made again for the gradient where all are many."""
            return torch.logsumexp(block @ known.mT + bias, 1)

        blocks = emitting.split(tuning.per_block(self.vocabulary, tuning.LARGE_BLOCK))
        totals = [
            total(block) if len(blocks) == 1 else checkpoint(total, block, use_reentrant=False)
            for block in blocks
        ]
        logits = known[symbols] @ emitting.mT + bias[symbols].unsqueeze(1)
        return nn.functional.embedding(rows, logits - torch.cat(totals))  # pyright: ignore

    def _active(self, generator: torch.Generator | None) -> Tensor | None:
        states = len(self.start)
        count = max(1, round(states * (1.0 - self.dropout)))
        if not self.training or count == states:
            return None
        device = "cpu" if generator is None else generator.device
        order = torch.randperm(states, generator=generator, device=device)
        return order[:count].sort().values.to(self.start.device)

    def _checked(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens, 0 beyond the lengths, and lengths."""
        tokens, lengths = checked_tokens("HMM", tokens, lengths)
        require_known(f"HMM of {self.vocabulary} tokens", tokens, self.vocabulary)
        return tokens, lengths

    def extra_repr(self) -> str:
        return f"states={len(self.start)}, vocabulary={self.vocabulary}, dropout={self.dropout}"


_SIZES = ("vocabulary", "rank", "dimension", "dropout")


def _operator(offsets: Sequence[int] | None, links: list[Tensor]) -> PairOperator | None:
    """The transition of such parameters, if they are of any kind."""
    if not links or offsets is None:
        return Monarch(*links) if links else None
    values, *sides = links
    return Banded(values, offsets, LowRank(*sides) if sides else None)


def _logs(name: str, given: ArrayLike) -> Tensor:
    """Logs of probabilities that are given, or of logs that are."""
    values = as_values(f"HMM's {name}", given)
    sums = values.sum(-1)
    if bool((values >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return values.log()
    checked_rows(f"HMM's {name}", values)
    return values


def _shares(logits: Tensor) -> Tensor:
    """Log-probabilities by rows; -inf where all of a row is."""
    total = soft_sum(logits, -1).unsqueeze(-1)
    return torch.where(
        total > -math.inf, logits - torch.where(total > -math.inf, total, 0.0), -math.inf
    )


def _some(values: Tensor, active: Tensor | None) -> Tensor:
    return values if active is None else values[active]
