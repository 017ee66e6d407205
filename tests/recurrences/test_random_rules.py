"""Random recurrences: compiled code, torch and all derivations agree, however rules combine."""

import math
import random

import pytest
import torch

from rdpgraph import Input, Lengths
from tests.recurrences.binding import Recurrence
from tests.recurrences.cases import logs
from tests.recurrences.enumeration import Derivations

SIZES = {"T": 3, "N": 2, "D": 2}
DIMS = {"t": "T", "s": "T", "i": "T", "j": "T", "k": "T", "d": "D", "p": "D", "q": "D"}
LINKS = (
    # What is read, the variables that it brings, and a condition.
    ("a[t-1, m]", "", ""),
    ("a[t-2, m]", "", ""),
    ("k[t-1, m]", "", ""),
    ("a[t-d-1, m]", "d", ""),
    ("a[s, m]", "s", "s < t"),
    ("a[s, m] * v[s+1, t]", "s", "s < t"),
)
PAIRS = (
    ("a[t-1, e, f]", "", ""),
    ("a[t-1, f, e]", "", ""),
    ("a[t-1, e, m]", "", ""),
    ("a[t-1, m, e]", "", ""),
    ("a[t-1, e, e]", "", ""),
    ("a[t-d-1, e, f]", "d", ""),
    ("a[s, n, f]", "s", "s < t"),
)
MATRICES = ("m, n", "n, m", "t, m, n", "m, t, n")
MOVES = (
    ("i-1, j", ""),
    ("i, j-1", ""),
    ("i-1, j-1", ""),
    ("i-p-1, j", "p"),
    ("i-p-1, j-q-1", "pq"),
)


class Random:
    """Rules, and the inputs that they read."""

    def __init__(self, seed):
        self.draw, self.inputs, self.rules = random.Random(seed), {}, []
        if seed < 30:
            (self.sequence if self.draw.random() < 0.7 else self.grid)()
        else:
            self.labelled()

    def entry(self, names):
        """An entry of a new input, by some of these variables, perhaps a place before or after."""
        own = self.draw.sample([*names], self.draw.randint(1, min(3, len(names))))
        return self.input(own, shifted=True)

    def input(self, own, *, shifted=False):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = Input(" ".join(DIMS.get(each, "N") for each in own))
        shifts = [self.draw.choice(["", "", "", "-1", "+1"]) for _ in own]
        index = [
            e + (s if shifted and e in "tsij" else "") for e, s in zip(own, shifts, strict=True)
        ]
        return f"{name}[{', '.join(index)}]"

    def sequence(self):
        self.inputs["sites"] = Input("T N")
        self.rules += [f"a[t, n] += sites[t, n] * {self.entry('tn')} if t <= 1"]
        links = self.draw.sample(LINKS, self.draw.randint(1, 3))
        for read, loops, condition in links:
            more = [self.entry(f"tnm{loops}") for _ in range(self.draw.randint(0, 2))]
            if self.draw.random() < 0.8:
                matrix = self.draw.choice([*MATRICES, *(f"{loop}, m, n" for loop in loops)])
                more.append(self.input(matrix.split(", ")))
            if loops == "d":
                more.append(self.input("d"))
            parts = [read, "sites[t, n]", *more]
            self.draw.shuffle(parts)
            self.rules.append(
                f"a[t, n] += {' * '.join(parts)} {'if ' * bool(condition)}{condition}"
            )
        if any("k[" in read for read, *_ in links):
            link = f"{self.input('mn')} * {self.entry('tm')}"
            self.rules.append(f"k[t, n] += a[t, m] * {link}")
        if any("v[" in read for read, *_ in links):
            self.rules.append(f"v[i, j] += {self.input('ij')} if i <= j")
        if self.draw.random() < 0.5:
            self.inputs["lengths"] = Lengths("T")
        end = self.draw.choice(["lengths-1" if "lengths" in self.inputs else "T-1", "t"])
        self.rules.append(f"goal += a[{end}, n] * {self.input('n')}")

    def labelled(self):
        """Tables of two labels, with one to three factors that tie these to those before."""
        self.inputs["sites"] = Input("T N N")
        self.rules.append("a[t, n, m] += sites[t, n, m] if t <= 1")
        for read, loops, condition in self.draw.sample(PAIRS, self.draw.randint(1, 2)):
            names = sorted({name for name in "nmef" if name in read} | {*"nm"})
            parts = [read, "sites[t, n, m]", *(self.input(v) for v in loops if v == "d")]
            for _ in range(self.draw.randint(1, 3)):
                own = self.draw.sample(names, self.draw.randint(1, min(3, len(names))))
                own = [*own, "t"] if self.draw.random() < 0.3 else own
                parts.append(self.input(own))
            self.draw.shuffle(parts)
            self.rules.append(
                f"a[t, n, m] += {' * '.join(parts)} {'if ' * bool(condition)}{condition}"
            )
        if self.draw.random() < 0.5:
            self.rules.append(f"v[i, j, n] += {self.input('ijn')} if i <= j")
            more = self.input("ne")
            self.rules.append(f"a[t, n, m] += a[s, e, m] * v[s+1, t, n] * {more} if s < t")
        self.rules.append(self.draw.choice(["goal += a[T-1, n, m]", "goal += a[t, n, n]"]))

    def grid(self):
        self.rules.append("a[0, 0] += 1")
        for read, loops in self.draw.sample(MOVES, self.draw.randint(1, 3)):
            more = [self.entry(f"ij{loops}"), self.input("ij"), *(self.input(v) for v in loops)]
            self.rules.append(f"a[i, j] += a[{read}] * {' * '.join(more)}")
        self.rules.append(self.draw.choice(["goal += a[T-1, T-1]", "goal += a[i, T-1] * w[i]"]))
        self.inputs["w"] = Input("T")

    def made(self, seed):
        """An object with random tensors, some of them shared by all items."""
        g = torch.Generator().manual_seed(seed)
        hard = self.draw.choice([0.0, 0.2])
        given = {}
        for name, one in self.inputs.items():
            if isinstance(one, Lengths):
                given[name] = torch.tensor([3, 2, 0])
                continue
            shape = [SIZES[word] for word in one.dims.split()]
            given[name] = logs(g, *[3] * self.draw.randint(0, 1), *shape, hard=hard)
        made = type("Made", (Recurrence,), {**self.inputs, "rules": "\n".join(self.rules)})
        return made(**given)


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 70))]
)
def test_random_rules(seed, by_torch):
    recurrence = Random(seed).made(seed)
    logs_of = {n: x for n, x in recurrence.given.items() if x is not None and x.is_floating_point()}
    leaves = {name: x.clone().requires_grad_() for name, x in logs_of.items()}

    def answers():
        made = type(recurrence)(**(recurrence.given | leaves))
        log_z = made.log_partition()
        gradients = torch.autograd.grad(
            log_z[log_z > -math.inf].sum(), [*leaves.values()], allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        entropy = made.entropy()
        turns = torch.autograd.grad(
            entropy.sum(), [*leaves.values()], allow_unused=True, materialize_grads=True
        )
        return log_z.detach(), *gradients, recurrence.best_score(), entropy.detach(), *turns

    found, reference = answers(), by_torch(answers)
    for one, other in zip(found, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    for item in range(found[0].numel()):
        every = Derivations(recurrence, (item,) if recurrence.batch_shape else ())
        torch.testing.assert_close(found[0].reshape(-1)[item], every.log_partition)
        check_derivations(recurrence, every, item)
        by_torch(lambda every=every, item=item: check_derivations(recurrence, every, item))


def check_derivations(recurrence, every, item):
    """Answers about single derivations, beside all derivations of an item."""
    lead = (item,) if recurrence.batch_shape else ()
    most = recurrence.max_marginals()
    for name, wanted in every.max_marginals().items():
        torch.testing.assert_close(most[name][lead], wanted)
    _, scores = recurrence.k_best(9)
    wanted = torch.full((9,), -math.inf, dtype=torch.float64)
    first = every.scores.sort(descending=True).values[:9]
    wanted[: len(first)] = first
    torch.testing.assert_close(scores[:, *lead], wanted)
