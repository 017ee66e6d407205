"""Table 2 of the paper, chains: the squared error of log Z and of the entropy.

    python examples/paper/table2.py [--small] [--states 10000] [--seeds 5] [--repeats 100]
        [--set] [--store FILE]

Each cell is our mean over the seeds and, after the slash, the paper's. "Top" rows of the paper are
of 500 and 1,000 states whatever the number of all; both are here, and the true shares too. At 2,000
states the paper's potentials came from a trained network and are not public: those figures are of
other potentials than its own. With --set ours have the entropies that its kinds have, about.
"""

import argparse

from measure import (
    Ask,
    Make,
    arguments,
    chosen_cases,
    default,
    entropy,
    kept,
    log_z,
    mean,
    paper,
    piloted,
    repeated,
    row,
    top,
    truth_of,
)

# By question and number of states: the paper's rows, for dense, intermediate, long-tail.
PRINTED: dict[tuple[str, int], dict[str, tuple[float, float, float]]] = {
    ("log Z", 2000): {
        "Top 500": (3.874, 1.015, 0.162),
        "Top 1000": (0.990, 0.251, 0.031),
        "paper's 1%": (0.146, 0.066, 0.076),
        "paper's 10%": (0.067, 0.033, 0.055),
        "paper's 20%": (0.046, 0.020, 0.026),
    },
    ("log Z", 10_000): {
        "Top 500": (6.395, 6.995, 6.381),
        "Top 1000": (2.134, 2.013, 1.647),
        "paper's 1%": (0.078, 0.616, 0.734),
        "paper's 10%": (0.024, 0.031, 0.024),
        "paper's 20%": (0.004, 0.003, 0.003),
    },
    ("entropy", 2000): {
        "Top 500": (443.7, 84.35, 8.011),
        "Top 1000": (131.8, 22.100, 1.816),
        "paper's 1%": (5.925, 1.989, 0.691),
        "paper's 10%": (2.116, 1.298, 0.316),
        "paper's 20%": (1.326, 0.730, 0.207),
    },
    ("entropy", 10_000): {
        "Top 500": (227.36, 171.97, 141.91),
        "Top 1000": (85.063, 59.877, 46.853),
        "paper's 1%": (6.450, 6.379, 4.150),
        "paper's 10%": (0.513, 1.539, 0.275),
        "paper's 20%": (0.144, 0.080, 0.068),
    },
}
KIND = {"dense": 0, "intermediate": 1, "long-tail": 2}
NAMED: tuple[tuple[str, Make], ...] = (
    ("paper's", paper),
    ("default", default),
    ("with pilot", piloted),
)
SHARES = (0.01, 0.1, 0.2)


def rows_of(states: int) -> list[tuple[str, Make, int]]:
    rows = [(f"Top {keep}", top, keep) for keep in (500, 1000) if keep < states]
    rows += [(f"Top {share:.0%}", top, kept(share, states)) for share in (0.1, 0.2, 0.5)]
    for name, make in NAMED:
        rows += [(f"{name} {share:.0%}", make, kept(share, states)) for share in SHARES]
    return rows


def block(question: str, ask: Ask, states: int, chosen: argparse.Namespace) -> None:
    kinds, seeds, repeats = chosen.kinds, chosen.seeds, chosen.repeats
    print(f"\n{question}, {states:,} states, {seeds} seeds, {repeats} runs; ours / the paper's")
    row("", kinds)
    printed = PRINTED.get((question, states), {})
    rows = rows_of(states)
    errors: dict[tuple[str, str], list[float]] = {}
    times: dict[str, list[float]] = {name: [] for name, _, _ in rows}
    for kind in kinds:
        for one in chosen_cases(chosen, kind, states):
            truth, _ = truth_of(one, ask)
            for name, make, keep in rows:
                found = repeated(one, truth, make(one, keep), repeats, name=name, ask=ask)
                errors.setdefault((name, kind), []).append(found.mse)
                times[name].append(found.milliseconds)
    for name, _, _ in rows:
        cells: list[str] = []
        for kind in kinds:
            theirs = f" / {printed[name][KIND[kind]]:g}" if name in printed else ""
            cells.append(f"{mean(errors[name, kind]):.3g}{theirs}")
        row(f"{name} ({mean(times[name]):.0f} ms)", cells)
    for other in ("default", "with pilot"):
        for share in SHARES:
            theirs, ours = f"paper's {share:.0%}", f"{other} {share:.0%}"
            gains = (mean(errors[theirs, kind]) / mean(errors[ours, kind]) for kind in kinds)
            row(f"paper's over {ours}", [f"{gain:.0f}x" for gain in gains])


if __name__ == "__main__":
    chosen = arguments("Table 2 of Fu, Cunningham and Lapata 2022, chains.")
    for states in chosen.states:
        for question in chosen.questions:
            ask = {"log Z": log_z, "entropy": entropy}[question]
            block(question, ask, states, chosen)
