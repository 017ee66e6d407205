"""
A hidden Markov model of polyphonic music
=========================================

Trains hidden states that emit chords, sets of 88 notes, on piano rolls in a ``.mat`` file with
``traindata``, ``validdata`` and ``testdata``, each a row of sequences (steps, 88) of zeros and
ones, such as the JSB chorales and Nottingham files of Boulanger-Lewandowski et al. 2012:

    python examples/hmm_music.py JSB_Chorales.mat --out jsb

Notes are independent given the state; transitions are of low rank. The chain is given the
log-likelihoods of what was heard in each state, (batch, steps, states), whatever makes them.
Figures are the mean negative log-likelihood of a step, in nats, of all sequences whole. The
parameters kept are those of the epoch that is best on the validation data.
"""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import Progress
from scipy.io import loadmat
from torch import Tensor, nn

import rdpgraph as rg
from rdpgraph.nn import FeatureMap

app = typer.Typer(add_completion=False, help=__doc__)


class MusicHMM(nn.Module):
    """States that emit each note by itself; the start and the emissions begin at random chords."""

    def __init__(
        self, chords: Tensor, *, states: int, rank: int, dimension: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        chosen = chords[torch.randint(len(chords), (states,), generator=generator)]
        mean = chords.mean(0).clamp(1e-4, 1 - 1e-4)
        self.notes = nn.Parameter(torch.logit(0.8 * chosen + 0.2 * mean))
        self.start = nn.Parameter(torch.zeros(states))
        scale = math.sqrt(2) / dimension**0.25  # logits of the transitions deviate by 2
        self.before, self.after = (
            nn.Parameter(scale * torch.randn(states, dimension, generator=generator))
            for _ in range(2)
        )
        self.features = FeatureMap(dimension, rank, generator=generator)
        self.features.weight.data *= scale

    def forward(self, music: Tensor, lengths: Tensor, kept: Tensor | None = None) -> Tensor:
        """(B,) log-likelihoods of (B, T, 88); with some of the states alone."""
        every = torch.arange(len(self.start)) if kept is None else kept
        logits = self.notes[every]
        heard = music @ logits.mT - nn.functional.softplus(logits).sum(1)
        first = heard[:, :1] + self.start[every].log_softmax(0)
        transition = rg.LowRank.normalised(
            self.features(self.before[every]), self.features(self.after[every])
        )
        return rg.Chain(
            torch.cat([first, heard[:, 1:]], 1), transition, lengths=lengths
        ).log_partition()


def read(path: Path, part: str) -> list[Tensor]:
    """The sequences of a part of the data, each (steps, 88)."""
    return [torch.from_numpy(roll.astype("float32")) for roll in loadmat(path)[part][0]]


def batches(music: list[Tensor], steps: int, generator: torch.Generator) -> Iterator[list[Tensor]]:
    """Sequences of like length, of about so many steps together, in random order."""
    groups: list[list[Tensor]] = [[]]
    for roll in sorted(music, key=len):
        if groups[-1] and (len(groups[-1]) + 1) * len(roll) > steps:
            groups.append([])
        groups[-1].append(roll)
    for turn in torch.randperm(len(groups), generator=generator):
        yield groups[int(turn)]


def log_likelihood(model: MusicHMM, rolls: list[Tensor], kept: Tensor | None = None) -> Tensor:
    """Of sequences together, in nats."""
    lengths = torch.tensor([len(roll) for roll in rolls])
    return model(nn.utils.rnn.pad_sequence(rolls, batch_first=True), lengths, kept).sum()


@torch.no_grad()
def nats(model: MusicHMM, music: list[Tensor], steps: int) -> float:
    """The mean negative log-likelihood of a step."""
    groups = batches(music, steps, torch.Generator())
    total = sum(float(log_likelihood(model, rolls)) for rolls in groups)
    return -total / sum(map(len, music))


def pieces(music: list[Tensor], longest: int) -> list[Tensor]:
    """Sequences cut up, as training takes them: smaller batches, and a start at any place."""
    return [part for roll in music for part in roll.split(longest)]


@app.command()
def main(
    path: Annotated[Path, typer.Argument(exists=True, help="the .mat file")],
    out: Annotated[Path, typer.Option(help="folder of the run")] = Path("music-run"),
    states: Annotated[int, typer.Option(min=1)] = 512,
    rank: Annotated[int, typer.Option(min=1, help="of the transitions")] = 128,
    dimension: Annotated[int, typer.Option(min=1, help="of the embeddings")] = 64,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="share of states")] = 0.2,
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    steps: Annotated[int, typer.Option(min=1, help="steps in a batch")] = 1024,
    longest: Annotated[int, typer.Option(min=1, help="steps of a piece in training")] = 128,
    rate: Annotated[float, typer.Option(min=0.0, help="largest step size of AdamW")] = 0.03,
    decay: Annotated[float, typer.Option(min=0.0, help="weight decay of AdamW")] = 0.01,
    seed: int = 0,
) -> None:
    """Train, and tell how well the test data is foretold."""
    generator = torch.Generator().manual_seed(seed)
    train, valid, test = (read(path, f"{part}data") for part in ("train", "valid", "test"))
    model = MusicHMM(
        torch.cat(train), states=states, rank=rank, dimension=dimension, generator=generator
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    cut = pieces(train, longest)
    count = max(1, round(states * (1 - dropout)))
    log: list[dict[str, float]] = []
    best, kept_parameters = math.inf, {}
    began = time.monotonic()
    with Progress() as bar:
        task = bar.add_task("training", total=epochs)
        for epoch in range(epochs):
            todo = list(batches(cut, steps, generator))
            for number, rolls in enumerate(todo):
                share = (1 + math.cos(math.pi * (epoch + number / len(todo)) / epochs)) / 2
                for group in optimiser.param_groups:
                    group["lr"] = rate * share
                some = torch.randperm(states, generator=generator)[:count]
                optimiser.zero_grad()
                (-log_likelihood(model, rolls, some) / sum(map(len, rolls))).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()
            found = nats(model, valid, 4 * steps)
            if found < best:
                best = found
                kept_parameters = {
                    name: value.clone() for name, value in model.state_dict().items()
                }
            log.append({"epoch": epoch + 1, "valid": found, "seconds": time.monotonic() - began})
            bar.update(task, advance=1)
            bar.console.print(f"epoch {epoch + 1}: valid {found:.3f} nats a step")
    model.load_state_dict(kept_parameters)
    result = {name: nats(model, music, 4 * steps) for name, music in
              (("train", train), ("valid", valid), ("test", test))}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "log.json").write_text(json.dumps({"epochs": log, "nats": result}, indent=1))
    torch.save(kept_parameters, out / "parameters.pt")
    typer.echo(", ".join(f"{name} {value:.3f}" for name, value in result.items()))


if __name__ == "__main__":
    app()
