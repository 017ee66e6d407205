"""
Tagging words with a CRF on an LSTM
===================================

A network reads a sentence and scores every tag of every word. One can then take the best tag of
each word, or the best sequence of tags. Where words are ambiguous in ways that depend on each
other, the first mixes readings that do not go together. `rdpgraph.nn.CRF` learns which tags may
follow which: its loss is the log-likelihood of whole sequences, and its answer is one of them.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import rdpgraph as rg
from rdpgraph.distributions import HMM
from rdpgraph.nn import CRF

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)

# %%
# The language is a hidden Markov model. A part of speech is singular or plural, and so is all of
# its clause, from the article to the verb, over any number of adjectives and adverbs. Few words
# show it: "the old sheep often fish" leaves it open until the last word, which may also be a noun.

parts = ["article", "adjective", "noun", "adverb", "verb"]
tags = [f"{part} {number}" for part in parts for number in ("sg", "pl")]
follows = {
    "article": {"adjective": 0.6, "noun": 0.4},
    "adjective": {"adjective": 0.4, "noun": 0.6},
    "noun": {"adverb": 0.5, "verb": 0.5},
    "adverb": {"adverb": 0.4, "verb": 0.6},
}
shown = {  # words of one number, and words that may be of either
    "article": ("a this", "these many", "the some my no"),
    "adjective": ("", "", "old small fast light still"),
    "noun": ("dog light", "dogs lights", "sheep deer fish fast"),
    "adverb": ("", "", "often never fast still"),
    "verb": ("runs fishes", "fish run", "ran slept must light"),
}
words = sorted({word for lists in shown.values() for each in lists for word in each.split()})

transition, emission = torch.zeros(10, 10), torch.zeros(10, len(words))
for number in (0, 1):
    for part, nexts in follows.items():
        for other, chance in nexts.items():
            transition[2 * parts.index(part) + number, 2 * parts.index(other) + number] = chance
    transition[2 * parts.index("verb") + number, :2] = 0.5  # the next clause, of either number
    for row, part in enumerate(parts):
        own, either = shown[part][number].split(), shown[part][2].split()
        for word in own:
            emission[2 * row + number, words.index(word)] = 0.3 / len(own)
        for word in either:
            emission[2 * row + number, words.index(word)] = (0.7 if own else 1.0) / len(either)
start = torch.tensor([0.5, 0.5] + [0.0] * 8)

# %%
# Sentences are cut at random lengths; 500 are to learn from and 500 to judge by.

steps, training = 16, 500
language = HMM(start.log(), transition.log(), emission.log(), length=steps)
unseen = torch.full((steps,), -1)  # with no word known, the posterior of the tags is their prior
truth = language.posterior(unseen).sample((1000,), generator=generator)
text = torch.multinomial(emission[truth.flatten()], 1, generator=generator).reshape(truth.shape)
lengths = torch.randint(5, steps + 1, (1000,), generator=generator)
mask = torch.arange(steps) < lengths.unsqueeze(1)
text = torch.where(mask, text, -1)

# %%
# The network reads in both directions. Trained on each word's tag by itself, with cross-entropy, or
# on sequences, with a CRF on top, it sees the same sentences in the same order.


class Reader(nn.Module):
    """Scores of every tag for every word, from the whole sentence."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1 + len(words), 16)  # -1 is no word
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(48, len(tags))

    def forward(self, text):
        return self.scores(self.lstm(self.embedding(1 + text))[0])


def train(loss_of, *modules, rounds=150):
    order = torch.Generator().manual_seed(1)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    for _ in range(rounds):
        rows = torch.randint(training, (32,), generator=order)
        loss = loss_of(text[rows], truth[rows], mask[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def word_loss(text, truth, mask):
    return nn.functional.cross_entropy(alone(text)[mask], truth[mask])


def sequence_loss(text, truth, mask):
    return -crf(reader(text), truth, mask, reduction="token_mean")


alone, reader, crf = Reader(), Reader(), CRF(len(tags), batch_first=True)
train(word_loss, alone)
train(sequence_loss, reader, crf)

# %%
# Both get about as many words right. The CRF gets more sentences right, because its tags agree with
# each other. Nobody can do better than the language itself: where nothing shows the number, it is
# a guess, for the whole clause.

test = slice(training, None)
known, judged = truth[test], mask[test]
with torch.no_grad():
    scores = reader(text[test])
    by_word = alone(text[test]).argmax(-1)
decoded = crf.decode(scores, judged)
by_sequence = nn.utils.rnn.pad_sequence(
    [torch.tensor(row) for row in decoded], batch_first=True, padding_value=-1
)
chain = rg.Chain.hmm(
    start.log(), transition.log(), emission.log(), text[test], lengths=lengths[test]
)
by_language = chain.mode()


def report(name, guess):
    right = (guess == known) | ~judged
    allowed = (transition[guess[:, :-1], guess[:, 1:]] > 0) | ~judged[:, 1:]
    of_words = right[judged].double().mean()
    right, allowed = right.all(1), allowed.all(1)
    of_sentences, consistent = right.double().mean(), allowed.double().mean()
    print(f"{name:22} {of_words:6.1%} {of_sentences:10.1%} {consistent:11.1%}")
    return right, allowed


print("                        words  sentences  consistent")
_, allowed = report("each word by itself", by_word)
right, _ = report("CRF", by_sequence)
report("the language itself", by_language)

# %%
# Marginals say how sure the CRF is of each word. Here is a sentence that it gets right, and
# for which the best tags of each word do not go together.

with torch.no_grad():
    entropy = crf.entropy(scores, judged)
    marginals = crf.marginals(scores, judged)
chosen = (right & ~allowed).nonzero()[0].item()
length = lengths[test][chosen].item()
sentence = [words[number] for number in text[test][chosen, :length]]
rows = zip(sentence, by_word[chosen], decoded[chosen], strict=False)
print(f"entropy {entropy[chosen]:.2f} nats\n\nword    by itself     CRF")
for word, single, joint in rows:
    print(f"{word:7} {tags[single]:13} {tags[joint]}")

figure, (left, middle, last) = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
for axis, name, guess in ((left, "each word by itself", by_word), (middle, "CRF", by_sequence)):
    confusion = torch.zeros(len(tags), len(tags))
    pairs = (known[judged], guess[judged])
    confusion.index_put_(pairs, torch.ones(len(pairs[0])), accumulate=True)
    axis.imshow(confusion / confusion.sum(1, keepdim=True), vmin=0, vmax=1, cmap="Blues")
    axis.set_title(name)
    axis.set_xlabel("tag given")
    axis.set_xticks(range(len(tags)), tags, rotation=90)
    axis.set_yticks(range(len(tags)), tags if axis is left else [])
left.set_ylabel("true tag")
last.imshow(marginals[chosen, :length].T, vmin=0, vmax=1, cmap="Blues", aspect="auto")
last.plot(known[chosen, :length], "o", color="C1", label="true tag")
last.plot(decoded[chosen], "x", color="C3", label="decoded")
last.set_title("marginals of a sentence")
last.set_xticks(range(length), sentence, rotation=90)
last.set_yticks(range(len(tags)), tags)
last.legend()
plt.show()
