"""`learn.SequenceTagger` beside python-crfsuite: the likelihood at equal L2, accuracy, CPU seconds.

    pip install python-crfsuite
    OMP_NUM_THREADS=1 python tests/benchmarks/tagging.py --sentences 2000

Sentences of a hidden Markov model with words of its own for each tag, told by words, suffixes and
neighbours. Without python-crfsuite only our figures are printed.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from rdpgraph import learn

TAGS, WORDS = 12, 4000


def sentences(count: int, seed: int) -> tuple[list[list[dict[str, str]]], list[list[str]]]:
    """Features and tags of random sentences."""
    draw, model = np.random.default_rng(seed), np.random.default_rng(0)
    follow = model.dirichlet(np.full(TAGS, 0.3), TAGS)
    emit = model.dirichlet(np.full(WORDS, 0.02), TAGS)
    X, y = [], []
    for _ in range(count):
        tags = [int(draw.integers(TAGS))]
        for _ in range(int(draw.integers(4, 30))):
            tags.append(int(draw.choice(TAGS, p=follow[tags[-1]])))
        words = ["", *(f"w{draw.choice(WORDS, p=emit[tag])}" for tag in tags), ""]
        X.append([
            {"word": word, "suffix": word[-2:], "before": before, "after": after}
            for before, word, after in zip(words, words[1:], words[2:], strict=False)
        ])  # fmt: skip
        y.append([f"T{tag}" for tag in tags])
    return X, y


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--c1", type=float, default=0.0)
    parser.add_argument("--c2", type=float, default=1.0)
    given = parser.parse_args()
    X, y = sentences(given.sentences, 1)
    held, tags = sentences(max(1, given.sentences // 4), 2)
    start = time.process_time()
    tagger = learn.SequenceTagger(c1=given.c1, c2=given.c2, tolerance=1e-8).fit(X, y)
    spent = time.process_time() - start
    print(
        f"SequenceTagger: loss {tagger.losses_[-1]:.3f}, {len(tagger.losses_) - 1} steps, "
        f"right {tagger.score(held, tags):.4f}, {spent:.1f} s"
    )
    try:
        import pycrfsuite
    except ImportError:
        pass
    else:
        trainer = pycrfsuite.Trainer(verbose=False)
        for features, labels in zip(X, y, strict=True):
            trainer.append(features, labels)
        trainer.set_params({"c1": given.c1, "c2": given.c2, "max_iterations": 1000,
                            "epsilon": 1e-7, "delta": 1e-8})  # fmt: skip
        path = str(Path(tempfile.mkdtemp()) / "model")
        start = time.process_time()
        trainer.train(path)
        spent = time.process_time() - start
        theirs = pycrfsuite.Tagger()
        theirs.open(path)
        last = trainer.logparser.last_iteration
        pairs = [
            one == other
            for features, labels in zip(held, tags, strict=True)
            for one, other in zip(theirs.tag(features), labels, strict=True)
        ]
        print(
            f"python-crfsuite: loss {last['loss']:.3f}, {last['num']} steps, "
            f"right {sum(pairs) / len(pairs):.4f}, {spent:.1f} s"
        )
