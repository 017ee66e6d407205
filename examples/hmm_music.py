"""
A hidden Markov model of polyphonic music
=========================================

Trains hidden states that emit chords, sets of 88 notes, on piano rolls in a ``.mat`` file with
``traindata``, ``validdata`` and ``testdata``, each a row of sequences (steps, 88) of zeros and
ones, such as the JSB chorales and Nottingham files of Boulanger-Lewandowski et al. 2012:

    python examples/hmm_music.py JSB_Chorales.mat --out jsb

Notes are independent given the state; transitions are of low rank. The chain is given the
log-likelihoods of what was heard in each state, (batch, steps, states), whatever makes them.

Learning is stepwise expectation maximisation (Liang and Klein 2009, "Online EM for unsupervised
models"): the gradient of log Z in log-probabilities is the expected counts, of which running means
make the next probabilities. Each batch leaves some states out. Figures are the mean negative
log-likelihood of a step, in nats, of all sequences whole; what is kept is best on the validation
data.
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


class Parameters(NamedTuple):
    """Log-probabilities, or expected counts of what they are of; N states, r ranks.

    Attributes:
        start: (N,) the first state.
        out: (N, r) the rank after a state.
        into: (N, r) the state after a rank.
        on: (N, 88) a note is heard.
        off: (N, 88) it is not.
    """

    start: Tensor
    out: Tensor
    into: Tensor
    on: Tensor
    off: Tensor

    def log_likelihood(self, rolls: list[Tensor]) -> Tensor:
        """(B,) of sequences (steps, 88)."""
        lengths = torch.tensor([len(roll) for roll in rolls])
        music = nn.utils.rnn.pad_sequence(rolls, batch_first=True)
        heard = music @ (self.on - self.off).mT + self.off.sum(1)
        unary = torch.cat([heard[:, :1] + self.start, heard[:, 1:]], 1)
        return rg.Chain(unary, rg.LowRank(self.out, self.into), lengths=lengths).log_partition()

    def some(self, states: Tensor) -> "Parameters":
        """Marginals of a few states alone, normalised."""
        start, out, into, on, off = (values[states] for values in self)
        return Parameters(start.log_softmax(0), out, into.log_softmax(0), on, off)


def begun(chords: Tensor, *, states: int, rank: int, generator: torch.Generator) -> Parameters:
    """States that sound like a chord of the data each, and random transitions."""
    chosen = chords[torch.randint(len(chords), (states,), generator=generator)]
    notes = (0.8 * chosen + 0.2 * chords.mean(0)).clamp(1e-4, 1 - 1e-4)
    out, into = (2 * torch.randn(states, rank, generator=generator) for _ in range(2))
    start = torch.zeros(states).log_softmax(0)
    return Parameters(start, out.log_softmax(1), into.log_softmax(0), notes.log(), (-notes).log1p())


def learned(counts: Parameters, often: Tensor, prior: float) -> Parameters:
    """The most probable parameters, given counts and a little more of every kind.

    Args:
        counts: expected ones.
        often: (88,) how often each note is heard.
        prior: counts that each state is given beyond its own.
    """
    start, out, into, on, off = (values.clamp(min=0.0) for values in counts)
    notes = ((on + 0.3 * often) / (on + off + 0.3)).clamp(1e-6, 1 - 1e-6)
    return Parameters(
        (start + 0.1).log().log_softmax(0),
        (out + prior / out.shape[1]).log().log_softmax(1),
        (into + prior / len(into)).log().log_softmax(0),
        notes.log(),
        (-notes).log1p(),
    )


def expected(parameters: Parameters, rolls: list[Tensor]) -> Parameters:
    """Expected counts: the gradient of the log-likelihood in log-probabilities."""
    watched = Parameters(*(values.detach().requires_grad_() for values in parameters))
    value = watched.log_likelihood(rolls).sum()
    return Parameters(*torch.autograd.grad(value, list(watched)))


def read(path: Path, part: str) -> list[Tensor]:
    """The sequences of a part of the data, each (steps, 88)."""
    try:
        rolls = loadmat(path)[part][0]
    except (KeyError, ValueError, MatReadError) as error:
        raise typer.BadParameter(f"{path} is no piano roll with {part}: {error}.") from None
    return [torch.from_numpy(roll.astype("float32")) for roll in rolls]


def batches(music: list[Tensor], steps: int, generator: torch.Generator) -> Iterator[list[Tensor]]:
    """Sequences of like length, of about so many steps together, in random order."""
    groups: list[list[Tensor]] = [[]]
    for roll in sorted(music, key=len):
        if groups[-1] and (len(groups[-1]) + 1) * len(roll) > steps:
            groups.append([])
        groups[-1].append(roll)
    for turn in torch.randperm(len(groups), generator=generator):
        yield groups[int(turn)]


def nats(parameters: Parameters, music: list[Tensor]) -> float:
    """The mean negative log-likelihood of a step."""
    groups = batches(music, 8192, torch.Generator())
    total = sum(float(parameters.log_likelihood(rolls).sum()) for rolls in groups)
    return -total / sum(map(len, music))


@app.command()
def main(
    path: Annotated[Path, typer.Argument(exists=True, help="the .mat file")],
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the run")] = Path(
        "music-run"
    ),
    states: Annotated[int, typer.Option(min=1)] = 512,
    rank: Annotated[int, typer.Option(min=1, help="of the transitions")] = 128,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="share of states")] = 0.3,
    prior: Annotated[float, typer.Option(min=0.0, help="counts added to each state")] = 3.0,
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    steps: Annotated[int, typer.Option(min=1, help="steps in a batch")] = 2048,
    longest: Annotated[int, typer.Option(min=1, help="steps of a piece in training")] = 128,
    seed: int = 0,
) -> None:
    """Train, and tell how well the test data is foretold."""
    generator = torch.Generator().manual_seed(seed)
    train, valid, test = (read(path, f"{part}data") for part in ("train", "valid", "test"))
    total, often = sum(map(len, train)), torch.cat(train).mean(0)
    parameters = begun(torch.cat(train), states=states, rank=rank, generator=generator)
    best, lowest = parameters, math.inf
    spread = (1.0, total / states, total / rank, total / states, total / states)
    counts = Parameters(
        *(size * values.exp() for size, values in zip(spread, parameters, strict=True))
    )
    kept = max(1, round(states * (1 - dropout)))
    log: list[dict[str, float]] = []
    began, number = time.monotonic(), 0
    pieces = [part for roll in train for part in roll.split(longest)]
    with Progress() as bar:
        for epoch in bar.track(range(epochs), description="training"):
            for rolls in batches(pieces, steps, generator):
                some = torch.randperm(states, generator=generator)[:kept]
                share, number = (number + 2) ** -0.6, number + 1
                found = expected(parameters.some(some), rolls)
                for mean, new in zip(counts, found, strict=True):
                    mean[some] += share * (new * total / sum(map(len, rolls)) - mean[some])
                parameters = learned(counts, often, prior)
            score = nats(parameters, valid)
            if score < lowest:
                best, lowest = parameters, score
            log.append({"epoch": epoch + 1, "valid": score, "seconds": time.monotonic() - began})
            bar.console.print(f"epoch {epoch + 1}: valid {score:.3f} nats a step")
    result = {name: nats(best, music) for name, music in
              (("train", train), ("valid", valid), ("test", test))}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "log.json").write_text(json.dumps({"epochs": log, "nats": result}, indent=1))
    torch.save(best._asdict(), out / "parameters.pt")
    typer.echo(", ".join(f"{name} {value:.3f}" for name, value in result.items()))


if __name__ == "__main__":
    app()
