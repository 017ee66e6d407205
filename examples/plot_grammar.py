"""
Inducing a grammar
==================

A grammar makes sentences, and is forgotten. Another one, with symbols that mean nothing yet, learns
from the sentences alone: log Z of a hypertree is the log-probability of a sentence, summed over all
its trees, and the gradient of that is what expectation maximisation counts.
"""

import math

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

# %%
# The grammar: one weighted rule a line, words in quotes.

truth = rg.trees.parse_grammar("""
    1.0  S   -> NP VP
    0.75 NP  -> Det N
    0.25 NP  -> NP PP
    0.7  VP  -> V NP
    0.3  VP  -> VP PP
    1.0  PP  -> P NP
    0.6  Det -> "the"
    0.4  Det -> "a"
    0.4  N   -> "dog"
    0.3  N   -> "cat"
    0.2  N   -> "telescope"
    0.1  N   -> "park"
    0.5  V   -> "saw"
    0.5  V   -> "chased"
    0.6  P   -> "with"
    0.4  P   -> "in"
""")
generator = torch.Generator().manual_seed(0)


def sentence(symbol=0):
    """Words from a symbol downwards, as their numbers."""
    size = len(truth.symbols)
    choices = torch.cat([truth.log_rules[symbol].flatten(), truth.log_words[symbol]]).exp()
    choice = int(choices.multinomial(1, generator=generator))
    if choice >= size**2:
        return [choice - size**2]
    return sentence(choice // size) + sentence(choice % size)


def corpus(count, longest=10):
    """Padded sentences, their lengths, and the share of all sentences that are not too long."""
    found, tried = [], 0
    while len(found) < count:
        words, tried = sentence(), tried + 1
        if len(words) <= longest:
            found.append(words)
    lengths = torch.tensor([len(words) for words in found])
    padded = torch.zeros(count, max(map(len, found)), dtype=torch.long)
    for row, words in zip(padded, found, strict=True):
        row[: len(words)] = torch.tensor(words)
    return padded, lengths, count / tried


seen, seen_lengths, _ = corpus(500)
held_out, held_out_lengths, share = corpus(500)
for words, length in zip(seen[:3], seen_lengths, strict=False):
    print(" ".join(truth.words[word] for word in words[:length]))

# %%
# What a sentence costs under the grammar that made it, given that it is not too long.

spelled = [
    [truth.words[word] for word in words[:length]]
    for words, length in zip(held_out, held_out_lengths, strict=True)
]
made = rg.Hypertree.parses(truth, spelled)
best = made.log_partition().mean().item() - math.log(share)
print(f"held out, under the grammar that made them: {best:.3f} nats a sentence")

# %%
# Twelve nonterminals and twelve preterminals, more than enough: with few, gradient ascent ends
# where some rule is missing. All rules are possible; the first nonterminal starts. Rules of a
# parent, and words of a preterminal, sum to one. A step sees 30 sentences.

inner, outer, vocabulary = 12, 12, len(truth.words)
rules = torch.randn(inner, (inner + outer) ** 2, generator=generator).requires_grad_()
emissions = torch.randn(outer, vocabulary, generator=generator).requires_grad_()
start = torch.full((inner,), -torch.inf)
start[0] = 0.0


def trees(words, lengths):
    terms = emissions.log_softmax(1).T[words]
    table = rules.log_softmax(1).unflatten(1, (inner + outer, inner + outer))
    return rg.Hypertree.pcfg(start, table, terms, lengths=lengths)


optimizer = torch.optim.Adam([rules, emissions], lr=0.1)
history = []
for step in range(250):
    some = torch.arange(30 * step, 30 * step + 30) % len(seen)
    loss = -trees(seen[some], seen_lengths[some]).log_partition().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(-loss.item())

with torch.no_grad():
    found = trees(held_out, held_out_lengths)
    learned = found.log_partition().mean().item()
print(f"held out, under the grammar learned: {learned:.3f} nats a sentence")

# %%
# The likelihood is recovered; the trees need not be, for several grammars make the same sentences.

ours, theirs = found.viterbi().states >= 0, made.viterbi().states >= 0
wide = torch.ones_like(ours).triu(1) & ours
print(f"constituents that both have: {(wide & theirs).sum() / wide.sum():.0%}")
longest = int(held_out_lengths.argmax())
print(made.viterbi()[longest].bracketed(spelled[longest], truth.symbols))
names = [f"X{n}" for n in range(inner)] + [f"T{n}" for n in range(outer)]
print(found.viterbi()[longest].bracketed(spelled[longest], names))

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(history, color="#1d4e79", label="the grammar learned, each step")
axes.axhline(learned, color="#5b9bd5", linestyle=":", label="the grammar learned, held out")
axes.axhline(best, color="#c8553d", linestyle="--", label="the grammar that made them")
axes.set(xlabel="step", ylabel="log-likelihood of a sentence", ylim=(best - 4, best + 1))
axes.legend()
figure.tight_layout()
plt.show()
