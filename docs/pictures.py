"""Pictures that the pages show and that no example draws; `conf.py` makes them before a build."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyArrowPatch, Rectangle

import rdpgraph as rg
from rdpgraph.learn import BayesianNetwork

INK, LINE, BLUE, PALE = "#3b4752", "#9aa3ad", "#1d4e79", "#d3dce6"


def make(folder: Path, examples: Path) -> None:
    """Draw all of them."""
    folder.mkdir(exist_ok=True)
    patient = rg.read(examples / "asia.bif").condition({"dysp": "yes", "asia": "yes"})
    rg.draw(rg.infer(patient), folder / "asia.png")
    _trellis(folder / "hmm_lm.png")
    _roll(folder / "hmm_music.png")
    _climbs(folder / "learning.png")
    _fitted(folder / "hidden_markov.png")
    _decoded(folder / "decoding.png")
    _compared((examples.parent / "docs" / "benchmarks.md").read_text(), folder / "speed.png")


# A comparison, columns that its table begins with, the other library's column, and ours; or no
# column of ours, where the other one holds the ratio of both times.
COMPARED = [
    ("best dependency trees, networkx", ["words"], "ratio", ""),
    ("loopy messages, PGMax", ["grid"], "ratio", ""),
    ("chains, torch-struct", ["B"], "torch-struct", "rdpgraph"),
    ("chains, hmmlearn", ["B"], "hmmlearn", "rdpgraph"),
    ("chains, pomegranate", ["B"], "pomegranate", "rdpgraph"),
    ("decoding a CRF, pytorch-crf", ["B x T x N"], "pytorch-crf", "decode"),
    ("chains, dynamax", ["B"], "dynamax 1.0.3", "rdpgraph"),
    ("all of a Bayesian network, pyAgrum", ["network", "variables"], "ratio", ""),
    ("a small network again, pyAgrum", ["network", "call"], "ratio", ""),
]


def compared(text: str) -> dict[str, list[float]]:
    """Ratios of the other library's time to ours, from the first fitting table of a page each."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    ratios: dict[str, list[float]] = {}
    for label, first, theirs, ours in COMPARED:
        at = next(
            n for n, row in enumerate(lines)
            if row[: len(first)] == first and theirs in row and (not ours or ours in row)
        )  # fmt: skip
        head, ratios[label] = lines[at], []
        for row in lines[at + 2 :]:
            if len(row) < len(head):
                break
            cells = [row[head.index(name)].replace(",", "") for name in (theirs, ours) if name]
            if all(cell.replace(".", "").isdigit() for cell in cells):
                numbers = [float(cell) for cell in cells]
                ratios[label].append(numbers[0] / (numbers[1] if ours else 1.0))
    return ratios


def _compared(text: str, target: Path) -> None:
    """How many times as long other libraries take, a dot for each row of the tables."""
    every = compared(text)
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for place, ratios in enumerate(reversed(every.values())):
        axes.plot(ratios, [place] * len(ratios), "o", color=BLUE, alpha=0.5, ms=7, mew=0)
        axes.axhline(place, color=PALE, lw=0.8, zorder=0)
    axes.axvline(1, color=INK, lw=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100, 1000, 10000])
    axes.set_xticklabels(["0.1", "the same", "10 x", "100 x", "1,000 x", "10,000 x"])
    axes.set_yticks(range(len(every)), list(every)[::-1])
    axes.set_xlabel("time of the other library / time of rdpgraph")
    axes.tick_params(colors=INK, length=0)
    axes.minorticks_off()
    for side in axes.spines.values():
        side.set_visible(False)
    figure.tight_layout()
    figure.savefig(target, dpi=160)
    plt.close(figure)


def _trellis(target: Path) -> None:
    """Words, and the probability of each hidden state at each."""
    words = ["the", "dog", "that", "I", "saw", "sleeps"]
    generator = torch.Generator().manual_seed(3)
    unary = 2.5 * torch.randn(len(words), 6, generator=generator)
    chain = rg.Chain(unary, torch.randn(6, 6, generator=generator))
    marginals, best = chain.marginals(), chain.mode()
    figure, axes = plt.subplots(figsize=(4, 3))
    for step, word in enumerate(words):
        for state in range(6):
            share = float(marginals[step, state])
            axes.scatter(step, state, s=40 + 260 * share, color=BLUE, alpha=0.15 + 0.85 * share)
        axes.text(step, -1.1, word, ha="center", fontsize=11, color=INK)
    for step in range(len(words) - 1):
        ends = (step, int(best[step])), (step + 1, int(best[step + 1]))
        axes.add_patch(FancyArrowPatch(*ends, color=LINE, arrowstyle="-|>", shrinkA=9, shrinkB=9,
                                       mutation_scale=10))  # fmt: skip
    axes.set_ylim(-1.6, 5.6)
    axes.set_xlim(-0.6, len(words) - 0.4)
    axes.axis("off")
    figure.savefig(target, dpi=100)
    plt.close(figure)


def _roll(target: Path) -> None:
    """A piano roll of chords, a state for each of which a hidden Markov model would learn."""
    chords = [
        (0, 4, 7),
        (5, 9, 12),
        (7, 11, 14),
        (0, 4, 7, 12),
        (9, 12, 16),
        (2, 5, 9),
        (7, 11, 14),
    ]
    figure, axes = plt.subplots(figsize=(4, 3))
    for step, chord in enumerate([*chords, (0, 4, 7, 12)]):
        for note in chord:
            axes.add_patch(Rectangle((step, note), 0.92, 0.85, color=BLUE))
        axes.add_patch(Rectangle((step, -3.2), 0.92, 1.6, color=PALE, ec=INK))
        axes.text(
            step + 0.46, -2.4, f"z{step + 1}", ha="center", va="center", fontsize=8, color=INK
        )
    axes.set_xlim(-0.2, 8.2)
    axes.set_ylim(-3.8, 18)
    axes.axis("off")
    figure.savefig(target, dpi=100)
    plt.close(figure)


def _climbs(target: Path) -> None:
    """Histories of EM from several starts, of a network whose common cause is hidden."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(3, (300, 1), generator=generator)
    shares = torch.rand(3, 6, generator=generator)[kind[:, 0]]
    rows = torch.bernoulli(shares, generator=generator).long()
    columns = {f"x{i}": rows[:, i] for i in range(6)}
    edges = [("kind", name) for name in columns]
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for seed in range(6):
        network = BayesianNetwork(edges, states={"kind": 3}, limit=60, tolerance=0.0)
        network.fit(columns, generator=torch.Generator().manual_seed(seed))
        axes.plot(network.fit_.history[1:], color=BLUE, alpha=0.4 + 0.1 * seed)
    axes.set(xlabel="step", ylabel="log-likelihood (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=100)
    plt.close(figure)


def _fitted(target: Path) -> None:
    """Emissions of a fitted model, and the states that it finds."""
    colors = [BLUE, "#c2571a", "#4b8b3b"]
    means = torch.tensor([[0.0, 0.0], [3.0, 0.5], [1.0, 3.0]])
    truth = rg.learn.HMM(
        3, rg.learn.Gaussian("spherical", means, torch.full((3,), 0.8)),
        start=torch.full((3,), 1 / 3).log(), transition=(torch.eye(3) * 0.85 + 0.05).log(),
    )  # fmt: skip
    data, _ = truth.sample(300, torch.Generator().manual_seed(2))
    model = rg.learn.HMM(3, rg.learn.Gaussian("full")).fit(data)
    chances, states = model.predict_proba(data), model.predict(data)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=(1, 1.6))
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    for state, color in enumerate(colors):
        left.scatter(*data[states == state].mT, s=5, color=color, alpha=0.5)
        factor = torch.linalg.cholesky(model.emission_.covariances[state])
        ring = 2 * factor @ torch.stack([angle.cos(), angle.sin()])
        left.plot(*(model.emission_.means[state].unsqueeze(1) + ring), color=color)
    right.stackplot(range(120), *chances[:120].mT, colors=colors, alpha=0.8)
    right.scatter(range(120), [-0.06] * 120, c=[colors[s] for s in states[:120]], s=6)
    right.set_xlabel("step")
    right.set_ylabel("probability of each state")
    figure.tight_layout()
    figure.savefig(target, dpi=100)
    plt.close(figure)


def _memory(distance: int, rate: float) -> rg.ParityModel:
    """As many rounds of a repetition code: flips of bits, and of measurements between rounds."""
    wide, lines = distance - 1, list[str]()
    for first in range(0, distance * wide, wide):
        for bit in range(distance):
            checks = [f"D{first + check}" for check in (bit - 1, bit) if 0 <= check < wide]
            lines.append(f"error({rate}) {' '.join(checks)}{' L0' * (bit == 0)}")
        if first:
            lines += [f"error({rate}) D{at - wide} D{at}" for at in range(first, first + wide)]
    return rg.ParityModel.from_dem("\n".join(lines))


def _decoded(target: Path) -> None:
    """Logical errors of memories by the rate of errors; confidence beside how often it is right."""
    shots, rates = 4000, [0.02, 0.03, 0.05, 0.08, 0.12]
    generator = torch.Generator().manual_seed(0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    for distance, color in zip((3, 5, 7), ("#c2571a", "#4b8b3b", BLUE), strict=True):
        wrong, sure, correct = list[float](), list[torch.Tensor](), list[torch.Tensor]()
        for rate in rates:
            model = _memory(distance, rate)
            syndromes, seen = model.syndrome_of(model.sample(shots, generator))
            decoded = rg.decoding.CosetDecoder(model).decode_observables(syndromes)
            right_ones = (decoded.observables == seen).all(1)
            wrong.append(1 - float(right_ones.double().mean()))
            sure.append(decoded.confidence)
            correct.append(right_ones)
        left.plot(rates, wrong, "o-", color=color, label=f"{distance} bits and rounds")
        confidence, held = torch.cat(sure), torch.cat(correct).double()
        bins = ((confidence - 0.5) * 10).long().clamp(max=4)
        means = [[float(part[bins == at].mean()) for at in range(5)] for part in (confidence, held)]
        right.plot(*means, "o", color=color)
    left.set(xscale="log", yscale="log", xlabel="rate of errors", ylabel="logical errors, a shot")
    left.set_xticks(rates, [f"{rate:g}" for rate in rates])
    left.minorticks_off()
    left.legend(frameon=False)
    right.plot([0.5, 1], [0.5, 1], color=LINE)
    right.set(xlabel="confidence P(l | s)", ylabel="share of shots decided rightly")
    figure.tight_layout()
    figure.savefig(target, dpi=100)
    plt.close(figure)
