"""
Tagging by features
===================

Names of people and places in random sentences, found by a `SequenceTagger`: a linear-chain CRF over
features that are strings, as of CRFsuite. It is compared with the same features without
transitions between labels, for as many sentences as there are to learn from.
"""

import random

import matplotlib.pyplot as plt

from rdpgraph import learn

draw = random.Random(0)
FIRST = ["Ann", "Bob", "Eve", "Jon", "Lea", "Max", "Paris", "Sofia"]
LAST = ["Smith", "Jones", "London", "York", "Stone", "Berg"]
PLACES = ["Paris", "London", "Sofia", "New York", "Berg", "Oslo", "Rome"]
VERBS = ["sings", "works", "lives", "meets", "left"]

# %%
# Sentences with labels in the scheme BIO. Paris, Sofia, London and Berg may be people or places.


def sentence() -> tuple[list[str], list[str]]:
    words, labels = [draw.choice(FIRST)], ["B-PER"]
    if draw.random() < 0.6:
        words.append(draw.choice(LAST))
        labels.append("I-PER")
    words.append(draw.choice(VERBS))
    labels.append("O")
    for _ in range(draw.randrange(3)):
        if draw.random() < 0.6:
            words.append("in" if draw.random() < 0.7 else "near")
            place = draw.choice(PLACES).split()
            labels += ["O", "B-LOC", *["I-LOC"] * (len(place) - 1)]
            words += place
        else:
            words += ["with" if draw.random() < 0.7 else "near", draw.choice(FIRST)]
            labels += ["O", "B-PER"]
            if draw.random() < 0.5:
                words.append(draw.choice(LAST))
                labels.append("I-PER")
    return words, labels


def features(words: list[str], at: int) -> dict[str, object]:
    """What a token looks like: itself, its shape and its ending, and whether it is the first."""
    word = words[at]
    return {"word": word, "capital": word[0].isupper(), "tail": word[-2:], "first": at == 0}


def corpus(count: int) -> tuple[list[list[dict[str, object]]], list[list[str]]]:
    drawn = [sentence() for _ in range(count)]
    return [[features(w, at) for at in range(len(w))] for w, _ in drawn], [y for _, y in drawn]


# %%
# Two taggers: of sentences, and of single tokens, which know no label beside their own.

X, y = corpus(200)
held, truth = corpus(300)
single = [[token] for each in X for token in each], [[label] for each in y for label in each]
alone = [[token] for each in held for token in each], [[label] for each in truth for label in each]
sizes, right = [5, 20, 50, 200], {"chain": [], "tokens": []}
for size in sizes:
    tagger = learn.SequenceTagger(c2=0.05).fit(X[:size], y[:size])
    right["chain"].append(tagger.score(held, truth))
    count = sum(map(len, X[:size]))
    tokens = learn.SequenceTagger(c2=0.05).fit(single[0][:count], single[1][:count])
    right["tokens"].append(tokens.score(*alone))
    print(f"{size} sentences: {right['chain'][-1]:.3f}, tokens alone {right['tokens'][-1]:.3f}")

# %%
# What it learnt, and how sure it is of a sentence with a name that is a place elsewhere.

for one, other, weight in tagger.top_transitions(4):
    print(f"{one:6} -> {other:6} {weight:6.2f}")
for name, label, weight in tagger.top_features(6):
    print(f"{name:14} {label:6} {weight:6.2f}")
words = ["Sofia", "London", "meets", "Ann", "in", "Berg"]
tokens = [[features(words, at) for at in range(len(words))]]
chances = tagger.predict_marginals(tokens)[0]

figure, (left, last) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, shares in right.items():
    left.semilogx(sizes, shares, marker="o", label=name)
left.set_xlabel("sentences")
left.set_title("labels that are right")
left.legend()
table = [[chance[label] for chance in chances] for label in tagger.classes_]
last.imshow(table, cmap="Blues", vmin=0, vmax=1)
last.set_xticks(range(len(words)), words)
last.set_yticks(range(len(table)), tagger.classes_)
last.set_title("probabilities of the labels")
figure.tight_layout()
