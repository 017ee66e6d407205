"""Measure how often errors, intervals and statuses of estimates hold exact answers.

python -m tests.fuzz.calibration [--models 300] [--seed 0] [--large] [--wide] [--only Randomized]

Each row is of the answers of one estimate that say, or do not say, that they have converged: how
many there are, in which part of them log Z is within two and six standard errors and in the 95%
interval of `Replicates`, and in which part the error is +inf. With --large no model is solved whole
as a check of its estimate, as if all were too large for that. The same holds with --wide: variables
have 50 to 1,000 states, of which `Randomized.default` and `Randomized.piloted` keep 10, 20 or 40.
`RandomizedPruning` is asked for probabilities, `ParityModel.kept` for log P(s, l), and a small
`StructuredVAE` for log p(y), each of random models of its own; the last two have no status, and are
rows of "yes" where there are sixteen draws and an error.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph._core.numbers import student
from rdpgraph.answers import RelaxedStates
from rdpgraph.errors import RdpgraphError
from rdpgraph.estimate import replicates
from rdpgraph.nn import LSTMDecoder, StructuredVAE
from rdpgraph.plan import clock
from rdpgraph.pruning import Alternating, sweeps_of

Model = rg.FactorGraph | rg.Chain
Rng = np.random.Generator
SLACK = 1e-6


def scores(rng: Rng, kind: str, scale: float, *shape: int) -> rg.Table:
    """Normal scores, heavy tails, hard zeros, or states that neighbours have in common."""
    values = scale * rng.normal(size=shape)
    if kind == "heavy":
        values = scale * rng.standard_cauchy(shape).clip(-50, 50)
    if kind == "zeros":
        values = np.where(rng.random(shape) < 0.4, -np.inf, values)
    if kind == "coupled" and len(set(shape)) == 1:
        apart = np.ones(shape, bool)
        apart[(np.arange(shape[0]),) * len(shape)] = False
        values = 0.1 * values / scale - 3.0 * scale * apart
    return rg.Table.from_logs(torch.from_numpy(values))


def model(rng: Rng, states: int) -> Model:
    """A chain, tree, ring, grid, or random triples."""
    shape = str(rng.choice(["chain", "tree", "ring", "grid", "triples"]))
    kind = str(rng.choice(["normal", "heavy", "zeros", "coupled"]))
    scale, own = float(rng.choice([0.5, 1.0, 2.0, 5.0])), float(rng.choice([0.1, 1.0]))
    states, count = int(rng.integers(2, states + 1)), int(rng.integers(4, 11))
    if shape == "chain":
        unary = torch.from_numpy(own * rng.normal(size=(count, 5 * states)))
        return rg.Chain(unary, scores(rng, kind, scale, 5 * states, 5 * states))
    places = np.arange(count)
    scopes: list[tuple[int, ...]] = [(int(rng.integers(i)), int(i)) for i in places[1:]]
    if shape == "ring":
        scopes = [(i, (i + 1) % count) for i in range(count)]
    if shape == "grid":
        count = 12
        scopes = [(i, i + 1) for i in range(12) if i % 4 < 3] + [(i, i + 4) for i in range(8)]
    if shape == "triples":
        states = min(states, 5)
        scopes = [tuple(rng.choice(count, 3, replace=False).tolist()) for _ in range(2 * count)]
    x = [rg.Variable(f"x{number}", states) for number in range(count)]
    factors = [rg.Factor([v], scores(rng, "normal", own, states)) for v in x]
    for scope in scopes:
        table = scores(rng, kind, scale, *(states,) * len(scope))
        factors.append(rg.Factor([x[v] for v in scope], table))
    return rg.FactorGraph(factors)


def wide_scores(rng: Rng, kind: str, scale: float, *shape: int) -> rg.Table:
    """The kinds of `scores`, embeddings, and levels of which neighbours have near ones."""
    values, alike = scale * rng.normal(size=shape), len(set(shape)) == 1 < len(shape)
    if kind == "heavy":
        values = scale * rng.standard_cauchy(shape).clip(-50, 50)
    if kind == "zeros":
        values = np.where(rng.random(shape) < 0.4, -np.inf, values)
    if kind == "coupled" and alike:
        apart = np.ones(shape, bool)
        apart[(np.arange(shape[0]),) * len(shape)] = False
        values = 0.1 * values / scale - 3.0 * scale * apart
    if kind == "lowrank" and alike and len(shape) == 2:
        embeddings = rng.normal(size=(shape[0], 8)) * math.sqrt(scale / 4)
        values = embeddings @ embeddings.T
    if kind == "smooth" and alike:
        levels = np.meshgrid(*[np.linspace(0, 1, shape[0])] * len(shape), indexing="ij")
        values = -10 * scale * np.var(np.stack(levels), axis=0) * len(shape)
    return rg.Table.from_logs(torch.from_numpy(values))


def wide_model(rng: Rng) -> Model:
    """A chain, a tree, a grid of nine, or a chain of triples, of 50 to 1,000 states."""
    shape = str(rng.choice(["chain", "tree", "grid", "triples"]))
    kind = str(rng.choice(["normal", "heavy", "zeros", "coupled", "lowrank", "smooth"]))
    scale, own = (float(np.exp(rng.uniform(math.log(0.1), math.log(most)))) for most in (10, 3))
    count, most = int(rng.integers(4, 11)), {"grid": 100, "triples": 120}.get(shape, 1000)
    states = int(np.exp(rng.uniform(math.log(50), math.log(most))))
    if shape == "chain":
        unary = torch.from_numpy(own * rng.normal(size=(count, states)))
        return rg.Chain(unary, wide_scores(rng, kind, scale, states, states))
    if shape == "tree":
        scopes: list[tuple[int, ...]] = [(int(rng.integers(i)), i) for i in range(1, count)]
    elif shape == "grid":
        count = 9
        scopes = [(i, i + 1) for i in range(9) if i % 3 < 2] + [(i, i + 3) for i in range(6)]
    else:
        triples = int(rng.integers(2, 5))
        count, scopes = 2 * triples + 1, [(2 * i, 2 * i + 1, 2 * i + 2) for i in range(triples)]
    x = [rg.Variable(f"x{number}", states) for number in range(count)]
    factors = [rg.Factor([v], wide_scores(rng, "normal", own, states)) for v in x]
    sizes = (states,) * len(scopes[0])
    shared = wide_scores(rng, kind, scale, *sizes) if rng.random() < 0.5 else None
    for scope in scopes:
        table = shared or wide_scores(rng, kind, scale, *sizes)
        factors.append(rg.Factor([x[v] for v in scope], table))
    return rg.FactorGraph(factors)


Ask = Callable[[Model, Rng, torch.Generator], rg.Posterior]


def kept(count: int) -> Ask:
    """Replicates on a few states of each variable, by any proposal and selection."""

    def ask(asked: Model, rng: Rng, generator: torch.Generator) -> rg.Posterior:
        states = asked.unary.shape[-1] if isinstance(asked, rg.Chain) else asked.variables[0].size
        keep = max(int(states * rng.choice([0.1, 0.3, 0.6])), 2)
        own = rg.randomized
        proposal = rng.choice([own.Uniform(), own.Local(), own.Landmark(4), own.Pilot()])
        selections = [own.TopTail(keep // 2, keep - keep // 2), own.Threshold(keep),
                      own.TopSystematic(keep // 2, keep - keep // 2)]  # fmt: skip
        chosen = rg.Randomized(proposal, rng.choice(selections), replicates=count)
        return rg.infer(asked, estimator=chosen, generator=generator)

    return ask


def recommended(make: Callable[..., rg.Randomized]) -> Ask:
    """Sixteen replicates of recommended settings on 10, 20 or 40 states."""

    def ask(asked: Model, rng: Rng, generator: torch.Generator) -> rg.Posterior:
        chosen = make(keep=int(rng.choice([10, 20, 40])), replicates=16)
        return rg.infer(asked, estimator=chosen, generator=generator)

    return ask


def scheduled(kind: type[rg.MiniBuckets | rg.Auto], seconds: float) -> Ask:
    """The answer of a scheduler with too little memory for exact inference, in counted seconds."""

    def ask(asked: Model, rng: Rng, generator: torch.Generator) -> rg.Posterior:
        graph = asked.factor_graph() if isinstance(asked, rg.Chain) else asked
        scheduler = kind(memory=float(10 ** rng.uniform(2.5, 4.5)), seconds=seconds)
        if isinstance(scheduler, rg.MiniBuckets):
            scheduler = replace(scheduler, generator=generator)
        with clock.counted(clock.Counter()):
            posterior = rg.infer(graph, scheduler=scheduler)
            _ = posterior.log_partition
        return posterior

    return ask


ESTIMATES: dict[str, Ask] = {
    **{f"Randomized, {count} replicates": kept(count) for count in (2, 4, 8, 16, 32)},
    **{
        f"MiniBuckets({seconds})": scheduled(rg.MiniBuckets, seconds)
        for seconds in (0.01, 0.1, 1.0)
    },
    **{f"Auto(seconds={seconds})": scheduled(rg.Auto, seconds) for seconds in (0.01, 0.1, 1.0)},
}


WIDE: dict[str, Ask] = {
    "Randomized.default": recommended(rg.Randomized.default),
    "Randomized.piloted": recommended(rg.Randomized.piloted),
}


def judged(found: float, exact: float, error: float, low: float, high: float) -> tuple[float, bool]:
    """Standard errors between the answer and the exact one; whether the interval holds this."""
    slack = SLACK * (1.0 + abs(exact))
    off = abs(found - exact)
    far = 0.0 if off <= slack else off / error if error > 0.0 else math.inf
    return far if error < math.inf else math.nan, low - slack <= exact <= high + slack


def outcome(posterior: rg.Posterior, exact: float) -> tuple[float, bool]:
    """Standard errors between the answer and log Z; whether the interval holds it."""
    low, high = posterior.replicates.interval(0.95)
    answer, error = posterior.log_partition, posterior.standard_error
    return judged(float(answer), exact, float(error), float(low), float(high))


Row = tuple[bool, float, bool]  # converged, standard errors, whether the interval holds


def by_student(count: int, found: Tensor, exact: Tensor, error: Tensor) -> Iterator[Row]:
    """Rows of estimates by a number of draws, whose error gives the interval."""
    width = student(0.975, count - 1)
    for value, wanted, wrong in zip(*(part.flatten().tolist() for part in (found, exact, error)),
                                    strict=True):  # fmt: skip
        if wanted > -math.inf:
            half = width * wrong if wrong > 0.0 else 0.0
            ends = (value - half, value + half) if half < math.inf else (-math.inf, math.inf)
            far, held = judged(value, wanted, wrong, *ends)
            yield count >= 16 and far == far, far, held


def pruning(rng: Rng, generator: torch.Generator) -> Iterator[Row]:
    """Probabilities by masked sweeps of a chain, or of one that hardly ever changes its state."""
    steps, states = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    unary, scale = torch.from_numpy(rng.normal(size=(steps, states))), rng.choice([0.5, 1.0, 2.0])
    pairs = rg.Table(torch.from_numpy(scale * rng.normal(size=(states, states))))
    if rng.random() < 0.5:
        pairs = rg.Table(4.0 * scale * (torch.eye(states, dtype=torch.float64) - 1.0))
    chain = rg.Chain(scale * unary, pairs)
    share, chains = float(rng.choice([1 / 3, 2 / 3, 1.0])), int(rng.choice([4, 8]))
    estimator = rg.RandomizedPruning(
        int(rng.choice([20, 60, 200])), chains=chains, selected=Alternating(share)
    )
    posterior = rg.infer(chain, estimator=estimator, generator=generator)
    sweeps = sweeps_of(posterior)
    parts = (chain.marginals(), sweeps.answers, sweeps.standard_error,
             *sweeps.answer_interval(0.95))  # fmt: skip
    for exact, found, error, low, high in zip(*(p.flatten().tolist() for p in parts), strict=True):
        yield posterior.status.converged, *judged(found, exact, error, low, high)


def cosets(count: int) -> Callable[[Rng, torch.Generator], Iterator[Row]]:
    """Replicates of a few kept states of random codes, for log P(s, l)."""

    def ask(rng: Rng, generator: torch.Generator) -> Iterator[Row]:
        checks = int(rng.integers(4, 12))
        errors = int(rng.integers(checks, 3 * checks))
        flips = (rng.random((checks, errors)) < 2.5 / checks).astype(int)
        rates = 10.0 ** rng.uniform(*rng.choice([(-4.0, -0.4), (-2.0, -0.5)]), errors)
        observed = (rng.random((1, errors)) < 0.4).astype(int)
        model = rg.ParityModel.from_rates(flips, rates, observables=observed)
        given = model.condition(flips @ (rng.random(errors) < rates) % 2)
        keep = int(rng.choice([1, 2, 4, 8, 16, 32]))
        found = given.kept(keep, replicates=count, generator=generator)
        assert found.standard_error is not None
        return by_student(count, found.log_cosets, given.log_cosets(), found.standard_error)

    return ask


class Encoder(torch.nn.Embedding):
    """An encoder that reads one token at a time."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Embed the tokens."""
        return super().forward(tokens)


def importance(count: int) -> Callable[[Rng, torch.Generator], Iterator[Row]]:
    """Samples for log p(y) of sentences that a VAE was trained on a little."""

    def ask(rng: Rng, generator: torch.Generator) -> Iterator[Row]:
        torch.manual_seed(int(rng.integers(2**31)))
        states, steps = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        decoder = LSTMDecoder(states=states, vocabulary=5, hidden=8, dimension=4)
        vae = StructuredVAE(Encoder(5, 4), decoder, states=states, dimension=4).double()
        data = torch.randint(5, (20, steps))
        optimizer = torch.optim.Adam(vae.parameters(), lr=0.03)
        for _ in range(int(rng.choice([10, 40]))):
            optimizer.zero_grad()
            (-vae(data).elbo.mean()).backward()
            optimizer.step()
        vae.eval()
        paths = torch.cartesian_prod(*[torch.arange(states)] * steps)
        with torch.no_grad():
            draw = RelaxedStates.of(paths, vae.embeddings)
            some = [rows.expand(len(paths), -1) for rows in data[:4]]
            lengths = torch.full((len(paths),), steps)
            joints = [decoder(tokens, lengths, draw) for tokens in some]
            exact = torch.stack([(joint.words + joint.states).logsumexp(0) for joint in joints])
        found = vae.importance_log_likelihood(data[:4], samples=count, generator=generator)
        return by_student(count, found.log_likelihood, exact, found.standard_error)

    return ask


OTHERS: dict[str, Callable[[Rng, torch.Generator], Iterator[Row]]] = {
    "Pruning": pruning,
    **{f"ParityModel.kept, {count} replicates": cosets(count) for count in (2, 4, 16, 64)},
    **{f"StructuredVAE, {count} samples": importance(count) for count in (4, 16, 64)},
}


def main() -> None:
    """Print a table of all estimates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--states", type=int, default=20, help="of a variable, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--wide", action="store_true", help="many states, counted as too large")
    parser.add_argument("--only", default="", help="estimates whose names begin with this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.large or asked.wide:
        tuning.LITTLE_WORK, replicates._Check.of_all = 0.0, lambda _: None
    found, wrong = defaultdict[tuple[str, bool], list[tuple[float, bool]]](list), 0
    for seed in range(asked.seed, asked.seed + asked.models):
        rng = np.random.default_rng(seed)
        drawn = wide_model(rng) if asked.wide else model(rng, asked.states)
        exact = float(rg.infer(drawn).log_partition)
        for name, ask in (WIDE if asked.wide else ESTIMATES).items():
            if exact == -math.inf or not name.startswith(asked.only):
                continue
            try:
                posterior = ask(drawn, rng, torch.Generator().manual_seed(seed))
                far, held = outcome(posterior, exact)
            except RdpgraphError:  # out of the budget
                continue
            wrong += posterior.status.exact and far > 0
            if not posterior.status.exact:
                found[name, posterior.status.converged].append((far, held))
        for name, rows in () if asked.wide else OTHERS.items():
            if name.startswith(asked.only):
                for sure, far, held in rows(rng, torch.Generator().manual_seed(seed)):
                    found[name, sure].append((far, held))
    print(f"{wrong} answers called exact are not; in percent:")
    print("| estimate | converged | answers | 2 errors | 6 errors | interval | error not known |")
    print("|---|---|---|---|---|---|---|")
    for (name, sure), rows in sorted(
        found.items(), key=lambda row: [*ESTIMATES, *WIDE, *OTHERS].index(row[0][0])
    ):
        far, held = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        known = far[~np.isnan(far)]
        parts = [(known <= 2).mean(), (known <= 6).mean()] if len(known) else [math.nan] * 2
        parts += [held.mean(), np.isnan(far).mean()]
        cells = " | ".join("" if math.isnan(part) else f"{100 * part:.0f}" for part in parts)
        print(f"| {name} | {'yes' if sure else 'no'} | {len(rows)} | {cells} |")


if __name__ == "__main__":
    main()
