"""Errors of log Z under random features: predicted, and measured over many draws.

python tests/benchmarks/features.py [--draws 2000] [--samples 1000] [--shape grammar] [--signs]

With --signs: Z by positive features and by cosines and sines, where own potentials speak for
neighbours with embeddings alike, for none, and for neighbours with embeddings of opposite signs.
"""

import argparse
import warnings

import torch

import rdpgraph as rg

CASES = [  # shape, factors and one, norm |x + y|, features, one map for all
    ("chain", 5, 1.0, 64, False), ("chain", 20, 1.0, 64, False), ("chain", 80, 1.0, 64, False),
    ("chain", 20, 1.0, 16, False), ("chain", 20, 1.0, 256, False), ("chain", 20, 0.5, 64, False),
    ("chain", 20, 1.5, 64, False), ("chain", 20, 1.0, 64, True), ("chain", 20, 1.0, 256, True),
    ("star", 2, 1.0, 64, False), ("star", 4, 1.0, 64, False), ("star", 8, 1.0, 64, False),
    ("star", 16, 1.0, 64, False),
    ("grammar", 5, 1.0, 64, False), ("grammar", 10, 1.0, 64, False),
    ("grammar", 20, 1.0, 64, False), ("grammar", 10, 1.0, 16, False),
    ("grammar", 10, 1.0, 256, False), ("grammar", 10, 0.5, 64, False),
    ("grammar", 10, 1.5, 64, False), ("grammar", 10, 1.0, 64, True),
    ("grammar", 10, 1.0, 256, True), ("grammar", 10, 0.5, 64, True),
]  # fmt: skip


UNITS = {"chain": "steps", "star": "leaves", "grammar": "words"}


def model(shape, size, norm, states=50, dimension=4):
    """Chain of ``size`` steps, star of as many leaves, or words, with |x + y| = norm on average."""
    generator = torch.Generator().manual_seed(0)
    if shape == "grammar":
        left, right = torch.randn(2, 5, 15, dimension, generator=generator, dtype=torch.float64)
        size_of = (left[:, :, None] + right[:, None]).norm(dim=-1).mean() / norm
        rules = rg.trees.BilinearRules(left / size_of, right / size_of)
        terms = 1.5 * torch.randn(size, 10, generator=generator, dtype=torch.float64)
        return rg.Hypertree.pcfg(torch.zeros(5, dtype=torch.float64), rules, terms)
    vectors = torch.randn(states, dimension, generator=generator, dtype=torch.float64)
    vectors = vectors * norm / (2 * vectors).norm(dim=1).mean()
    unary = torch.randn(size, states, generator=generator, dtype=torch.float64)
    pairs = rg.Bilinear(vectors, vectors)
    if shape == "chain":
        return rg.Chain(unary, pairs)
    hub, leaves = rg.Variable("hub", states), rg.VariableArray("leaf", (size,), states)
    blocks = rg.FactorBlock((leaves,), rg.Table(unary)), rg.FactorBlock((hub, leaves), pairs)
    return rg.FactorGraph(list(blocks))


def measured(declared, estimator, draws):
    """The deviation and the bias of log Z over draws, up to 250 at a time."""
    generator, parts = torch.Generator().manual_seed(2), []
    for _ in range(max(draws // estimator.replicates, 1)):
        found = rg.infer(declared, estimator=estimator, generator=generator)
        parts.append(found.solution.log_partitions().flatten())
    errors = torch.cat(parts) - rg.infer(declared).log_partition
    return f"{float(errors.std()):.3f} {float(errors.mean()):+.3f}"


WAVES = [  # neighbours that weigh most, steps, norm |x|, features
    (neighbours, steps, norm, 64)
    for neighbours in ("alike", "any", "apart")
    for steps, norm in ((2, 0.5), (2, 1.0), (2, 1.5), (20, 0.5), (20, 1.0))
]
TILT = 6.0  # nats by which own potentials speak for one direction, or in turn for either


def relative(log_sizes, signs, exact):
    """The root mean square of Z^ / Z - 1."""
    return f"{float((signs * (log_sizes - exact).exp() - 1).square().mean().sqrt()):.3g}"


def compare_signs(draws, cases):
    """Positive and trigonometric features, as many of each, with maps of their own."""
    print("| neighbours that weigh most | steps | norm of each | positive | cosines and sines "
          "| below zero | predicted |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for neighbours, steps, norm, features in cases:
        generator = torch.Generator().manual_seed(0)
        vectors = torch.randn(50, 4, generator=generator, dtype=torch.float64)
        vectors = vectors * norm / vectors.norm(dim=1).mean()
        turns = torch.ones(steps, 1, dtype=torch.float64)
        turns[1::2] = -1.0 if neighbours == "apart" else 1.0
        unary = torch.randn(steps, 50, generator=generator, dtype=torch.float64)
        unary += (neighbours != "any") * TILT * turns * vectors[:, 0] / norm
        chain = rg.Chain(unary, rg.Bilinear(vectors, vectors))
        exact, parts = chain.log_partition(), []
        for _ in range(max(draws // 250, 1)):
            many = rg.LowRankFactors(features, replicates=min(draws, 250))
            found = rg.infer(chain, estimator=many, generator=generator)
            parts.append(found.solution.log_partitions().flatten())
        logs = torch.cat(parts)
        waves = rg.LowRankFactors(features, replicates=len(logs)).signed(chain, generator=generator)
        both = (logs, torch.ones_like(logs)), (waves.log_sizes, waves.signs)
        cells = " | ".join(relative(*one, exact) for one in both)
        said = rg.LowRankFactors(features).predicted_error(
            chain, solve=rg.infer, signed=True, samples=10_000, generator=generator
        )
        root, below = (
            said.relative_variance.sqrt().item(),
            (waves.signs <= 0).double().mean().item(),
        )
        print(f"| {neighbours} | {steps} | {norm} | {cells} | {below:.0%} | {root:.3g} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=1000, help="of predictions")
    parser.add_argument("--cases", type=int, default=len(CASES))
    parser.add_argument("--shape", choices=UNITS, help="one kind of model alone")
    parser.add_argument("--signs", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "Random features are useless")
    if options.signs:
        return compare_signs(options.draws, WAVES[: options.cases])
    print("| model | norm | features | maps | predicted | independent | orthogonal |")
    print("|---|---|---|---|---|---|---|")
    for shape, size, norm, features, shared in CASES[: options.cases]:
        if shape != (options.shape or shape):
            continue
        declared = model(shape, size, norm)
        predicted = rg.LowRankFactors(features, shared=shared).predicted_error(
            declared, solve=rg.infer, samples=options.samples,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        both = [
            measured(
                declared,
                rg.LowRankFactors(
                    features, orthogonal=orthogonal, shared=shared,
                    replicates=min(options.draws, 250),
                ),
                options.draws,
            )
            for orthogonal in (False, True)
        ]  # fmt: skip
        said = f"{float(predicted.deviation):.3f} {float(predicted.bias):+.3f}"
        maps = "one" if shared else "each"
        size = f"{shape}, {size} {UNITS[shape]}"
        cells = size, norm, features, maps, said, *both
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
