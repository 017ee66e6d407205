"""
A language model with hidden states
===================================

Trains `rdpgraph.nn.HMM` on a text file, one sentence a line, and writes checkpoints, a log of
perplexities and a plot of them. Started again with the same folder, it goes on where it was, with
the options that it was begun with: another text or other sizes are refused, and so are a second run
in the folder at the same time and a checkpoint that is damaged.

    python examples/hmm_lm.py train train.txt --valid valid.txt --out run
    python examples/hmm_lm.py evaluate test.txt --out run
    python examples/hmm_lm.py export model --out run

Words are put into ``--clusters`` that follow each other alike, and every state emits the words of
one: the states that a step sums over are few. With ``--clusters 0`` states emit all words, and
transitions have a ``--rank``.

The step size falls to zero along a cosine over ``--epochs``, so choose how many there is time for.
``--bfloat16`` takes the products of training in bfloat16, on processors that are faster in it;
what is evaluated is in float32 and exact, with all states.

Files may be gzipped. Words are split at spaces; with ``--characters`` they are single characters.
Words of the training text that occur less than ``--least`` times, and words it lacks, are
``<unk>``. A line ends in ``<eos>``, which counts in the perplexity.

With ``--numbers V`` lines are tokens, numbers below V with spaces between them, to which nothing is
added: samples of another language model, of which this one learns to look ahead. ``export`` writes
a folder that `rdpgraph.nn.HMM.from_pretrained` reads.
"""

# sphinx_gallery_thumbnail_path = "generated/hmm_lm.png"

import gzip
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.nn import HMM, exchange_clusters

app = typer.Typer(add_completion=False, help=__doc__)
Batch = tuple[Tensor, Tensor]
FIXED = ("states", "clusters", "rank", "dimension", "dropout", "least", "characters", "seed",
         "tokens", "sentences", "numbers", "text")  # fmt: skip
FREE = ("epochs", "rate", "decay", "bfloat16")


def refuse(message: str) -> NoReturn:
    """Say in one line why not, and stop."""
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(1)


def read(path: Path, *, characters: bool, numbers: int = 0) -> list[list[str]]:
    """Sentences as lists of words."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file]
    except (UnicodeDecodeError, OSError) as error:
        raise typer.BadParameter(f"{path} is no text in UTF-8: {error}.") from None
    end = [] if numbers else ["<eos>"]
    found = [[*(line if characters else line.split()), *end] for line in lines if line.strip()]
    if not found:
        raise typer.BadParameter(f"{path} has no sentences.")
    known = set(map(str, range(numbers)))
    wrong = next((word for line in found for word in line if numbers and word not in known), None)
    if wrong is not None:
        raise typer.BadParameter(f"{path} has {wrong!r:.40}, no number below {numbers}.")
    return found


def numbered(sentences: list[list[str]], words: dict[str, int]) -> list[Tensor]:
    """Sentences as tensors of tokens."""
    return [torch.tensor([words.get(word, 0) for word in line]) for line in sentences]


def batches(
    sentences: list[Tensor], tokens: int, generator: torch.Generator | None
) -> Iterator[Batch]:
    """Batches of sentences of like length, of about so many tokens, in random order."""
    mixed = [0.0] * len(sentences)
    if generator is not None:
        mixed = torch.rand(len(sentences), generator=generator).tolist()
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]) + mixed[i])
    groups: list[list[int]] = [[]]
    for number in order:
        if groups[-1] and (len(groups[-1]) + 1) * len(sentences[number]) > tokens:
            groups.append([])
        groups[-1].append(number)
    turns = (
        range(len(groups))
        if generator is None
        else torch.randperm(len(groups), generator=generator)
    )
    for turn in turns:
        chosen = [sentences[number] for number in groups[int(turn)]]
        lengths = torch.tensor([len(sentence) for sentence in chosen])
        yield torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True), lengths


@torch.no_grad()
def perplexity(model: HMM, sentences: list[Tensor], tokens: int) -> float:
    """exp of the mean nats of a token."""
    model.eval()
    total = sum(float(model(*batch).sum()) for batch in batches(sentences, tokens, None))
    return exponential(-total / sum(map(len, sentences)))


def exponential(nats: float) -> float:
    """A perplexity; infinite where a run has diverged."""
    return math.exp(nats) if nats < 700 else math.inf


def annealed(epoch: float, epochs: int) -> float:
    """The share of the step size at a time: a short rise, then a cosine down to zero."""
    return min(1.0, 0.02 + 5 * epoch) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def progress() -> Progress:
    """A bar with the perplexity so far."""
    text = TextColumn("{task.fields[note]}")
    return Progress(*Progress.get_default_columns()[:3], TimeRemainingColumn(), text)


def plot(log: list[dict[str, float]], path: Path) -> None:
    """Perplexities by epoch."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in ("train", "valid"):
        points = [(entry["epoch"], entry[name]) for entry in log if name in entry]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="epoch", ylabel="perplexity", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def digest(value: Any) -> str:
    """A fingerprint of what a checkpoint holds, so that a flipped byte is found."""
    found, waiting = hashlib.sha256(), [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            found.update(repr((each.dtype, tuple(each.shape))).encode())
            found.update(each.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        elif isinstance(each, dict):
            found.update(repr(list(each)).encode())
            waiting += each.values()
        elif isinstance(each, list | tuple):
            found.update(repr(len(each)).encode())
            waiting += each
        else:
            found.update(repr(each).encode())
    return found.hexdigest()


def load(out: Path) -> tuple[HMM, dict]:
    """The model of a checkpoint, and the checkpoint."""
    path = out / "checkpoint.pt"
    if not path.exists():
        refuse(f"{out} has no checkpoint.pt: train first.")
    again = "Restore the file, or begin in another folder."
    try:
        state = torch.load(path, weights_only=True)
        written = state.pop("digest")
    except Exception as error:  # whatever a damaged archive leads to
        refuse(f"{path} is no checkpoint of this program, or is damaged ({type(error).__name__}). "
               f"{again}")  # fmt: skip
    if digest(state) != written:
        refuse(f"{path} is damaged: it is not what was written. {again}")
    if any(not bool(values.isfinite().all()) for values in state["model"].values()):
        refuse(f"{path} holds numbers that are not finite: the run diverged. Begin in another "
               "folder, with a smaller --rate.")  # fmt: skip
    model = HMM(**state["sizes"])
    model.load_state_dict(state["model"])
    return model, state


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process however that ends."""
    with open(out / "lock", "w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except OSError:
            refuse(f"Another run is writing to {out}: wait for it, or take another --out.")
        yield


def agreed(options: dict[str, Any], begun_with: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """The options of a run that goes on: those it was begun with, and the free ones given now."""
    for name in FIXED:
        if name in given and options[name] != begun_with[name]:
            what = "another text" if name == "text" else (
                f"--{name} {options[name]} in place of {begun_with[name]}"
            )  # fmt: skip
            refuse(f"The run was begun with other options: {what}. Begin in another folder.")
    for name in FREE:
        if name in given and options[name] != begun_with[name]:
            typer.echo(f"--{name} is {options[name]} from here on; it was {begun_with[name]}.")
            begun_with = begun_with | {name: options[name]}
    return begun_with


def begun(
    lines: list[list[str]],
    sizes: dict,
    *,
    least: int,
    characters: bool,
    seed: int,
    clusters: int = 0,
    numbers: int = 0,
) -> tuple[HMM, dict]:
    """A model of the words of a text that nothing has trained, and what a checkpoint holds."""
    counts = Counter(word for line in lines for word in line)
    kept = [word for word, count in counts.items() if count >= least and word != "<unk>"]
    known = map(str, range(numbers)) if numbers else ["<unk>", *kept]
    words = {word: number for number, word in enumerate(known)}
    tally = torch.tensor([float(counts[word]) for word in words])
    tally[0] = counts.total() - tally[1:].sum()  # of all that is <unk>
    sizes = sizes | {"vocabulary": len(words)}
    try:
        if clusters:
            text = numbered(lines, words)
            sizes["clusters"] = exchange_clusters(text, len(words), clusters)
        model = HMM(**sizes, counts=tally, generator=torch.Generator().manual_seed(seed))
    except ModelError as error:
        refuse(f"{error} Give --clusters 0 for none.")
    return model, {"sizes": sizes, "words": words, "characters": characters, "epoch": 0, "step": 0,
                   "total": 0.0, "count": 0, "seconds": 0.0, "cpu": 0.0, "log": [],
                   "optimiser": None}  # fmt: skip


def replaced(path: Path, write: Any) -> None:
    """Write a file whole or not at all, by what writes to an open one."""
    scratch = path.with_suffix(".tmp")
    try:
        with open(scratch, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as the latter
        refuse(f"{path} could not be written: {error}")


def save(out: Path, state: dict, model: HMM, optimiser: torch.optim.Optimizer) -> None:
    """Write a checkpoint whole or not at all."""
    state |= {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    whole = state | {"digest": digest(state)}
    replaced(out / "checkpoint.pt", lambda file: torch.save(whole, file))


def report(out: Path, log: list[dict[str, float]]) -> None:
    """Write the log and its plot: after an epoch, and once more at the start of a run that goes on,
    which may have been killed after its checkpoint and before its log."""
    if log:
        replaced(out / "log.json", lambda file: file.write(json.dumps(log, indent=1).encode()))
        plot(log, out / "perplexity.png")


@app.command()
def train(
    context: typer.Context,
    text: Annotated[Path, typer.Argument(exists=True, help="training text")],
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the run")] = Path("hmm-run"),
    valid: Annotated[Path | None, typer.Option(exists=True, help="text to validate on")] = None,
    states: Annotated[int, typer.Option(min=1)] = 8192,
    clusters: Annotated[int, typer.Option(min=0, help="of words; 0: none")] = 128,
    rank: Annotated[int, typer.Option(min=0, help="of transitions; 0: dense")] = 0,
    dimension: Annotated[int, typer.Option(min=1, help="of the embeddings")] = 128,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99, help="share of states")] = 0.5,
    epochs: Annotated[int, typer.Option(min=0)] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="tokens in a batch")] = 4096,
    rate: Annotated[float, typer.Option(min=0.0, help="largest step size of AdamW")] = 0.01,
    decay: Annotated[float, typer.Option(min=0.0, help="of weights, by AdamW")] = 0.05,
    bfloat16: Annotated[bool, typer.Option("--bfloat16")] = False,  # noqa: FBT002
    least: Annotated[int, typer.Option(min=1, help="occurrences of a word")] = 1,
    characters: Annotated[bool, typer.Option("--characters")] = False,  # noqa: FBT002
    numbers: Annotated[int, typer.Option(min=0, help="lines of tokens below this")] = 0,
    seed: int = 0,
    sentences: Annotated[int, typer.Option(min=0, help="only so many sentences; 0: all")] = 0,
    save_every: Annotated[float, typer.Option(help="seconds between checkpoints")] = 60.0,
) -> None:
    """Train, or go on training what the folder holds, with the options that it was begun with."""
    names = {*context.params, "text"} - {"context"}
    given = {n for n in names if "DEFAULT" not in str(context.get_parameter_source(n))}
    options = {"states": states, "rank": rank, "dimension": dimension, "dropout": dropout,
               "least": least, "characters": characters, "seed": seed, "tokens": tokens,
               "sentences": sentences, "numbers": numbers, "epochs": epochs, "rate": rate,
               "clusters": clusters, "decay": decay, "bfloat16": bfloat16}  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"{out} cannot be a folder: {error.strerror}.")
    with alone(out):
        goes_on = (out / "checkpoint.pt").exists()
        if goes_on:
            model, state = load(out)
            state["options"] = {"numbers": 0, "clusters": 0, "decay": 0.01} | state["options"]
            characters = state["options"]["characters"] if "characters" not in given else characters
            numbers = state["options"]["numbers"] if "numbers" not in given else numbers
            sentences = state["options"]["sentences"] if "sentences" not in given else sentences
        lines = read(text, characters=characters, numbers=numbers)[: sentences or None]
        options["text"] = digest(lines)
        if goes_on:
            state["options"] = agreed(options, state["options"], given)
        else:
            sizes = {name: options[name] for name in ("states", "dimension", "dropout")}
            sizes["rank"] = rank or None
            model, state = begun(
                lines, sizes, least=least, characters=characters, seed=seed, numbers=numbers,
                clusters=clusters,
            )  # fmt: skip
            state["options"] = options
        held = []
        if valid is not None:
            said = read(valid, characters=characters, numbers=numbers)
            held = numbered(said, state["words"])
        data = numbered(lines, state["words"])
        typer.echo(f"{model}\n{len(data):,} sentences, {sum(map(len, data)):,} tokens")
        report(out, state["log"])
        fit(out, model, state, data, held, save_every)


def fit(
    out: Path, model: HMM, state: dict, data: list[Tensor], held: list[Tensor], save_every: float
) -> None:
    """Train until the last epoch, and write what comes of it."""
    options = state["options"]
    seed, tokens, rate, epochs = (options[n] for n in ("seed", "tokens", "rate", "epochs"))
    optimiser = torch.optim.AdamW(
        model.parameters(), rate, (0.9, 0.99), weight_decay=options["decay"], fused=True
    )
    if state["optimiser"] is not None:
        optimiser.load_state_dict(state["optimiser"])
    saved = time.monotonic()
    began = saved - state["seconds"], time.process_time() - state["cpu"]
    while state["epoch"] < epochs:
        model.train()
        turns = torch.Generator().manual_seed(seed + 1 + state["epoch"])  # nothing else matters
        todo = list(batches(data, tokens, turns))
        with progress() as bar:
            task = bar.add_task(f"epoch {state['epoch'] + 1}", total=len(todo), note="")
            bar.advance(task, state["step"])
            for step in range(state["step"], len(todo)):
                batch, lengths = todo[step]
                dropped = torch.Generator().manual_seed(hash((seed, state["epoch"], step)))
                for group in optimiser.param_groups:
                    group["lr"] = rate * annealed(state["epoch"] + step / len(todo), epochs)
                optimiser.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=options["bfloat16"]):
                    log_likelihood = model(batch, lengths, generator=dropped).sum()
                (-log_likelihood / lengths.sum()).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()
                state["total"] -= float(log_likelihood.detach())
                state["count"] += int(lengths.sum())
                state["step"] = step + 1
                note = f"perplexity {exponential(state['total'] / state['count']):.1f}"
                bar.update(task, advance=1, note=note)
                state["seconds"] = time.monotonic() - began[0]
                state["cpu"] = time.process_time() - began[1]
                if time.monotonic() - saved > save_every:
                    save(out, state, model, optimiser)
                    saved = time.monotonic()
        entry = {"epoch": state["epoch"] + 1, "train": exponential(state["total"] / state["count"])}
        if held:
            entry["valid"] = perplexity(model, held, 2 * tokens)
        state["seconds"] = time.monotonic() - began[0]
        state["cpu"] = time.process_time() - began[1]
        state["log"].append(entry | {"seconds": state["seconds"], "cpu seconds": state["cpu"]})
        state |= {"epoch": state["epoch"] + 1, "step": 0, "total": 0.0, "count": 0}
        save(out, state, model, optimiser)
        report(out, state["log"])
        typer.echo(", ".join(f"{name} {value:.5g}" for name, value in state["log"][-1].items()))


@app.command()
def evaluate(
    text: Annotated[Path, typer.Argument(exists=True)],
    out: Annotated[Path, typer.Option(exists=True, help="folder of the run")] = Path("hmm-run"),
    tokens: Annotated[int, typer.Option(min=1, help="tokens in a batch")] = 8192,
) -> None:
    """The perplexity of a text under a trained model."""
    model, state = load(out)
    numbers = state["options"].get("numbers", 0)
    lines = read(text, characters=state["characters"], numbers=numbers)
    data = numbered(lines, state["words"])
    typer.echo(f"perplexity {perplexity(model, data, tokens):.2f}")


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="to be written")],
    out: Annotated[Path, typer.Option(exists=True, help="folder of the run")] = Path("hmm-run"),
) -> None:
    """Write a trained model for `HMM.from_pretrained`, and its words in their order."""
    model, state = load(out)
    model.save_pretrained(folder)
    words = json.dumps(list(state["words"]), ensure_ascii=False)
    replaced(folder / "words.json", lambda file: file.write(words.encode()))
    typer.echo(f"{folder}: {model}")


if __name__ == "__main__":
    app()
