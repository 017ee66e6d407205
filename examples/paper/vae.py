"""Sentences, the encoder and a resumable run for the experiments with structured VAEs."""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import rdpgraph as rg
from rdpgraph.nn import LSTMDecoder, StructuredVAE

sys.path.append(str(Path(__file__).parents[1]))
from hmm_lm import alone, batches, digest, numbered, progress, read, refuse, replaced

DATA = Path(__file__).parents[3] / "shared" / "data" / "multi30k"
HELD = 20  # one sentence in so many is held out to develop, and as many to test
UNKNOWN, END = "<unk>", "<eos>"


class Reader(StrEnum):
    """The encoders."""

    LSTM = "lstm"
    GPT2 = "gpt2"


# What both scripts ask on the command line.
Text = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="one sentence a line")]
Steps = Annotated[int, typer.Option(min=0, help="of training")]
Most = Annotated[int, typer.Option(min=0, help="sentences to train on; 0: all")]
Least = Annotated[int, typer.Option(min=1, help="occurrences of a word")]
Tokens = Annotated[int, typer.Option(min=1, help="in a batch")]
Hidden = Annotated[int, typer.Option(min=1, help="size of the decoder")]
Dimension = Annotated[int, typer.Option(min=1, help="of embeddings")]
EncoderName = Annotated[Reader, typer.Option(help="what reads the sentence")]
SaveEvery = Annotated[float, typer.Option(help="seconds between checkpoints")]


@dataclass(frozen=True)
class Options:
    """All that a run depends on; a run that goes on has the same.

    Attributes:
        states: of each word.
        top: how many of them are kept for their scores; 0 with a tail of 0: all are.
        tail: how many are drawn.
        seed: of everything.
        steps: of training.
        rate: the largest step size of Adam.
        tokens: in a batch.
        least: occurrences of a word.
        hidden: size of the decoder.
        dimension: of the embeddings of states and words.
        text: a fingerprint of the sentences.
        encoder: ``"lstm"``, or ``"gpt2"``.
    """

    states: int
    top: int
    tail: int
    seed: int
    steps: int
    rate: float = 2e-3
    tokens: int = 448
    least: int = 5
    hidden: int = 256
    dimension: int = 128
    text: str = ""
    encoder: str = "lstm"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.states}-{self.top}-{self.tail}-{self.seed}"

    @property
    def estimator(self) -> rg.Randomized | None:
        """None: all states; else those of the largest scores, and draws as in the paper."""
        if not self.top + self.tail:
            return None
        proposal = rg.randomized.LocalGlobal(rg.randomized.SoftmaxGlobal())
        if not self.tail:
            return rg.Randomized(proposal, rg.randomized.Top(self.top), defensive=0.0)
        return rg.Randomized(proposal, rg.randomized.TopTail(self.top, self.tail))


@dataclass(frozen=True)
class Sentences:
    """Numbered words, by part."""

    train: list[Tensor]
    dev: list[Tensor]
    test: list[Tensor]
    words: tuple[str, ...]
    text: str

    @property
    def vocabulary(self) -> int:
        """Number of words with a number."""
        return len(self.words)


def sentences(text: Path | None, *, least: int, most: int = 0, held: int = 0) -> Sentences:
    """Sentences of a file, of which some are held out; by default multi30k's English.

    Args:
        text: one sentence a line, or None.
        least: occurrences of a word that is not unknown.
        most: how many to train on; 0: all.
        held: how many to develop and test on; 0: all.
    """
    if text is None:
        if not DATA.exists():
            refuse(f"There is no {DATA}: give --text FILE, one sentence a line.")
        parts = [read(DATA / f"{name}.en.gz", characters=False)
                 for name in ("train", "val", "test_2016_flickr")]  # fmt: skip
    else:
        lines = read(text, characters=False)
        if len(lines) < 2 * HELD:
            refuse(f"{text} has {len(lines)} sentences; {2 * HELD} are needed at least.")
        random.Random(0).shuffle(lines)
        some = len(lines) // HELD
        parts = [lines[2 * some :], lines[:some], lines[some : 2 * some]]
    train, dev, test = parts[0][: most or None], parts[1][: held or None], parts[2][: held or None]
    counts = Counter(word for line in train for word in line)
    known = sorted(word for word, count in counts.items() if count >= least and word != UNKNOWN)
    words = {word: number for number, word in enumerate([UNKNOWN, *known])}
    own = digest([train, dev, test])
    return Sentences(*(numbered(part, words) for part in (train, dev, test)), tuple(words), own)


class Encoder(nn.Module):
    """A bidirectional LSTM: one forwards, one backwards from the length."""

    def __init__(self, vocabulary: int, dimension: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dimension)
        self.ahead = nn.LSTM(dimension, dimension, batch_first=True)
        self.back = nn.LSTM(dimension, dimension, batch_first=True)
        self.out = nn.Linear(2 * dimension, dimension)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(tokens.shape[1])
        # Its own place, counted from the end; padding stays where it is.
        turned = torch.where(steps < lengths.unsqueeze(1), lengths.unsqueeze(1) - 1 - steps, steps)
        read, turned = self.words(tokens), turned.unsqueeze(-1)
        back, _ = self.back(read.take_along_dim(turned, 1))
        ahead, _ = self.ahead(read)
        return self.out(torch.cat([ahead, back.take_along_dim(turned, 1)], 2))


class GPT2Encoder(nn.Module):
    """GPT-2 of transformers, if its weights are on disk.

    GPT-2 reads pieces of words. A word is what it says at the last piece of the word, where it has
    read all of them.
    """

    def __init__(self, words: tuple[str, ...], dimension: int) -> None:
        super().__init__()
        try:
            from transformers import GPT2Model, GPT2Tokenizer

            split = GPT2Tokenizer.from_pretrained("gpt2", local_files_only=True)
            self.body = GPT2Model.from_pretrained("gpt2", local_files_only=True)
        except (ImportError, OSError) as error:
            cause = str(error).strip().splitlines()[0]
            refuse(f"--encoder gpt2 needs transformers, and GPT-2's weights on disk: {cause}")
        pieces = [
            torch.tensor(
                [split.eos_token_id] if word in (UNKNOWN, END) else split.encode(f" {word}")
            )
            for word in words
        ]
        self.register_buffer("pieces", nn.utils.rnn.pad_sequence(pieces, batch_first=True))
        self.register_buffer("counts", torch.tensor([len(some) for some in pieces]))
        self.out = nn.Linear(self.body.config.n_embd, dimension)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        ids, last = packed(self.pieces, self.counts, tokens, lengths)
        # Attention is causal: no word reads the padding after its sentence.
        hidden = self.body(ids).last_hidden_state
        return self.out(hidden.take_along_dim(last.unsqueeze(2), 1))


def packed(
    pieces: Tensor, counts: Tensor, tokens: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Sentences of words as sentences of pieces.

    Args:
        pieces: (V, M) of each word, padded.
        counts: (V,) how many pieces each word has.
        tokens: (B, T) words.
        lengths: (B,) words of each sentence.

    Returns:
        (B, L) pieces, padded by zeros, and (B, T) where the last piece of each word is.
    """
    inside = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
    count = counts[tokens] * inside
    ends = count.cumsum(1)
    most = int(ends[:, -1].max())
    number = torch.arange(pieces.shape[1])
    place = (ends - count).unsqueeze(2) + number
    place = torch.where(number < count.unsqueeze(2), place, most)  # beyond the end: cut off below
    ids = tokens.new_zeros(len(tokens), most + 1)
    ids.scatter_(1, place.flatten(1), pieces[tokens].flatten(1))
    return ids[:, :most], (ends - 1).clamp_min(0)


def begun(options: Options, words: tuple[str, ...]) -> StructuredVAE:
    """A model that nothing has trained."""
    torch.manual_seed(options.seed)
    encoder = (
        GPT2Encoder(words, options.dimension)
        if options.encoder == Reader.GPT2
        else Encoder(len(words), options.dimension)
    )
    decoder = LSTMDecoder(
        states=options.states, vocabulary=len(words), hidden=options.hidden,
        dimension=options.dimension,
    )  # fmt: skip
    return StructuredVAE(
        encoder, decoder, states=options.states, dimension=options.dimension,
        estimator=options.estimator,
    )  # fmt: skip


def temperature(share: float) -> float:
    """Temperature of a step: 1 to 0.3 in the course of training, by equal factors."""
    return 0.3**share


def weight(share: float) -> float:
    """Weight of the divergence: 0 to 1 in the first half of training."""
    return min(1.0, 2 * share)


def load(path: Path, options: Options, model: StructuredVAE) -> dict[str, Any]:
    """Read a checkpoint into the model."""
    again = "Restore the file, or begin in another folder."
    try:
        state = torch.load(path, weights_only=True)
        written = state.pop("digest")
    except Exception as error:  # whatever a damaged archive leads to
        refuse(f"{path} is no checkpoint of this program, or is damaged ({type(error).__name__}). "
               f"{again}")  # fmt: skip
    if digest(state) != written:
        refuse(f"{path} is damaged: it is not what was written. {again}")
    if state["options"] != asdict(options):
        known = state["options"]
        differ = [name for name, value in asdict(options).items() if known[name] != value]
        refuse(f"{path} was begun with another {', '.join(differ)}. Begin in another folder.")
    model.load_state_dict(state["model"])
    return state


def trained(
    out: Path, options: Options, data: Sentences, *, save_every: float = 60.0, stop: int = 0
) -> tuple[StructuredVAE, dict[str, Any]]:
    """The model after ``stop`` steps, or at the end of its run, and what its checkpoint holds.

    A run that was killed, or that stopped, goes on from its last checkpoint, to the same parameters
    as a run at one go.
    """
    stop = stop or options.steps
    out.mkdir(parents=True, exist_ok=True)
    with alone(out):
        model = begun(options, data.words)
        optimiser = torch.optim.Adam(model.parameters(), lr=options.rate, betas=(0.9, 0.98))
        state: dict[str, Any] = {"options": asdict(options), "step": 0, "seconds": 0.0, "log": []}
        path = out / "checkpoint.pt"
        if path.exists():
            state = load(path, options, model)
            optimiser.load_state_dict(state["optimiser"])

        def save() -> None:
            whole = state | {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
            whole |= {"digest": digest(whole)}
            replaced(path, lambda file: torch.save(whole, file))

        model.train()
        saved = before = time.process_time()
        with progress() as bar:
            task = bar.add_task(out.name, total=stop, completed=state["step"], note="")
            for batch, lengths in turns(data.train, options, state["step"], stop):
                state["log"].append(step(model, optimiser, options, state["step"], batch, lengths))
                now = time.process_time()
                state["seconds"], before = state["seconds"] + now - before, now
                state["step"] += 1
                bar.update(task, advance=1, note=note(state["log"]))
                if now - saved > save_every or state["step"] == stop:
                    save()
                    saved = now
    model.eval()
    return model, state


def turns(
    data: list[Tensor], options: Options, begin: int, end: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the steps from one to another, in an order that the seed alone decides."""
    done, epoch = 0, 0
    while done < end:
        shuffled = torch.Generator().manual_seed(hash((options.seed, epoch)))
        for found in batches(data, options.tokens, shuffled):
            if begin <= done < end:
                yield found
            done += 1
        epoch += 1


def step(
    model: StructuredVAE, optimiser: torch.optim.Optimizer, options: Options, number: int,
    batch: Tensor, lengths: Tensor,
) -> list[float]:  # fmt: skip
    """One step of training: the bound and the divergence, nats a sentence."""
    share = number / options.steps
    for group in optimiser.param_groups:
        group["lr"] = options.rate * min(1.0, (number + 1) / 50, 2 * (1 - share))
    generator = torch.Generator().manual_seed(1_000_003 * options.seed + number)
    found = model(batch, lengths, temperature=temperature(share), generator=generator)
    optimiser.zero_grad()
    loss = -(found.words - weight(share) * found.kl).sum() / lengths.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimiser.step()
    return [float(found.elbo.detach().mean()), float(found.kl.detach().mean())]


def note(log: list[list[float]]) -> str:
    """The last steps in a few words."""
    bound, kl = (sum(values) / len(values) for values in zip(*log[-50:], strict=True))
    return f"bound {bound:.2f}, divergence {kl:.2f}"


@torch.no_grad()
def negative_log_likelihood(
    model: StructuredVAE, data: list[Tensor], *, samples: int, proposal: rg.Randomized | None = None
) -> tuple[float, float]:
    """Mean nats of a sentence by importance sampling, and the divergence."""
    total = kl = 0.0
    generator = torch.Generator().manual_seed(0)
    for batch, lengths in batches(data, 1024, None):
        found = model.importance_log_likelihood(
            batch, lengths, samples=samples, proposal=proposal, generator=generator
        )
        total -= float(found.log_likelihood.sum())
        kl += float(found.kl.sum())
    return total / len(data), kl / len(data)


@torch.no_grad()
def frequencies(model: StructuredVAE, data: list[Tensor], *, own: bool) -> Tensor:
    """(N,) how often each state is drawn for all words: the aggregated posterior.

    Args:
        model: whose q.
        data: the sentences.
        own: whether by the model's estimator, and not with all states.
    """
    counts = torch.zeros(len(model.embeddings))
    generator = torch.Generator().manual_seed(0)
    for batch, lengths in batches(data, 1024, None):
        estimator = model.estimator if own else None
        posterior = rg.infer(model.chain(batch, lengths), estimator=estimator, generator=generator)
        drawn = posterior.sample(1, generator).flatten()
        counts += torch.bincount(drawn[drawn >= 0], minlength=len(counts))
    return counts / counts.sum()


def summary(shares: Tensor) -> dict[str, Any]:
    """Summary of frequencies: the states that occur, their perplexity, and all in falling order."""
    present = shares[shares > 0]
    worth = float((-(present * present.log()).sum()).exp())
    falling = shares.sort(descending=True).values.tolist()
    return {"in use": len(present), "worth": worth, "shares": falling}
