"""Every tree of small sentences by rules that mix words and parts, by trying all sets of parts."""

import itertools
from dataclasses import dataclass

ORDERS = [order for count in range(4) for order in itertools.permutations(range(count))]


@dataclass(frozen=True)
class Tree:
    """A tree.

    Attributes:
        bispans: its constituents, (i, k, j, l).
        kinds: the numbers of its rules' kinds.
        links: pairs of words that are aligned.
        source: source words that are aligned with none.
        target: target words that are.
    """

    bispans: tuple
    kinds: tuple
    links: frozenset
    source: frozenset
    target: frozenset

    def score(self, unary, pairs, source, target, rules):
        """Score by the potentials of a `MixedBitext`."""
        total = sum(float(unary[(*bispan, 0)]) for bispan in self.bispans)
        total += sum(float(rules[kind]) for kind in self.kinds)
        total += sum(float(pairs[link]) for link in self.links)
        total += sum(float(source[word]) for word in self.source)
        return total + sum(float(target[word]) for word in self.target)


def spans(first, last):
    return [(a, b) for a in range(first, last) for b in range(a + 1, last + 1)]


def stretches(words):
    """Number of runs of neighbouring numbers."""
    return sum(word - 1 not in words for word in words)


def trees(i, k, j, l):  # noqa: E741
    """All over a bispan."""
    whole = (i, k, j, l)
    inner = [(*a, *b) for a in spans(i, k) for b in spans(j, l) if (*a, *b) != whole]
    for count in range(4):
        for parts in itertools.combinations(sorted(inner), count):
            rows = [set(range(a, b)) for a, b, _, _ in parts]
            columns = [set(range(a, b)) for _, _, a, b in parts]
            if len(set().union(*rows)) < sum(map(len, rows)):
                continue
            if len(set().union(*columns)) < sum(map(len, columns)):
                continue
            source = set(range(i, k)).difference(*rows)
            target = set(range(j, l)).difference(*columns)
            if count + stretches(source) > 3 or count + stretches(target) > 3:
                continue
            starts = sorted(part[2] for part in parts)
            kind = ORDERS.index(tuple(starts.index(part[2]) for part in parts))
            for below in itertools.product(*(list(trees(*part)) for part in parts)):
                yield Tree(
                    sum((tree.bispans for tree in below), (whole,)),
                    sum((tree.kinds for tree in below), (kind,)),
                    frozenset(itertools.product(source, target)).union(
                        *(tree.links for tree in below)
                    ),
                    (frozenset() if target else frozenset(source)).union(
                        *(tree.source for tree in below)
                    ),
                    (frozenset() if source else frozenset(target)).union(
                        *(tree.target for tree in below)
                    ),
                )
