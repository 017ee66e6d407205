"""Table 4 of the paper: what the proposal does for the squared error of log Z.

    python examples/paper/table4.py [--small] [--states 2000] [--seeds 5] [--repeats 100]
        [--set] [--store FILE]

The paper does not say how many of how many states were kept; here it is 10%. First the paper's
selection, K - 1 likeliest states and one draw, with its own figures after the slash; then ours,
half the likeliest and half a systematic sample, for the same proposals and for others.
"""

import argparse

from measure import Embedded, arguments, chosen_cases, kept, mean, repeated, row, truth_of
from potentials import Case

import rdpgraph as rg

PRINTED = {
    "uniform": (0.655, 11.05, 0.160),
    "local": (2.908, 9.171, 0.481),
    "global": (0.453, 0.096, 0.100),
    "local + global": (0.028, 0.017, 0.022),
}
KIND = {"dense": 0, "intermediate": 1, "long-tail": 2}


def proposals(one: Case) -> dict[str, rg.randomized.Proposal]:
    released = Embedded(one.norms)
    return {
        "uniform": rg.randomized.Uniform(),
        "local": rg.randomized.Local(),
        "global": released,
        "local + global": rg.randomized.LocalGlobal(released),
        "local + global (as printed)": rg.randomized.LocalGlobal(rg.randomized.Global()),
        "landmark": rg.randomized.Landmark(),
        "the default's": rg.Randomized.default(keep=2).proposal,
        "pilot": rg.randomized.Pilot(),
    }


def selections(keep: int) -> dict[str, rg.randomized.Selection]:
    return {
        "the paper's selection": rg.randomized.TopTail(keep - 1, 1),
        "half and half": rg.randomized.TopSystematic(keep // 2, keep - keep // 2),
    }


def block(states: int, chosen: argparse.Namespace) -> None:
    kinds, seeds, repeats, keep = chosen.kinds, chosen.seeds, chosen.repeats, kept(0.1, states)
    several = {
        kind: [(one, truth_of(one)[0]) for one in chosen_cases(chosen, kind, states)]
        for kind in kinds
    }
    for title, selection in selections(keep).items():
        print(f"\n{title}: {keep} of {states:,} states, {seeds} seeds, {repeats} runs")
        row("", kinds)
        for name in proposals(several[kinds[0]][0][0]):
            cells: list[str] = []
            for kind in kinds:
                estimators = (
                    rg.Randomized(proposals(one)[name], selection, defensive=0.0)
                    for one, _ in several[kind]
                )
                errors = [
                    repeated(one, truth, estimator, repeats, name=f"{title}, {name}").mse
                    for (one, truth), estimator in zip(several[kind], estimators, strict=True)
                ]
                printed = name in PRINTED and title.startswith("the paper")
                theirs = f" / {PRINTED[name][KIND[kind]]:g}" if printed else ""
                cells.append(f"{mean(errors):.3g}{theirs}")
            row(name, cells)


if __name__ == "__main__":
    chosen = arguments("Table 4 of Fu, Cunningham and Lapata 2022.")
    for states in chosen.states:
        block(states, chosen)
