"""EM of hidden Markov models beside hmmlearn's, from the same start, in one process on one thread.

    OMP_NUM_THREADS=1 python tests/benchmarks/hidden.py [--emissions categorical diagonal]

Both make the same steps from the parameters that ours are drawn at, in turn, and print CPU seconds
(the least of some rounds, in which they take turns), hmmlearn's over ours, and the difference of
their log-likelihoods. hmmlearn sums in logarithms unless it is told "scaling": both are printed.
"""

import argparse
import math
import time
import warnings

import torch

from rdpgraph.learn import HMM, Categorical, Gaussian

SIZES = ((5, 200), (5, 2000), (20, 500), (50, 200))
SEQUENCES, COLUMNS, SYMBOLS = 100, 4, 20
KINDS = {"diagonal": "diag", "full": "full", "tied": "tied"}


def data(kind, states, steps):
    """Sequences of a tenth of the steps to all of them."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(steps // 10, steps + 1, (SEQUENCES,), generator=generator)
    total = int(lengths.sum())
    hidden = torch.randint(states, (total,), generator=generator)
    if kind == "categorical":
        noise = torch.randint(5, (total,), generator=generator)
        return ((hidden + noise) % SYMBOLS).unsqueeze(1).numpy(), lengths.tolist()
    means = 3 * torch.randn(states, COLUMNS, generator=generator, dtype=torch.float64)
    noise = torch.randn(total, COLUMNS, generator=generator, dtype=torch.float64)
    return (means[hidden] + noise).numpy(), lengths.tolist()


def theirs(begun, kind, steps, implementation):
    from hmmlearn.hmm import CategoricalHMM, GaussianHMM

    options = {"n_iter": steps, "tol": -math.inf, "init_params": ""}
    options["implementation"] = implementation
    emission = begun.emission_
    if kind == "categorical":
        model = CategoricalHMM(begun.states, n_features=SYMBOLS, **options)
        model.emissionprob_ = emission.log_values.exp().numpy()
    else:
        model = GaussianHMM(begun.states, KINDS[kind], covars_prior=0.0, **options)
        model.n_features = COLUMNS
        model.means_, model.covars_ = emission.means.numpy(), emission.covariances.numpy()
    model.startprob_, model.transmat_ = begun.start_.exp().numpy(), begun.transition_.exp().numpy()
    return model


def seconds(model, given, lengths):
    begin = time.process_time()
    model.fit(given, lengths)
    return time.process_time() - begin


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emissions", nargs="+", default=["categorical", *KINDS])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print("emission     states  steps     ours   hmmlearn  ratio   scaling  ratio   difference")
    for kind in args.emissions:
        emission = Categorical(SYMBOLS) if kind == "categorical" else Gaussian(kind)
        for states, steps in SIZES:
            given, lengths = data(kind, states, steps)
            begun = HMM(states, emission, limit=0).fit(given, lengths)
            # Theirs scores before each step, ours after the last one too.
            own = HMM(
                states, begun.emission_, start=begun.start_, transition=begun.transition_,
                limit=args.steps - 1, tolerance=0.0,
            )  # fmt: skip
            best, scores = [math.inf] * 3, [0.0, 0.0]
            for _ in range(args.rounds):
                best[0] = min(best[0], seconds(own, given, lengths))
                for place, implementation in enumerate(("log", "scaling")):
                    rival = theirs(begun, kind, args.steps, implementation)
                    best[place + 1] = min(best[place + 1], seconds(rival, given, lengths))
                    scores[place] = rival.monitor_.history[-1]
            ours, slow, quick = best
            apart = max(abs(score - own.fit_.history[-1]) for score in scores)
            print(
                f"{kind:12} {states:6} {steps:6} {ours:8.3f} {slow:10.3f} {slow / ours:6.1f} "
                f"{quick:9.3f} {quick / ours:6.1f} {apart:12.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
