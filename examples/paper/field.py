"""A random field of words (Jernite, Rush and Sontag 2015) beside a hidden Markov model.

Trains `rdpgraph.nn.MarkovField`, with one lag or more, or `rdpgraph.nn.HMM` on Penn Treebank for so
many passes, and prints perplexities; beside them stands interpolated Kneser-Ney smoothing.

    python examples/paper/field.py FOLDER --model field --lags 1 [--rank 64] [--epochs 5] --out run
    python examples/paper/field.py FOLDER --model hmm [--states 512] --out run
    python examples/paper/field.py FOLDER --model kneser-ney [--order 2]

FOLDER holds ptb.train.txt.gz and its like. Sentences are separate, and their ends count. A field of
one lag has no word for the end: going on is part of it. One of more lags is of the text as one long
sequence, in which the end is a word, and its perplexity is by the bound: the true one is lower.
After each pass a checkpoint is written, and a run goes on from there.
"""

import argparse
import gzip
import math
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rdpgraph.nn import HMM, MarkovField

END = "<eos>"
Sentence = list[int]


def read(folder: Path) -> tuple[dict[str, list[Sentence]], int]:
    """Sentences as numbers of words, with their ends; and how many words there are."""
    numbers: dict[str, int] = {END: 0}
    texts: dict[str, list[Sentence]] = {}
    for name in ("train", "valid", "test"):
        with gzip.open(folder / f"ptb.{name}.txt.gz", "rt", encoding="utf-8") as lines:
            texts[name] = [
                [numbers.setdefault(word, len(numbers)) for word in [*line.split(), END]]
                for line in lines
            ]
    return texts, len(numbers)


def padded(sentences: list[Sentence]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(own) for own in sentences])
    rows = [torch.tensor(own) for own in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def log_likelihood(model: MarkovField | HMM, sentences: list[Sentence]) -> Tensor:
    """Log-likelihood of a text, nats: by sentences, or as one sequence if a field has more lags."""
    if isinstance(model, HMM):
        return model.log_likelihood(*padded(sentences)).sum()
    if model.lags == 1:
        tokens, lengths = padded([own[:-1] or own for own in sentences])
        return model.log_likelihood(tokens, lengths).sum()
    text = torch.tensor([[word for own in sentences for word in own]])
    return model.log_likelihood(text).sum()


def perplexity(model: MarkovField | HMM, sentences: list[Sentence]) -> float:
    words = sum(map(len, sentences))
    with torch.no_grad():
        parts = [sentences[at : at + 200] for at in range(0, len(sentences), 200)]
        return math.exp(-sum(float(log_likelihood(model, part)) for part in parts) / words)


def kneser_ney(train: list[Sentence], test: list[Sentence], words: int, order: int) -> float:
    """The perplexity by interpolated Kneser-Ney smoothing, one discount for each order."""
    full = [Counter[tuple[int, ...]]() for _ in range(order + 1)]
    for own in train:
        line = [0] * (order - 1) + own
        for at in range(order - 1, len(line)):
            full[order][tuple(line[at - order + 1 : at + 1])] += 1
    for size in range(order - 1, 0, -1):  # in how many contexts each has been seen
        for gram in full[size + 1]:
            full[size][gram[1:]] += 1
    sums = [defaultdict[tuple[int, ...], float](float) for _ in range(order + 1)]
    kinds = [Counter[tuple[int, ...]]() for _ in range(order + 1)]
    discounts = [0.0] * (order + 1)
    for size in range(1, order + 1):
        ones, twos = (sum(count == many for count in full[size].values()) for many in (1, 2))
        discounts[size] = ones / max(ones + 2 * twos, 1)
        for gram, count in full[size].items():
            sums[size][gram[:-1]] += count
            kinds[size][gram[:-1]] += 1

    def chance(context: tuple[int, ...], word: int) -> float:
        size = len(context) + 1
        lower = chance(context[1:], word) if context else 1 / words
        total = sums[size][context]
        if not total:
            return lower
        own = max(full[size][(*context, word)] - discounts[size], 0.0) / total
        return own + discounts[size] * kinds[size][context] / total * lower

    logs, count = 0.0, 0
    for own in test:
        line = [0] * (order - 1) + own
        for at in range(order - 1, len(line)):
            logs += math.log(chance(tuple(line[at - order + 1 : at]), line[at]))
            count += 1
    return math.exp(-logs / count)


def main() -> None:
    asked = argparse.ArgumentParser(description="A random field of words.")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--model", choices=["field", "hmm", "kneser-ney"], default="field")
    asked.add_argument("--lags", type=int, default=1)
    asked.add_argument("--rank", type=int, default=64)
    asked.add_argument("--states", type=int, default=512)
    asked.add_argument("--dimension", type=int, default=64)
    asked.add_argument("--order", type=int, default=2)
    asked.add_argument("--epochs", type=int, default=5)
    asked.add_argument("--batch", type=int, default=64)
    asked.add_argument("--rate", type=float, default=0.01)
    asked.add_argument("--sentences", type=int, help="of training; default: all")
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    texts, words = read(given.folder)
    train = texts["train"][: given.sentences]
    print(f"{len(train):,} sentences, {words:,} words", flush=True)
    if given.model == "kneser-ney":
        found = [kneser_ney(train, texts[name], words, given.order) for name in ("valid", "test")]
        print(f"perplexity: valid {found[0]:.1f}, test {found[1]:.1f}")
        return
    counts = torch.bincount(torch.tensor([word for own in train for word in own]), minlength=words)
    sizes: dict[str, Any] = {"vocabulary": words, "rank": given.rank, "dimension": given.dimension}
    seed = torch.Generator().manual_seed(0)
    model: MarkovField | HMM
    if given.model == "hmm":
        model = HMM(states=given.states, counts=counts, generator=seed, **sizes)
    else:
        if given.lags == 1:
            counts[0] = 0
        model = MarkovField(lags=given.lags, counts=counts, generator=seed, **sizes)
    optimizer, first = torch.optim.Adam(model.parameters(), given.rate), 0
    checkpoint = given.out and given.out / "checkpoint.pt"
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, given.epochs):
        order = list(range(len(train)))
        random.Random(epoch).shuffle(order)
        for at in range(0, len(order), given.batch):
            share = (epoch + at / len(order)) / given.epochs
            for group in optimizer.param_groups:
                group["lr"] = given.rate * (0.01 + 0.99 * math.cos(share * math.pi / 2) ** 2)
            batch = [train[number] for number in order[at : at + given.batch]]
            loss = -log_likelihood(model, batch) / sum(map(len, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: valid {perplexity(model, texts['valid']):.1f}", flush=True)
        if checkpoint:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch + 1}, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
    print(f"test {perplexity(model, texts['test']):.1f}")


if __name__ == "__main__":
    main()
