"""EM of hidden Markov models beside those of other libraries, in one process on one thread.

    OMP_NUM_THREADS=1 python tests/benchmarks/hidden.py [--emissions categorical diagonal]
    ... --peers dynamax pomegranate  # in an environment that has them; sequences of equal lengths

All make the same steps from the parameters that ours are drawn at, in turn, and print CPU seconds
(the least of some rounds, in which they take turns), theirs over ours, and the difference of
their log-likelihoods. hmmlearn sums in logarithms unless it is told "scaling": both are printed.
dynamax is compiled before it is timed, and has small priors. pomegranate fits
probabilities of an end as well, in float32, so that its log-likelihood is another one.
"""

import argparse
import math
import time
import warnings
from functools import partial

import torch

from rdpgraph.learn import HMM, Categorical, Gaussian

SIZES = ((5, 200), (5, 2000), (20, 500), (50, 200))
SEQUENCES, COLUMNS, SYMBOLS = 100, 4, 20
KINDS = {"diagonal": "diag", "full": "full", "tied": "tied"}


def data(kind, states, steps, least):
    """Sequences of a tenth of the steps to all of them, or of equal lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(least, steps + 1, (SEQUENCES,), generator=generator)
    total = int(lengths.sum())
    hidden = torch.randint(states, (total,), generator=generator)
    if kind == "categorical":
        noise = torch.randint(5, (total,), generator=generator)
        return ((hidden + noise) % SYMBOLS).unsqueeze(1).numpy(), lengths.tolist()
    means = 3 * torch.randn(states, COLUMNS, generator=generator, dtype=torch.float64)
    noise = torch.randn(total, COLUMNS, generator=generator, dtype=torch.float64)
    return (means[hidden] + noise).numpy(), lengths.tolist()


def tables(begun, kind):
    """The start, the transitions, and the tables of the emission."""
    own = begun.emission_
    parts = (own.log_values.exp(),) if kind == "categorical" else (own.means, own.covariances)
    return [table.numpy() for table in (begun.start_.exp(), begun.transition_.exp(), *parts)]


def hmmlearn(begun, kind, steps, given, lengths, implementation):
    from hmmlearn.hmm import CategoricalHMM, GaussianHMM

    options = {"n_iter": steps, "tol": -math.inf, "init_params": ""}
    options["implementation"] = implementation
    start, transition, *emission = tables(begun, kind)
    if kind == "categorical":
        model = CategoricalHMM(begun.states, n_features=SYMBOLS, **options)
        (model.emissionprob_,) = emission
    else:
        model = GaussianHMM(begun.states, KINDS[kind], covars_prior=0.0, **options)
        model.n_features = COLUMNS
        model.means_, model.covars_ = emission
    model.startprob_, model.transmat_ = start, transition
    return seconds(lambda: model.fit(given, lengths)), model.monitor_.history[-1]


def dynamax(begun, kind, steps, given, lengths):
    import jax

    jax.config.update("jax_enable_x64", True)
    from dynamax import hidden_markov_model as models

    start, transition, *emission = tables(begun, kind)
    more = 1 + 1e-6  # a concentration of one, with an entry that is not seen, is NaN there
    flat = {"initial_probs_concentration": more, "transition_matrix_concentration": more}
    if kind == "categorical":
        flat["emission_prior_concentration"] = more
        model = models.CategoricalHMM(begun.states, 1, SYMBOLS, **flat)
        own = {"emission_probs": emission[0][:, None]}
    elif kind == "diagonal":
        flat |= {"emission_prior_mean_concentration": 1e-9, "emission_prior_scale": 1e-9}
        model = models.DiagonalGaussianHMM(
            begun.states, COLUMNS, emission_prior_concentration=1e-9, **flat
        )
        own = {"emission_means": emission[0], "emission_scale_diags": emission[1] ** 0.5}
    else:
        return math.nan, math.nan
    params, props = model.initialize(initial_probs=start, transition_matrix=transition, **own)
    rows = given.reshape(len(lengths), -1, given.shape[1])

    def fit(params, rows, count):
        return model.fit_em(params, props, rows, num_iters=count, verbose=False)[0]

    run = jax.jit(fit, static_argnums=2)
    jax.block_until_ready(run(params, rows, steps))  # compiled
    spent = seconds(lambda: jax.block_until_ready(run(params, rows, steps)))
    each = jax.vmap(partial(model.marginal_log_prob, fit(params, rows, steps - 1)))(rows)
    return spent, float(each.sum())


def pomegranate(begun, kind, steps, given, lengths):
    from pomegranate import distributions
    from pomegranate.hmm import DenseHMM

    start, transition, *emission = (torch.tensor(part).float() for part in tables(begun, kind))
    if kind == "categorical":
        parts = [distributions.Categorical(own[None]) for own in emission[0]]
    elif kind in ("diagonal", "full"):
        parts = [
            distributions.Normal(*own, covariance_type=KINDS[kind])
            for own in zip(*emission, strict=True)
        ]
    else:
        return math.nan, math.nan
    rows = torch.as_tensor(given).reshape(len(lengths), -1, given.shape[1])
    rows = rows.long() if kind == "categorical" else rows.float()
    ends = torch.full_like(start, 1e-3)
    model = DenseHMM(parts, transition * (1 - ends), start, ends, max_iter=steps, tol=0.0)
    return seconds(lambda: model.fit(rows)), math.nan


PEERS = {
    "hmmlearn": partial(hmmlearn, implementation="log"),
    "scaling": partial(hmmlearn, implementation="scaling"),
    "dynamax": dynamax,
    "pomegranate": pomegranate,
}


def seconds(run):
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emissions", nargs="+", default=["categorical", *KINDS])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["hmmlearn", "scaling"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    equal = not {"hmmlearn", "scaling"}.issuperset(args.peers)
    heads = "".join(f"{name:>12}  ratio" for name in args.peers)
    print(f"emission     states  steps     ours{heads}   difference")
    for kind in args.emissions:
        emission = Categorical(SYMBOLS) if kind == "categorical" else Gaussian(kind)
        for states, steps in SIZES:
            given, lengths = data(kind, states, steps, steps if equal else steps // 10)
            begun = HMM(states, emission, limit=0).fit(given, lengths)
            # Others score before each step, ours after the last one too.
            own = HMM(
                states, begun.emission_, start=begun.start_, transition=begun.transition_,
                limit=args.steps - 1, tolerance=0.0,
            )  # fmt: skip
            best, scores = [math.inf] * (1 + len(args.peers)), [math.nan] * len(args.peers)
            for _ in range(args.rounds):
                best[0] = min(best[0], seconds(partial(own.fit, given, lengths)))
                for place, name in enumerate(args.peers):
                    spent, scores[place] = PEERS[name](begun, kind, args.steps, given, lengths)
                    best[place + 1] = min(spent, best[place + 1])
            apart = [abs(score - own.fit_.history[-1]) for score in scores if score == score]
            times = "".join(f"{spent:12.3f} {spent / best[0]:6.1f}" for spent in best[1:])
            print(
                f"{kind:12} {states:6} {steps:6} {best[0]:8.3f}{times} "
                f"{max(apart, default=math.nan):12.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
