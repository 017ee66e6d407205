"""Figure 2 of the paper: which states are in use, by how many are drawn of those that are kept.

    python examples/paper/figure2.py --out figure2-run

Trains a structured VAE for each split of the states kept into likeliest and drawn: 100/0, 99/1,
50/50 and 10/90. Then the states of all words are drawn once from q, by the model's own estimator
and with all states, and counted: the aggregated posterior. Prints how many states occur and how
many equally frequent ones they are worth (the exponential of the entropy), writes ``figure2.json``,
and draws the frequencies in falling order, ``figure2.png``.

Runs are those of table5.py, in the same folders if ``--out`` is the same, and go on where they were
if the script is killed and started again. A text of your own is given by ``--text``.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import vae
from vae import Options, frequencies, note, replaced, sentences, summary, trained


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Frequencies in falling order, by the estimator and with all states."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, how in zip(both, ("own", "all"), strict=True):
        for name, one in found.items():
            shares = [share for share in one[how]["shares"] if share > 0]
            axes.loglog(range(1, len(shares) + 1), shares, label=f"K1/K2 = {name}")
        drawn = "by the states kept" if how == "own" else "with all states"
        axes.set(xlabel="state, in falling order", title=f"drawn {drawn}")
    both[0].set_ylabel("share of the words")
    both[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    out: Annotated[Path, typer.Option(file_okay=False)] = Path("figure2-run"),
    text: vae.Text = None,
    states: Annotated[int, typer.Option(min=2)] = 2000,
    keep: Annotated[int, typer.Option(min=2, help="states, K1 + K2")] = 100,
    seed: int = 0,
    steps: vae.Steps = 10_000,
    most: vae.Most = 0,
    count: Annotated[int, typer.Option(min=1, help="sentences to draw states of")] = 29_000,
    least: vae.Least = 5,
    tokens: vae.Tokens = 448,
    hidden: vae.Hidden = 256,
    dimension: vae.Dimension = 128,
    encoder: vae.EncoderName = vae.Reader.LSTM,
    save_every: vae.SaveEvery = 60.0,
) -> None:
    """Train what is not trained yet, and count."""
    data = sentences(text, least=least, most=most)
    print(f"{len(data.train):,} sentences, {data.vocabulary:,} words, {states:,} states")
    found: dict[str, dict[str, Any]] = {}
    for share in (0.0, 0.01, 0.5, 0.9):
        tail = max(1, round(share * keep)) if share else 0
        options = Options(
            states, keep - tail, tail, seed, steps, least=least, tokens=tokens, hidden=hidden,
            dimension=dimension, text=data.text, encoder=encoder.value,
        )  # fmt: skip
        model, state = trained(out / options.name, options, data, save_every=save_every)
        name = f"{keep - tail}/{tail}"
        found[name] = {
            how: summary(frequencies(model, data.train[:count], own=how == "own"))
            for how in ("own", "all")
        }
        cells = (f"{how} states: {one['in use']} in use, worth {one['worth']:.1f}"
                 for how, one in found[name].items())  # fmt: skip
        print(f"K1/K2 = {name}: {'; '.join(cells)}; {note(state['log'])}", flush=True)
        whole = json.dumps(found)
        replaced(out / "figure2.json", lambda file, w=whole: file.write(w.encode()))
    plot(found, out / "figure2.png")


if __name__ == "__main__":
    typer.run(main)
