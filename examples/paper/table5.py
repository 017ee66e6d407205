"""Table 5 of the paper: structured VAEs of sentences trained with all states, the top, and draws.

    python examples/paper/table5.py --out table5-run
    python examples/paper/table5.py --out table5-run --states 2000 --seeds 1 --every 250

Each model of each seed is a run in its own folder of ``--out``. The script may be killed and
started again with the same options: it goes on where it was, and ends with the same figures. With
``--every`` all methods train for so many updates in turn, and the table is printed after each
round, so that methods are compared at equal updates wherever a run ends. It writes
``table5-100.json``, a row for each run, ``table5-100.md`` and ``table5-100.png``.

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
    ("full", 100): ((39.64, 0.06), (39.71, 0.07)),
    ("top", 100): ((39.71, 0.13), (39.76, 0.11)),
    ("rdp", 100): ((39.59, 0.10), (39.59, 0.08)),
    ("top", 2000): ((39.81, 0.30), (39.84, 0.31)),
    ("rdp", 2000): ((39.47, 0.11), (39.48, 0.14)),
}
Results = dict[tuple[str, int], list[dict[str, Any]]]
COLORS = {"full": "#9aa5ae", "top": "#c8553d", "rdp": "#1d4e79"}


def kept(method: str, states: int, share: float) -> tuple[int, int]:
    """Number of states a method keeps for their scores, and number it draws."""
    keep = round(share * states)
    if method == "full":
        return 0, 0
    return (keep, 0) if method == "top" else (keep // 2, keep - keep // 2)


def evaluated(
    out: Path, options: Options, data: Sentences, stop: int, *, samples: int, counted: int,
    save_every: float,
) -> dict[str, Any]:  # fmt: skip
    """Train for so many updates, or read that it has been done; what was found."""
    model, state = trained(out, options, data, save_every=save_every, stop=stop)
    path, asked = out / f"result-{stop}.json", {"samples": samples, "counted": counted}
    if path.exists():
        found = json.loads(path.read_text())
        if {name: found[name] for name in asked} == asked:
            return found
    if state["step"] > stop:
        vae.refuse(
            f"{out} has {state['step']} updates already, and its table after {stop} is not there: "
            "ask for the rounds, --samples and --counted that it was begun with."
        )
    found: dict[str, Any] = {**asked, "updates": stop}
    found["seconds an update"] = state["seconds"] / max(1, state["step"])
    for part, some in (("dev", data.dev), ("test", data.test)):
        found[part], found["kl"] = negative_log_likelihood(model, some, samples=samples)
        if options.estimator is not None:
            own, _ = negative_log_likelihood(
                model, some, samples=samples, proposal=options.estimator
            )
            found[f"{part}, own"] = own
    for how in ("all", "own") if options.estimator is not None else ("all",):
        states = summary(frequencies(model, data.train[:counted], own=how == "own"))
        found |= {f"{name}, {how}": states[name] for name in ("in use", "worth")}
    found["log"] = state["log"]
    replaced(path, lambda file: file.write(json.dumps(found).encode()))
    return found


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def lines(results: Results) -> Iterator[str]:
    """The table in Markdown, and how far methods are apart, ours and the paper's."""
    names = (
        "dev", "test", "dev, own", "test, own", "kl", "seconds an update",
        "in use, own", "worth, own", "in use, all", "worth, all",
    )  # fmt: skip
    yield f"| | {' | '.join(names)} | the paper's dev, test |\n|{'---|' * (len(names) + 2)}"
    for (method, states), found in results.items():
        cells = [spread([one[name] for one in found]) if name in found[0] else "" for name in names]
        theirs = PRINTED.get((method, states), ())
        told = ", ".join(f"{middle:.2f} ± {off:.2f}" for middle, off in theirs)
        yield f"| {method}-{states} | {' | '.join(cells)} | {told} |"
    yield ""
    for one, other in (("rdp", "top"), ("rdp", "full"), ("top", "full")):
        for states in dict.fromkeys(states for _, states in results):
            pair = (one, states), (other, states)
            if all(key in results for key in pair):
                yield f"{one} less {other}, {states} states: {gap(results, *pair)}"


def gap(results: Results, one: tuple[str, int], other: tuple[str, int]) -> str:
    """How much higher the negative log-likelihoods of one method are than those of another."""
    parts = list[str]()
    for place, part in enumerate(("dev", "test")):
        ours = mean([each[part] for each in results[one]])
        ours -= mean([each[part] for each in results[other]])
        text = f"{part} {ours:+.2f}"
        if one in PRINTED and other in PRINTED:
            text += f" / {PRINTED[one][place][0] - PRINTED[other][place][0]:+.2f}"
        parts.append(text)
    return ", ".join(parts)


def plot(results: Results, path: Path) -> None:
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
    every: Annotated[int, typer.Option(min=0, help="updates of a round; 0: all")] = 0,
    keep: Annotated[float, typer.Option(min=0, max=1, help="share of states, K1 + K2")] = 0.2,
    samples: Annotated[int, typer.Option(min=1, help="of importance")] = 50,
    counted: Annotated[int, typer.Option(min=1, help="sentences whose states to count")] = 1_000,
    most: vae.Most = 0,
    held: Annotated[int, typer.Option(min=0, help="to develop and to test; 0: all")] = 0,
    least: vae.Least = 5,
    tokens: vae.Tokens = 448,
    hidden: vae.Hidden = 256,
    dimension: vae.Dimension = 128,
    encoder: vae.EncoderName = vae.Reader.LSTM,
    save_every: vae.SaveEvery = 60.0,
) -> None:
    """Train what is not trained yet, round by round, and print the table after each."""
    data = sentences(text, least=least, most=most, held=held)
    print(f"{len(data.train):,} sentences, {data.vocabulary:,} words")
    between, results = max(1, every or steps), Results()
    for stop in [*range(between, steps, between), steps]:
        results.clear()
        for seed in range(seeds):
            for method in methods.split(","):
                top, tail = kept(method, states, keep)
                options = Options(
                    states, top, tail, seed, steps, least=least, tokens=tokens, hidden=hidden,
                    dimension=dimension, text=data.text, encoder=encoder.value,
                )  # fmt: skip
                found = evaluated(
                    out / options.name, options, data, stop, samples=samples, counted=counted,
                    save_every=save_every,
                )  # fmt: skip
                results.setdefault((method, states), []).append(found)
                figures = f"dev {found['dev']:.3f}, test {found['test']:.3f}, {note(found['log'])}"
                print(f"{method}-{states}, seed {seed}, {stop:,} updates: {figures}", flush=True)
                rows = [{"method": m, "states": n, **one} for (m, n), all_ in results.items()
                        for one in all_]  # fmt: skip
                whole = json.dumps(rows)
                replaced(
                    out / f"table5-{states}.json", lambda file, w=whole: file.write(w.encode())
                )
        shown = "\n".join([f"After {stop:,} of {steps:,} updates of each:\n", *lines(results)])
        print(f"\n{shown}\n", flush=True)
        replaced(out / f"table5-{states}.md", lambda file, s=shown: file.write(s.encode()))
    plot(results, out / f"table5-{states}.png")


if __name__ == "__main__":
    typer.run(main)
