"""
Words that are led, not masked
==============================

A hidden Markov model of words is to end in "the park". Words that are only masked, once they make
that impossible, say other things than the model would: probabilities of what is to come correct
them. Both kinds of draws are counted here, beside the exact answer.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

generator = torch.Generator().manual_seed(0)
words = ["the", "dog", "cat", "park", "runs", "sleeps", "to", "in"]
number = {word: place for place, word in enumerate(words)}

# %%
# Hidden states are a determiner, a noun, a verb, and a preposition. A dog runs, mostly to the park.

start = torch.tensor([0.9, 0.1, 0.0, 0.0])
follows = torch.tensor(
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.7, 0.3], [0.2, 0.0, 0.1, 0.7], [0.8, 0.2, 0.0, 0.0]]
)
shows = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.5, 0.4, 0.1, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.6, 0.4, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5],
    ]
)
length, tables = 6, (start.log(), follows.log(), shows.log())
ending = rg.nn.Pattern.parse(".* the park", words)
model = rg.nn.ConstrainedHMM(*tables, ending.automaton(length))
print(f"{ending}; probability {float(model.log_partition().exp()):.4f}")
best, values = model.best(4)
for sentence, value in zip(best.tolist(), values.exp().tolist(), strict=True):
    print(f"{value:.3f}", *(words[word] for word in sentence))

# %%
# An infilling: the first words are the prompt, which the automaton does not read.

prompt = torch.tensor([number["the"], number["dog"]])
filled = rg.nn.ConstrainedHMM(*tables, rg.nn.Pattern.parse(".{2,3} the park", words).automaton(4))
print("the dog", *(words[word] for word in filled.best(1, prompt=prompt)[0][0].tolist()))

# %%
# Twenty thousand draws. Those that are led follow the exact probabilities; those that are masked
# are drawn from the model, word by word, without the words after which the end cannot be reached.

count = 20_000
led = model.sample(count, generator)
free = rg.nn.ConstrainedHMM(*tables, rg.nn.Pattern.parse(".*", words).automaton(length))
prefix, plain, masked = model.begin(count), free.begin(count), []
for _ in range(length):
    chances = free.log_words(plain).exp() * (model.log_words(prefix) > -torch.inf)
    masked.append(chances.multinomial(1, generator=generator).squeeze(1))
    prefix, plain = (m.advance(p, masked[-1]) for m, p in ((model, prefix), (free, plain)))
masked = torch.stack(masked, 1)

# %%
# The eight most probable sentences, and how often they were drawn.

sentences, exact = model.best(8)
rows = torch.arange(8)
figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
for offset, (name, drawn) in enumerate((("led", led), ("masked", masked))):
    share = (drawn.unsqueeze(1) == sentences).all(2).double().mean(0)
    axes.barh(rows + 0.3 * (offset - 0.5), share, 0.3, label=name)
axes.plot(exact.exp(), rows, "k|", markersize=18, label="exact")
axes.set_yticks(rows, [" ".join(words[word] for word in row) for row in sentences.tolist()])
axes.invert_yaxis()
axes.set_xlabel("share of draws")
axes.legend()
