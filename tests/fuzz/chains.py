"""Random chains, semi-Markov chains and low-rank hidden Markov models, with lengths."""

import itertools
import math
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from tests.fuzz import compare
from tests.fuzz.compare import Array, Skipped, close
from tests.fuzz.enumerated import Asked, Item, counted
from tests.fuzz.pieces import MAKERS, Style, style


def case(rng: np.random.Generator) -> int:
    """One structure; how many items it has."""
    kinds = ["chain", "chain", "hmm", "semi-Markov", "semi-Markov", "rank hmm", "constrained"]
    made = str(rng.choice(kinds))
    if made == "constrained":
        return _constrained(rng)
    if made == "rank hmm":
        return _rank_hmm(rng)
    asked = _semi_markov(rng) if made == "semi-Markov" else _chain(rng, hmm=made == "hmm")
    estimator = kept_whole(rng) if rng.random() < 0.25 else None
    asked.check(rng, estimator)
    return len(asked.items)


def kept_whole(rng: np.random.Generator) -> rg.extend.Estimator:
    """An estimator that keeps every state: what it says is exact."""
    proposal = [rg.randomized.Uniform(), rg.randomized.Local()][int(rng.integers(2))]
    selection = [
        rg.randomized.Top(1.0),
        rg.randomized.TopTail(1.0, 1),
        rg.randomized.TopSystematic(1.0, 1),
    ][int(rng.integers(3))]
    return rg.Randomized(proposal, selection, replicates=int(rng.integers(1, 3)))


def _coupling(
    rng: np.random.Generator, how: Style, states: int, lead: tuple[int, ...]
) -> tuple[Any, Array]:
    """A transition of the library's, and its table."""
    kind = str(rng.choice(["tensor", "table", "low rank", "bilinear", "sparse", "banded"]))
    kind = "table" if kind == "sparse" and lead else kind
    made = MAKERS["table" if kind == "tensor" else kind](rng, how, (states, states), lead)
    tensors = made.tensors()
    return tensors["v"] if kind == "tensor" else made.build(tensors), made.values()


def _chain(rng: np.random.Generator, *, hmm: bool) -> Asked:
    how = style(rng)
    steps, states = int(rng.integers(0, 6)), int(rng.integers(1, 5))
    while states**steps > 700:
        steps -= 1
    batch = int(rng.integers(1, 9))
    unary = how.draw(rng, (batch, steps, states))
    lengths = rng.integers(0, steps + 1, size=batch) if rng.random() < 0.6 else None
    if hmm:
        # Rows that sum to one, and symbols, some of them missing.
        start, matrix = _logs(rng, how, (states,)), _logs(rng, how, (states, states))
        emission = _logs(rng, how, (states, 3))
        seen = rng.integers(-1, 3, size=(batch, steps))
        unary = np.where(seen[..., None] < 0, 0.0, emission.T[seen])
        if steps:
            unary[:, 0] += start
        tensors = [torch.tensor(part, dtype=torch.float64) for part in (start, matrix, emission)]
        structure = rg.Chain.hmm(*tensors, torch.tensor(seen), lengths=_tensor(lengths))
        table = matrix
    else:
        lead = ((), (1, steps - 1), (batch, steps - 1))[int(rng.integers(3))] if steps else ()
        transition, table = _coupling(rng, how, states, lead)
        structure = rg.Chain(
            torch.tensor(unary, dtype=how.dtype), transition, lengths=_tensor(lengths)
        )
    items: list[Item] = []
    for number in range(batch):
        length = steps if lengths is None else int(lengths[number])
        paths = np.array(list(itertools.product(range(states), repeat=length)), dtype=np.int64)
        paths = paths.reshape(states**length, length)
        scores = np.zeros(len(paths))
        for step in range(length):
            scores = scores + unary[number, step, paths[:, step]]
            if step:
                own = table
                if table.ndim > 2:
                    own = table[number if table.shape[0] > 1 else 0, step - 1]
                scores = scores + own[paths[:, step - 1], paths[:, step]]
        whole = np.pad(paths, ((0, 0), (0, steps - length)), constant_values=-1)
        items.append(Item([tuple(p) for p in whole.tolist()], scores, counted(whole, states)))

    def best(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = structure.k_best(k)
        return found.scores, found.states

    tolerance = 1e-9 if structure.unary.dtype == torch.float64 else 3e-5
    name = f"a chain with {type(structure.transition).__name__}"
    return Asked(name, structure, items, tolerance, lambda s: s, structure.log_prob, best)


def _semi_markov(rng: np.random.Generator) -> Asked:
    how = style(rng)
    steps, labels, longest = (
        int(rng.integers(0, 5)),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
    )
    batch = int(rng.integers(1, 7))
    unary = how.draw(rng, (batch, steps, longest, labels))
    transition, table = _coupling(rng, how, labels, ())
    lengths = rng.integers(0, steps + 1, size=batch) if rng.random() < 0.6 else None
    structure = rg.SemiMarkov(
        torch.tensor(unary, dtype=how.dtype), transition, lengths=_tensor(lengths)
    )
    items: list[Item] = []
    for number in range(batch):
        length = steps if lengths is None else int(lengths[number])
        keys: list[tuple[int, ...]] = []
        scores: list[float] = []
        counts: list[Array] = []
        for segments in _segmentations(0, length, longest, labels):
            total, uses, before = 0.0, np.zeros((steps, longest, labels)), -1
            label, starts = [-1] * steps, [0] * steps
            for first, last, own in segments:
                total += unary[number, last, last - first, own]
                total += table[before, own] if before >= 0 else 0.0
                uses[last, last - first, own] += 1
                label[first : last + 1] = [own] * (last + 1 - first)
                starts[first], before = 1, own
            keys.append((*label, *starts))
            scores.append(total)
            counts.append(uses)
        items.append(Item(keys, np.array(scores), np.stack(counts)))

    def keys_of(found: rg.Segmentation) -> torch.Tensor:
        return torch.cat([found.labels, found.starts.long()], -1)

    def best(k: int) -> tuple[torch.Tensor, rg.Segmentation]:
        found = structure.k_best(k)
        return found.scores, found.segmentations

    tolerance = 1e-9 if how.dtype == torch.float64 else 3e-5
    name = f"a semi-Markov chain with {type(transition).__name__}"
    return Asked(name, structure, items, tolerance, keys_of, structure.log_prob, best)


def _segmentations(first: int, length: int, longest: int, labels: int) -> Any:
    if first >= length:
        yield []
        return
    for last in range(first, min(first + longest, length)):
        for rest in _segmentations(last + 1, length, longest, labels):
            for label in range(labels):
                yield [(first, last, label), *rest]


def _rank_hmm(rng: np.random.Generator) -> int:
    """log p of sequences among those of their length, and their scores."""
    how = Style(1.0, float(rng.choice([0.0, 0.2])), torch.float64)
    states, symbols, steps = (int(rng.integers(1, 4)) for _ in range(3))
    start = how.draw(rng, (states,))
    coupling = MAKERS["low rank"](rng, how, (states, states), ())
    low = rng.random() < 0.5
    shown = MAKERS["low rank" if low else "table"](rng, how, (states, symbols), ())
    tensors = shown.tensors()
    model = rg.LowRankHMM(
        torch.tensor(start), coupling.build(coupling.tensors()),
        shown.build(tensors) if low else tensors["v"],
    )  # fmt: skip
    batch = int(rng.integers(1, 9))
    seen = rng.integers(-1, symbols, size=(batch, steps))
    lengths = rng.integers(0, steps + 1, size=batch)
    scores, totals = np.zeros(batch), np.zeros(batch)
    for number in range(batch):
        length = int(lengths[number])
        matches: list[float] = []
        every: list[float] = []
        for path in itertools.product(range(states), repeat=length):
            for word in itertools.product(range(symbols), repeat=length):
                total = float(start[path[0]]) if length else 0.0
                for step in range(length):
                    total += shown.values()[path[step], word[step]]
                    total += coupling.values()[path[step - 1], path[step]] if step else 0.0
                every.append(total)
                if all(s in (-1, w) for s, w in zip(seen[number], word, strict=False)):
                    matches.append(total)
        scores[number] = compare.log_sum(np.array(matches))
        totals[number] = compare.log_sum(np.array(every))
    given = torch.tensor(seen), torch.tensor(lengths)
    close("log_score of a low-rank HMM", model.log_score(*given), scores, 1e-9)
    if (totals > -math.inf).all():
        close("log_prob of a low-rank HMM", model.log_prob(*given), scores - totals, 1e-8)
    return batch


def _constrained(rng: np.random.Generator) -> int:
    """Every next word of every beginning, of a hidden Markov model that an automaton constrains."""
    how = style(rng)
    states, words, length, places = (int(rng.integers(1, 4)) for _ in range(4))
    start = _logs(rng, how, (states,))
    links = [_link(rng, how, (states, size)) for size in (states, words)]
    arcs = rng.integers(0, places, size=(places, words))
    accept = how.draw(rng, (places,))
    automaton = rg.Automaton(torch.tensor(arcs), torch.tensor(accept), length)
    tables = [table for _, table in links]
    model = rg.nn.ConstrainedHMM(torch.tensor(start), *(link for link, _ in links), automaton)
    prompt = rng.integers(0, words, size=int(rng.integers(0, 3)))

    def chance(said: tuple[int, ...]) -> float:
        """The log-probability of words, by all paths."""
        totals: list[float] = []
        for path in itertools.product(range(states), repeat=len(said)):
            total = float(start[path[0]]) if said else 0.0
            for step, word in enumerate(said):
                total += tables[1][path[step], word]
                total += tables[0][path[step - 1], path[step]] if step else 0.0
            totals.append(total)
        return float(compare.log_sum(np.array(totals)))

    before = tuple(prompt.tolist())
    plain = chance(before)
    if plain == -math.inf:
        raise Skipped("an impossible prompt")
    met: dict[tuple[int, ...], list[float]] = {}
    for text in itertools.product(range(words), repeat=length):
        place = 0
        for word in text:
            place = int(arcs[place, word])
        value = chance(before + text) + float(accept[place])
        for read in range(length + 1):
            met.setdefault(text[:read], []).append(value)
    joint = {text: float(compare.log_sum(np.array(values))) for text, values in met.items()}
    total = model.log_partition(torch.tensor(prompt))
    close("log Z of words", total, np.array(joint[()] - plain), 1e-9)
    for text in (text for text in joint if len(text) < length):
        own = chance(before + text)
        if own == -math.inf:
            continue
        prefix = model.begin(prompt=torch.tensor(prompt))
        for word in text:
            prefix = model.advance(prefix, torch.tensor([word]))
        after = [(joint[*text, word], chance((*before, *text, word))) for word in range(words)]
        wanted = np.array([[one - other if one > -math.inf else one for one, other in after]])
        close("the constraint after next words", model.log_met(prefix), wanted, 1e-8)
        own = joint[text]
        wanted = np.array([[one - own if one > -math.inf else one for one, _ in after]])
        close("next words", model.log_words(prefix), wanted, 1e-8)
    return len(joint)


def _link(
    rng: np.random.Generator, how: Style, shape: tuple[int, int]
) -> tuple[torch.Tensor | rg.LowRank, Array]:
    """Log-probabilities by rows, dense or of low rank, and their table."""
    if rng.random() < 0.5:
        table = _logs(rng, how, shape)
        return torch.tensor(table), table
    rank = int(rng.integers(1, 4))
    left, right = _logs(rng, how, (shape[0], rank)), _logs(rng, how, (rank, shape[1]))
    low = rg.LowRank(torch.tensor(left), torch.tensor(right.T.copy()))
    with np.errstate(divide="ignore"):
        return low, np.log(np.exp(left) @ np.exp(right))


def _logs(rng: np.random.Generator, how: Style, shape: tuple[int, ...]) -> Array:
    """Log-probabilities over the last dim, with hard zeros."""
    values = rng.random(shape) * (rng.random(shape) >= min(how.zeros, 0.3))
    values[..., 0] += 0.1
    with np.errstate(divide="ignore"):
        return np.log(values / values.sum(-1, keepdims=True))


def _tensor(lengths: Any) -> torch.Tensor | None:
    return None if lengths is None else torch.tensor(lengths)
