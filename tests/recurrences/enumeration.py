"""All derivations of a small recurrence, from its rules as they are written."""

import itertools
import math
from collections import Counter, defaultdict

import torch

from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.parsing import is_size, parse
from rdpgraph.recurrences.program import Lookup

INSTANCES = {}


class Derivations:
    """Every derivation of the goal of one item: what it uses of each input, and its score.

    Nothing of a program is used, only the parsed rules: variables take all values, what is outside
    of an input is absent, and rules are applied again and again until no cell gets more.
    """

    def __init__(self, recurrence, item=()):
        self.arrays = {array.name: array for array in recurrence.program.inputs}
        self.given = {
            name: None if value is None else self._of_item(name, value, item)
            for name, value in recurrence.given.items()
        }
        self.values = dict(recurrence.sizes)
        for name, most in recurrence.program.lengths:
            own = self.given[name]
            self.values[name] = most.evaluate(recurrence.sizes) if own is None else int(own)
        self.most = 1 + max(recurrence.sizes.values())
        lines = parse("test", recurrence.rules)
        self.list = self._closure(self._all_instances(recurrence, lines))
        ends = [
            at.evaluate(self.values)
            for line in lines if line.table == "goal"
            for read in line.factors
            for at in read.index
            if isinstance(at, Affine) and at.terms and at.names <= {*self.values}
        ]  # fmt: skip
        if ends and all(end < 0 for end in ends):
            self.list = [Counter()]
        scores = [self._score(uses) for uses in self.list]
        self.scores = torch.stack(scores or [torch.tensor(-math.inf, dtype=torch.float64)])

    def _of_item(self, name, value, item):
        rank = len(self.arrays[name].dims) if name in self.arrays else 0
        lead = value.shape[: value.ndim - rank]
        own = item[len(item) - len(lead) :]
        return value[tuple(k if size > 1 else 0 for k, size in zip(own, lead, strict=True))]

    def _number(self, at, point):
        if isinstance(at, Lookup):
            place = tuple(self._number(one, point) for one in at.index)
            data = self.given[at.array]
            return int(data[place]) if self._is_inside(place, data) else -1
        return at.evaluate(self.values | point)

    @staticmethod
    def _is_inside(place, data):
        return all(0 <= k < size for k, size in zip(place, data.shape, strict=True))

    def _all_instances(self, recurrence, lines):
        """The instances of all rules; those without lookups once for a class, sizes and lengths."""
        key = type(recurrence), tuple(self.values.items())
        if key in INSTANCES:
            return INSTANCES[key]
        found = [one for line in lines for one in self._instances(line)]
        if not recurrence.program.lookups:
            INSTANCES[key] = found
        return found

    def _instances(self, line):
        """A rule for all values of its variables: (cell, uses of inputs, cells that it reads)."""
        names = sorted(name for name in line.names if not is_size(name) and name not in self.values)
        for values in itertools.product(range(self.most), repeat=len(names)):
            point = dict(zip(names, values, strict=True))
            if any(self._number(form, point) < 0 for form in line.conditions):
                continue
            if not all(self._goes_through(row, point) for row in line.rows):
                continue
            uses, cells = Counter(), []
            for read in line.factors:
                place = tuple(self._number(at, point) for at in read.index)
                if read.array not in self.arrays:
                    cells.append((read.array, place))
                elif self._is_inside(place, self.given[read.array]):
                    uses[read.array, place] += 1
                else:
                    break
            else:
                cell = tuple(self._number(at, point) for at in line.index)
                yield (line.table, cell), uses, cells

    def _goes_through(self, row, point):
        begins, at = self.given[row.array], self._number(row.at, point)
        return 0 <= at < len(begins) - 1 and begins[at] <= point[row.variable] < begins[at + 1]

    def _closure(self, instances):
        """The derivations of the goal."""
        known, counts = defaultdict(list), None
        while counts != (new := {cell: len(found) for cell, found in known.items()}):
            counts, found = new, defaultdict(list)
            for cell, uses, cells in instances:
                if all(known.get(read) for read in cells):
                    for way in itertools.product(*(known[read] for read in cells)):
                        found[cell].append(sum(way, uses))
            known = found
            counts = counts or None
        return known["goal", ()]

    def _score(self, uses):
        terms = [times * self.given[name][place] for (name, place), times in uses.items()]
        return sum(terms, torch.zeros((), dtype=torch.float64))

    @property
    def log_partition(self):
        return self.scores.logsumexp(0)

    @property
    def shares(self):
        """The probability of each derivation; zeros where nothing is possible."""
        possible = self.scores > -math.inf
        return torch.softmax(self.scores, 0) if bool(possible.any()) else possible.double()

    def marginals(self):
        """The expected uses of every entry."""
        means = {
            name: torch.zeros(self.given[name].shape, dtype=torch.float64)
            for name, array in self.arrays.items()
            if not array.whole
        }
        for share, uses in zip(self.shares, self.list, strict=False):
            for (name, place), times in uses.items():
                means[name][place] += times * share
        return means

    def max_marginals(self):
        """The best score of a derivation that uses every entry."""
        most = {
            name: torch.full(self.given[name].shape, -math.inf, dtype=torch.float64)
            for name, array in self.arrays.items()
            if not array.whole
        }
        for score, uses in zip(self.scores, self.list, strict=False):
            for name, place in uses:
                most[name][place] = torch.maximum(most[name][place], score)
        return most

    def entropy(self):
        return -torch.special.xlogy(self.shares, self.shares).sum()
