"""Table 3 of the paper: bias and variance of log Z on chains.

    python examples/paper/table3.py [--small] [--states 2000] [--seeds 5] [--repeats 100]
        [--set] [--store FILE]

Each cell is our bias and variance over the runs, averaged over the seeds, and after the slash the
paper's. The paper's are of 2,000 states and potentials that are not public; its "Top 20%" and "50%"
are 500 and 1,000 states.
"""

import argparse

from measure import (
    Make,
    arguments,
    chosen_cases,
    default,
    kept,
    mean,
    paper,
    piloted,
    repeated,
    row,
    top,
    truth_of,
)

# Bias and variance, dense and long-tail.
PRINTED = {
    "Top 500": ((-1.968, 0.0), (-0.403, 0.0)),
    "Top 1000": ((-0.995, 0.0), (-0.177, 0.0)),
    "paper's 1%": ((-0.066, 0.141), (-0.050, 0.074)),
    "paper's 10%": ((-0.030, 0.066), (-0.027, 0.054)),
    "paper's 20%": ((-0.013, 0.046), (-0.003, 0.026)),
}
KINDS = ("dense", "long-tail")


def rows_of(states: int) -> list[tuple[str, Make, int]]:
    rows = [(f"Top {keep}", top, keep) for keep in (500, 1000) if keep < states]
    rows += [(f"Top {share:.0%}", top, kept(share, states)) for share in (0.2, 0.5)]
    named = (("paper's", paper), ("default", default), ("with pilot", piloted))
    for name, make in named:
        rows += [(f"{name} {share:.0%}", make, kept(share, states)) for share in (0.01, 0.1, 0.2)]
    return rows


def block(states: int, chosen: argparse.Namespace) -> None:
    seeds, repeats = chosen.seeds, chosen.repeats
    print(f"\n{states:,} states, {seeds} seeds, {repeats} runs: bias, variance; ours / the paper's")
    row("", KINDS)
    rows = rows_of(states)
    cells: dict[str, list[str]] = {name: [] for name, _, _ in rows}
    for column, kind in enumerate(KINDS):
        several = [(one, truth_of(one)[0]) for one in chosen_cases(chosen, kind, states)]
        for name, make, keep in rows:
            found = [
                repeated(one, truth, make(one, keep), repeats, name=name) for one, truth in several
            ]
            bias, variance = mean([f.bias for f in found]), mean([f.variance for f in found])
            text = f"{bias:+.3f} {variance:.2g}"
            if name in PRINTED and states == 2000:
                theirs = PRINTED[name][column]
                text += f" / {theirs[0]:+.3f} {theirs[1]:.2g}"
            cells[name].append(text)
    for name, _, _ in rows:
        row(name, cells[name])


if __name__ == "__main__":
    chosen = arguments("Table 3 of Fu, Cunningham and Lapata 2022.")
    for states in chosen.states:
        block(states, chosen)
