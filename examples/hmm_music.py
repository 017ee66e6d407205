"""
A hidden Markov model of polyphonic music
=========================================

Trains hidden states that emit chords, sets of 88 notes, on piano rolls in a ``.mat`` file with
``traindata``, ``validdata`` and ``testdata``, each a row of sequences (steps, 88) of zeros and
ones, such as the JSB chorales and Nottingham files of Boulanger-Lewandowski et al. 2012:

    python examples/hmm_music.py JSB_Chorales.mat --out jsb

Notes are independent given the state, or with ``--memory`` given the state and whether each of
them sounded a step before, which is an autoregressive hidden Markov model; transitions are of low
rank. A piece is in one of twelve keys, alike in probability, and sounds as many semitones lower:
all keys share the states of one, as twelve hidden Markov models with tied parameters, over which
the likelihood is summed. The chain is given the log-likelihoods of what was heard in each state,
(batch, steps, states), which may depend on all that was heard before.

Learning is stepwise expectation maximisation (Liang and Klein 2009, "Online EM for unsupervised
models"): the gradient of log Z in log-probabilities is the expected counts, of which running means
make the next probabilities. Each batch leaves some states out. Pieces are learned in the key that
is likeliest by how often each of the twelve notes sounds. Figures are the mean negative
log-likelihood of a step, in nats, of all sequences whole and in all keys; what is kept is best on
the validation data in two keys, which bounds the figure.
"""

# sphinx_gallery_thumbnail_path = "generated/hmm_music.png"

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.progress import Progress
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from torch import Tensor, nn

import rdpgraph as rg

app = typer.Typer(add_completion=False, help=__doc__)
NOTES, KEYS = 88, 12
WIDE = NOTES + KEYS - 1


class Parameters(NamedTuple):
    """Log-probabilities, or expected counts of what they are of; N states, r ranks.

    Attributes:
        start: (N,) the first state.
        out: (N, r) the rank after a state.
        into: (N, r) the state after a rank.
        on: (N, 99) a note is heard: 88 of them from the key on, 0 to 11. With memory (N, 198),
            those that did not sound a step before, then those that did.
        off: likewise, it is not.
    """

    start: Tensor
    out: Tensor
    into: Tensor
    on: Tensor
    off: Tensor

    def log_likelihood(self, rolls: list[Tensor], keys: Tensor) -> Tensor:
        """(B,) of sequences (steps, 88), each in any of its keys (B, K), each 1 / 12 probable."""
        lengths = torch.tensor([len(roll) for roll in rolls])
        music = nn.utils.rnn.pad_sequence(rolls, batch_first=True)
        links, ways = rg.LowRank(self.out, self.into), list[Tensor]()
        for key in keys.mT:
            notes, known = placed(music, key), placed(torch.ones_like(music), key)
            if self.on.shape[1] != WIDE:
                notes, known = remembered(notes, notes), remembered(known, notes)
            heard = notes @ self.on.mT + (known - notes) @ self.off.mT
            unary = torch.cat([heard[:, :1] + self.start, heard[:, 1:]], 1)
            ways.append(rg.Chain(unary, links, lengths=lengths).log_partition())
        return torch.stack(ways).logsumexp(0) - math.log(KEYS)

    def some(self, states: Tensor) -> "Parameters":
        """Marginals of a few states alone, normalised."""
        start, out, into, on, off = (values[states] for values in self)
        return Parameters(start.log_softmax(0), out, into.log_softmax(0), on, off)


def placed(music: Tensor, key: Tensor) -> Tensor:
    """Rolls (B, T, 88) among 99 notes, from the key on."""
    columns = (key.unsqueeze(1) + torch.arange(NOTES)).unsqueeze(1).expand_as(music)
    return music.new_zeros(*music.shape[:2], WIDE).scatter(2, columns, music)


def remembered(values: Tensor, notes: Tensor) -> Tensor:
    """Values (B, T, 99) of notes that did not sound a step before, and of those that did."""
    before = nn.functional.pad(notes, (0, 0, 1, 0))[:, :-1]
    return torch.cat([values * (1 - before), values * before], 2)


def classes(rolls: list[Tensor]) -> Tensor:
    """(B, 12) the share of each note in a piece, whatever its octave."""
    sums = torch.stack([nn.functional.pad(roll.sum(0), (0, 8)) for roll in rolls])
    return nn.functional.normalize(sums.unflatten(1, (-1, KEYS)).sum(1), p=1)


def likely(rolls: list[Tensor], profile: Tensor, count: int) -> Tensor:
    """(B, count) the keys in which the notes of pieces are most like a profile, (12,)."""
    moved = torch.stack([classes(rolls).roll(key, 1) for key in range(KEYS)], 1)
    return (moved @ (profile + 1e-3).log()).topk(count, 1).indices


def common(rolls: list[Tensor]) -> Tensor:
    """The profile (12,) that pieces have most nearly in common, by turns of it and of keys."""
    found = classes(rolls)
    profile, keys = found.mean(0), torch.zeros(len(rolls), 1)
    for _ in range(20):
        keys = likely(rolls, profile, 1)
        profile = found.gather(1, (torch.arange(KEYS) - keys) % KEYS).mean(0)
    # Turned so that keys are near one another, and a third below is not a sixth above.
    spread = [float(((keys + turn) % KEYS).double().var()) for turn in range(KEYS)]
    return profile.roll(spread.index(min(spread)))


def begun(
    notes: Tensor, often: Tensor, *, states: int, rank: int, generator: torch.Generator
) -> Parameters:
    """States that sound like a chord of the data each, and random transitions."""
    chosen = notes[torch.randint(len(notes), (states,), generator=generator)]
    chosen = chosen.repeat(1, len(often) // WIDE)
    notes = (0.8 * chosen + 0.2 * often).clamp(1e-4, 1 - 1e-4)
    out, into = (2 * torch.randn(states, rank, generator=generator) for _ in range(2))
    start = torch.zeros(states).log_softmax(0)
    return Parameters(start, out.log_softmax(1), into.log_softmax(0), notes.log(), (-notes).log1p())


def learned(counts: Parameters, often: Tensor, prior: float, smoothing: float) -> Parameters:
    """The most probable parameters, given expected counts and a little more of every kind."""
    start, out, into, on, off = (values.clamp(min=0.0) for values in counts)
    notes = ((on + smoothing * often) / (on + off + smoothing)).clamp(1e-6, 1 - 1e-6)
    return Parameters(
        (start + 0.1).log().log_softmax(0),
        (out + prior / out.shape[1]).log().log_softmax(1),
        (into + prior / len(into)).log().log_softmax(0),
        notes.log(),
        (-notes).log1p(),
    )


def expected(parameters: Parameters, rolls: list[Tensor], keys: Tensor) -> Parameters:
    """Expected counts: the gradient of the log-likelihood in log-probabilities."""
    watched = Parameters(*(values.detach().requires_grad_() for values in parameters))
    value = watched.log_likelihood(rolls, keys).sum()
    return Parameters(*torch.autograd.grad(value, list(watched)))


def read(path: Path, part: str) -> list[Tensor]:
    """The sequences of a part of the data, each (steps, 88)."""
    try:
        rolls = loadmat(path)[part][0]
    except (KeyError, ValueError, MatReadError) as error:
        raise typer.BadParameter(f"{path} is no piano roll with {part}: {error}.") from None
    return [torch.from_numpy(roll.astype("float32")) for roll in rolls]


def batches(music: list[Tensor], steps: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Numbers of sequences of like length, of about so many steps together, in random order."""
    groups: list[list[int]] = [[]]
    for number in sorted(range(len(music)), key=lambda number: len(music[number])):
        if groups[-1] and (len(groups[-1]) + 1) * len(music[number]) > steps:
            groups.append([])
        groups[-1].append(number)
    for turn in torch.randperm(len(groups), generator=generator):
        yield groups[int(turn)]


def nats(parameters: Parameters, music: list[Tensor], keys: Tensor) -> float:
    """The mean negative log-likelihood of a step, in some keys (B, K)."""
    total = 0.0
    for numbers in batches(music, 8192, torch.Generator()):
        rolls = [music[number] for number in numbers]
        total += float(parameters.log_likelihood(rolls, keys[numbers]).sum())
    return -total / sum(map(len, music))


@app.command()
def main(
    path: Annotated[Path, typer.Argument(exists=True, help="the .mat file")],
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the run")] = Path(
        "music-run"
    ),
    states: Annotated[int, typer.Option(min=1)] = 1024,
    rank: Annotated[int, typer.Option(min=1, help="of the transitions")] = 128,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="share of states")] = 0.5,
    prior: Annotated[float, typer.Option(min=0.0, help="counts added to each state")] = 1.0,
    smoothing: Annotated[float, typer.Option(min=0.0, help="counts added to each note")] = 0.2,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    steps: Annotated[int, typer.Option(min=1, help="steps in a batch")] = 2048,
    longest: Annotated[int, typer.Option(min=1, help="steps of a piece in training")] = 128,
    seed: int = 0,
    *,
    memory: Annotated[bool, typer.Option(help="notes depend on those a step before")] = False,
) -> None:
    """Train, and tell how well the test data is foretold."""
    generator = torch.Generator().manual_seed(seed)
    train, valid, test = (read(path, f"{part}data") for part in ("train", "valid", "test"))
    pieces = [part for roll in train for part in roll.split(longest)]
    profile, total = common(train), sum(map(len, train))
    keys = likely(pieces, profile, 1)
    notes = torch.cat([placed(part[None], key)[0] for part, key in zip(pieces, keys, strict=True)])
    often = notes.mean(0)
    if memory:
        sums = (remembered(each[None], notes[None])[0].sum(0) for each in (notes, notes * 0 + 1))
        often = (next(sums) + often.repeat(2)) / (next(sums) + 1)
    parameters = begun(notes, often, states=states, rank=rank, generator=generator)
    best, lowest, number = parameters, math.inf, 0
    spread = (1.0, total / states, total / rank, total / states, total / states)
    counts = Parameters(
        *(size * values.exp() for size, values in zip(spread, parameters, strict=True))
    )
    kept, log = max(1, round(states * (1 - dropout))), list[dict[str, float]]()
    with Progress() as bar:
        for epoch in bar.track(range(epochs), description="training"):
            for numbers in batches(pieces, steps, generator):
                some = torch.randperm(states, generator=generator)[:kept]
                share, number = (number + 2) ** -0.6, number + 1
                rolls = [pieces[piece] for piece in numbers]
                found = expected(parameters.some(some), rolls, keys[numbers])
                for mean, new in zip(counts, found, strict=True):
                    mean[some] += share * (new * total / sum(map(len, rolls)) - mean[some])
                parameters = learned(counts, often, prior, smoothing)
            score = nats(parameters, valid, likely(valid, profile, 2))
            if score < lowest:
                best, lowest = parameters, score
            log.append({"epoch": epoch + 1, "valid": score, "seconds": time.process_time()})
            bar.console.print(f"epoch {epoch + 1}: valid {score:.3f} nats a step")
    every = torch.arange(KEYS).unsqueeze(0)
    result = {"valid": nats(best, valid, every.expand(len(valid), -1))}
    result["test"] = nats(best, test, every.expand(len(test), -1))
    out.mkdir(parents=True, exist_ok=True)
    (out / "log.json").write_text(json.dumps({"epochs": log, "nats": result}, indent=1))
    torch.save(best._asdict(), out / "parameters.pt")
    typer.echo(", ".join(f"{name} {value:.3f}" for name, value in result.items()))


if __name__ == "__main__":
    app()
