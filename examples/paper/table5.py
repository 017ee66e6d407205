"""Table 5 of the paper: structured VAEs of sentences trained with all states, the top, and draws.

    python examples/paper/table5.py --out table5-run
    python examples/paper/table5.py --out table5-run --states 2000 --methods top,rdp --seeds 1

Each model of each seed is a run in its own folder of ``--out``. The script may be killed and
started again with the same options: it goes on where it was, and ends with the same figures. It
writes ``table5-100.json``, a row for each run, and ``table5-100.png``, and prints the table.

The text is multi30k's English, or ``--text FILE`` of one sentence a line, of which a twentieth is
held out to develop, and as much to test. Figures are the negative log-likelihood of a sentence in
nats, its end included, by importance sampling: from q with all states, and from q on the states
that the method keeps. It also counts the states of all words of 1,000 sentences, as figure2.py
does. The paper's figures are of other sentences (MSCOCO) and encoders.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
import vae
from vae import (
    Options,
    Sentences,
    frequencies,
    negative_log_likelihood,
    note,
    replaced,
    sentences,
    summary,
    trained,
)

# Dev and test of the paper, and their deviations.
PRINTED = {
    ("full", 100): "39.64 ± .06, 39.71 ± .07",
    ("top", 100): "39.71 ± .13, 39.76 ± .11",
    ("rdp", 100): "39.59 ± .10, 39.59 ± .08",
    ("top", 2000): "39.81 ± .30, 39.84 ± .31",
    ("rdp", 2000): "39.47 ± .11, 39.48 ± .14",
}
COUNTED = 1_000  # sentences whose states are counted
COLORS = {"full": "#9aa5ae", "top": "#c8553d", "rdp": "#1d4e79"}


def kept(method: str, states: int, share: float) -> tuple[int, int]:
    """Number of states a method keeps for their scores, and number it draws."""
    keep = round(share * states)
    if method == "full":
        return 0, 0
    return (keep, 0) if method == "top" else (keep // 2, keep - keep // 2)


def evaluated(
    out: Path, options: Options, data: Sentences, samples: int, save_every: float
) -> dict[str, Any]:
    """Train to the end, or read that it has been done; what was found."""
    model, state = trained(out, options, data, save_every=save_every)
    path, asked = out / "result.json", {"samples": samples}
    if path.exists():
        found = json.loads(path.read_text())
        if {name: found[name] for name in asked} == asked:
            return found
    found: dict[str, Any] = {**asked, "seconds a step": state["seconds"] / max(1, options.steps)}
    for part, some in (("dev", data.dev), ("test", data.test)):
        found[part], found["kl"] = negative_log_likelihood(model, some, samples=samples)
        if options.estimator is not None:
            own, _ = negative_log_likelihood(
                model, some, samples=samples, proposal=options.estimator
            )
            found[f"{part}, own"] = own
    for how in ("all", "own") if options.estimator is not None else ("all",):
        states = summary(frequencies(model, data.train[:COUNTED], own=how == "own"))
        found |= {f"{name}, {how}": states[name] for name in ("in use", "worth")}
    found["log"] = state["log"]
    replaced(path, lambda file: file.write(json.dumps(found).encode()))
    return found


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def lines(results: dict[tuple[str, int], list[dict[str, Any]]]) -> Iterator[str]:
    """The table."""
    names = (
        "dev", "test", "dev, own", "test, own", "kl", "seconds a step",
        "in use, own", "worth, own", "in use, all", "worth, all",
    )  # fmt: skip
    yield f"{'':10s}" + "".join(f"{name:>18s}" for name in names) + "   the paper's dev, test"
    for (method, states), found in results.items():
        cells = [
            spread([one[name] for one in found]) if name in found[0] else "-" for name in names
        ]
        text = f"{method}-{states}"
        theirs = PRINTED.get((method, states), "")
        yield f"{text:10s}" + "".join(f"{cell:>18s}" for cell in cells) + f"   {theirs}"


def plot(results: dict[tuple[str, int], list[dict[str, Any]]], path: Path) -> None:
    """The bound and the divergence in the course of training, means of fifty steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (method, states), found in results.items():
        for number, one in enumerate(found):
            log, label = one["log"], f"{method}-{states}" if not number else None
            starts = range(0, len(log), 50)
            for place, axes in enumerate(both):
                values = [mean(entry[place] for entry in log[s : s + 50]) for s in starts]
                style = "-" if states == 100 else "--"
                axes.plot(list(starts), values, style, color=COLORS[method], label=label)
    for axes, name in zip(both, ("lower bound", "divergence"), strict=True):
        axes.set(xlabel="step", ylabel=f"{name}, nats a sentence")
    both[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    out: Annotated[Path, typer.Option(file_okay=False)] = Path("table5-run"),
    text: vae.Text = None,
    states: Annotated[int, typer.Option(min=2)] = 100,
    methods: Annotated[str, typer.Option(help="some of them, with commas")] = "full,top,rdp",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    steps: vae.Steps = 10_000,
    keep: Annotated[float, typer.Option(min=0, max=1, help="share of states, K1 + K2")] = 0.2,
    samples: Annotated[int, typer.Option(min=1, help="of importance")] = 50,
    most: vae.Most = 0,
    held: Annotated[int, typer.Option(min=0, help="to develop and to test; 0: all")] = 0,
    least: vae.Least = 5,
    tokens: vae.Tokens = 448,
    hidden: vae.Hidden = 256,
    dimension: vae.Dimension = 128,
    encoder: vae.EncoderName = vae.Reader.LSTM,
    save_every: vae.SaveEvery = 60.0,
) -> None:
    """Train what is not trained yet, and print the table of all that is."""
    data = sentences(text, least=least, most=most, held=held)
    print(f"{len(data.train):,} sentences, {data.vocabulary:,} words")
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for seed in range(seeds):
        for method in methods.split(","):
            top, tail = kept(method, states, keep)
            options = Options(
                states, top, tail, seed, steps, least=least, tokens=tokens, hidden=hidden,
                dimension=dimension, text=data.text, encoder=encoder.value,
            )  # fmt: skip
            found = evaluated(out / options.name, options, data, samples, save_every)
            results.setdefault((method, states), []).append(found)
            figures = f"dev {found['dev']:.3f}, test {found['test']:.3f}, {note(found['log'])}"
            figures += f", {found['in use, all']} states in use, worth {found['worth, all']:.1f}"
            print(f"{method}-{states}, seed {seed}: {figures}", flush=True)
            rows = [{"method": m, "states": n, **one} for (m, n), all_ in results.items()
                    for one in all_]  # fmt: skip
            whole = json.dumps(rows)
            replaced(out / f"table5-{states}.json", lambda file, w=whole: file.write(w.encode()))
    plot(results, out / f"table5-{states}.png")
    print("\n".join(lines(results)))


if __name__ == "__main__":
    typer.run(main)
