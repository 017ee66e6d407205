"""Random structures of every kind, each held by the conformance suite.

And by what else must hold of any: writes into its tensors are seen, their strides do not matter,
finite scores that stand for absence are that, and items that are impossible are named.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.fuzz.compare import Skipped, close, holds, named


def case(rng: np.random.Generator) -> int:
    """One structure; how many items it has."""
    kind = KINDS[int(rng.integers(len(KINDS)))]
    structure = kind(_Draws.of(rng))
    log_z = structure.log_partition()
    strided(structure, rng)
    if bool((log_z == -math.inf).any()):
        posterior = rg.infer(structure)
        for ask in (structure.mode, posterior.mode, lambda: posterior.sample(2)):
            named(ask, log_z)
        return log_z.numel()
    if not structure.unary.numel():
        holds("what has no sites has log Z 0", bool((log_z == 0).all()))
        answers(structure)
        return log_z.numel()
    stand_in(structure, -(10.0 ** float(rng.choice([12, 17, 30, 100]))))
    try:
        check_structure(structure)
    except rg.errors.ModelError as error:
        if "fewer sites" not in str(error):
            raise
        raise Skipped("too many configurations") from None
    written(structure, rng)
    return log_z.numel()


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same object made anew, of tensors that are changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, rg.Variable) or not is_dataclass(value):
        return value
    return replace(
        value, **{part.name: mapped(getattr(value, part.name), change) for part in fields(value)}
    )


def tensors(value: Any) -> list[Tensor]:
    """The floating tensors of a structure."""
    found: list[Tensor] = []
    mapped(value, lambda own: found.append(own) or own)
    return [own for own in found if own.is_floating_point() and own.numel()]


def answers(structure: rg.extend.Structure) -> dict[str, Tensor]:
    """Answers to several questions."""
    generator = torch.Generator().manual_seed(0)
    return {
        "log_partition": structure.log_partition(),
        "marginals": structure.marginals(),
        "max_marginals": structure.max_marginals(),
        "mode": structure.site_states(structure.mode()),
        "samples": structure.site_states(structure.sample(3, generator)),
        "entropy of infer": rg.infer(structure).entropy(),
    }


def written(structure: rg.extend.Structure, rng: np.random.Generator) -> None:
    """Writes into a tensor are seen, as if the structure were made of it again."""
    answers(structure)
    own, kind = tensors(structure), type(structure).__name__
    for place in rng.permutation(len(own))[:2]:
        own[place].mul_(0.5)
        own[place].view(-1)[0] += float(rng.normal())
        wanted = answers(mapped(structure, torch.Tensor.clone))
        for name, found in answers(structure).items():
            close(f"{name} of {kind}, written into", found, _plain(wanted[name]), 1e-9)


def strided(structure: rg.extend.Structure, rng: np.random.Generator) -> None:
    """Tensors in another order of memory, such as transposed ones, give the same answers."""

    def moved(own: Tensor) -> Tensor:
        order = rng.permutation(own.ndim)
        return own.permute(tuple(order)).contiguous().permute(tuple(np.argsort(order)))

    other = mapped(structure, moved)
    for name in ("log_partition", "marginals", "max_marginals", "entropy"):
        found, wanted = (getattr(each, name)() for each in (other, structure))
        close(f"{name} of {type(structure).__name__}, other strides", found, _plain(wanted), 1e-9)


def stand_in(structure: rg.extend.Structure, low: float) -> None:
    """Scores that stand for absence give the answers that absence gives."""
    finite = mapped(structure, lambda own: own.clamp(min=low) if own.is_floating_point() else own)
    for name in ("log_partition", "marginals"):
        found, wanted = (getattr(each, name)() for each in (finite, structure))
        kind = type(structure).__name__
        close(f"{name} of {kind}, {low:g} for -inf", found, _plain(wanted), 1e-9)


def _plain(values: Tensor) -> Any:
    return values.detach().double().numpy()


@dataclass(frozen=True)
class _Draws:
    """Numbers of one range, with some hard zeros, for one batch."""

    rng: np.random.Generator
    batch: tuple[int, ...]
    scale: float
    zeros: float

    @classmethod
    def of(cls, rng: np.random.Generator) -> "_Draws":
        batches = [(), (), (1,), (2,), (3,), (2, 1), (0,)]
        scale, zeros = float(rng.choice([0.5, 2.0, 8.0])), float(rng.choice([0.0, 0.0, 0.15]))
        return cls(rng, batches[int(rng.integers(len(batches)))], scale, zeros)

    def size(self, *choices: int) -> int:
        return int(self.rng.choice(choices))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def logs(self, *shape: int, zeros: bool = True) -> Tensor:
        values = self.rng.normal(size=shape) * self.scale
        if zeros:
            values = np.where(self.rng.random(shape) < self.zeros, -np.inf, values)
        return torch.tensor(values, dtype=torch.float64)

    def lead(self) -> tuple[int, ...]:
        """Leading dims of potentials: none where all items share them, or the batch."""
        return self.batch if self.chance(0.5) else ()

    def lengths(self, most: int) -> Tensor | None:
        if self.chance(0.5):
            return None
        return torch.tensor(self.rng.integers(0, most + 1, size=self.batch))


def _transition(draws: _Draws, steps: int, states: int) -> Tensor | rg.LowRank:
    steps = max(steps, 0)
    kind = draws.size(0, 1, 2)
    if kind == 0:
        return draws.logs(states, states)
    if kind == 1:
        return draws.logs(*draws.lead(), steps, states, states)
    return rg.LowRank(draws.logs(states, 2, zeros=False), draws.logs(states, 2, zeros=False))


def _chain(draws: _Draws) -> rg.Chain:
    steps, states = draws.size(0, 1, 2, 3, 4), draws.size(1, 2, 3)
    transition = _transition(draws, steps - 1, states)
    if steps > 1 and draws.chance(0.2):
        shape = (*draws.batch, steps - 1, states, 2)
        transition = rg.LowRank(draws.logs(*shape, zeros=False), draws.logs(*shape, zeros=False))
    unary = draws.logs(*draws.batch, steps, states)
    return rg.Chain(unary, transition, lengths=draws.lengths(steps))


def _segments(draws: _Draws) -> rg.SemiMarkov:
    steps, longest, labels = [
        (0, 1, 2),
        (1, 3, 2),
        (2, 1, 2),
        (2, 2, 2),
        (3, 2, 1),
        (3, 3, 1),
        (4, 2, 1),
    ][draws.size(0, 1, 2, 3, 4, 5, 6)]
    transition = _transition(draws, steps - 1, labels)
    unary = draws.logs(*draws.batch, steps, longest, labels)
    return rg.SemiMarkov(unary, transition, lengths=draws.lengths(steps))


def _rules(draws: _Draws, parents: int, states: int) -> rg.trees.Rules:
    lead, kind = draws.lead(), draws.size(0, 1, 2, 3, 4)
    if kind == 0:
        return rg.trees.DenseRules(draws.logs(*lead, parents, states, states))
    if kind == 1:
        shapes = ((parents, 2), (states, 2), (states, 2))
        return rg.trees.LowRankRules(*(draws.logs(*lead, *own, zeros=False) for own in shapes))
    if kind == 2:
        shape = (*lead, parents, states, 2)
        made = rg.trees.FactorisedRules if draws.size(0, 1) else rg.trees.BilinearRules
        return made(*(draws.logs(*shape, zeros=False) for _ in range(2)))
    if kind == 3:
        every = np.argwhere(np.ones((parents, states, states)))
        some = every[draws.rng.permutation(len(every))[: draws.size(2, 4, 6)]]
        weights = draws.logs(*lead, len(some))
        return rg.trees.SparseRules(some, weights, parents=parents, children=states)
    return rg.trees.NoRules()


def _tree(draws: _Draws) -> rg.Hypertree:
    words = draws.size(0, 1, 2, 3)
    states = draws.size(1, 2) if words == 3 else draws.size(1, 2, 3)
    preterminals = draws.size(0, 0, 1) if states > 1 else 0
    parents = states - preterminals
    root = draws.logs(*draws.lead(), parents) if draws.chance(0.4) else None
    return rg.Hypertree(
        draws.logs(*draws.batch, words, words, states), _rules(draws, parents, states),
        root=root, preterminals=preterminals, lengths=draws.lengths(words),
    )  # fmt: skip


def _dependencies(draws: _Draws) -> rg.ProjectiveDependencies | rg.NonProjectiveDependencies:
    words = draws.size(0, 1, 2, 3)
    kind = rg.ProjectiveDependencies if draws.chance(0.5) else rg.NonProjectiveDependencies
    unary = draws.logs(*draws.batch, words, words + 1)
    return kind(unary, multiroot=draws.chance(0.4), lengths=draws.lengths(words))


def _derivations(draws: _Draws) -> rg.Derivations:
    nodes, heads, tails = draws.size(2, 3, 4), list[int](), list[list[int]]()
    for node in range(nodes):
        for _ in range(draws.size(1, 2)):
            count = draws.size(0, 1, 2) if node else 0
            own = draws.rng.integers(0, node, size=count).tolist() if count else []
            heads.append(node)
            tails.append([*own, *[-1] * (2 - count)])
    return rg.Derivations(
        draws.logs(*draws.batch, len(heads)), torch.tensor(heads), torch.tensor(tails), nodes=nodes
    )


def _alignment(draws: _Draws) -> rg.Alignment:
    first, second = SIDES[draws.size(*range(len(SIDES)))]
    unary = draws.logs(*draws.batch, first + 1, second + 1, 3)
    transition = draws.logs(3, 3) if draws.chance(0.5) else None
    lengths = draws.lengths(first), draws.lengths(second)
    return rg.Alignment(
        unary, transition=transition, local=draws.chance(0.5),
        first_lengths=lengths[0], second_lengths=lengths[1],
    )  # fmt: skip


def _bitext(draws: _Draws) -> rg.Bitext:
    source, target = SIDES[draws.size(*range(len(SIDES)))]
    weights = draws.logs(2, zeros=False).tolist()
    return rg.Bitext.words(
        draws.logs(*draws.batch, source, target),
        draws.logs(*draws.batch, source),
        draws.logs(*draws.batch, target),
        straight=weights[0],
        inverted=weights[1],
        normal_form=draws.chance(0.5),
        source_lengths=draws.lengths(source),
        target_lengths=draws.lengths(target),
    )


def _mixed(draws: _Draws) -> rg.MixedBitext:
    batch = draws.batch
    source, target = SIDES[draws.size(*range(len(SIDES)))]
    return rg.MixedBitext.words(
        draws.logs(*batch, source, target), draws.logs(*batch, source), draws.logs(*batch, target),
        rules=draws.logs(10, zeros=False) if draws.chance(0.5) else None,
        source_lengths=draws.lengths(source), target_lengths=draws.lengths(target),
    )  # fmt: skip


def _matching(draws: _Draws) -> rg.Matching:
    rows, columns = [(2, 3), (3, 2), (2, 2), (1, 3), (0, 2), (1, 1)][draws.size(*range(6))]
    every = [torch.tensor(draws.rng.random(count) < 0.2) for count in (rows, columns)]
    if draws.chance(0.5):
        odds = draws.logs(*draws.batch, rows, columns)
        return rg.Matching(odds, every_row=every[0], every_column=every[1])
    count = draws.size(0, 2, 4) if rows else 0
    pairs = draws.rng.integers(0, (max(rows, 1), columns), size=(count, 2))
    return rg.Matching(
        unary=draws.logs(*draws.batch, count, 2), pairs=pairs, shape=(rows, columns),
        every_row=every[0], every_column=every[1],
    )  # fmt: skip


class OwnChain(rg.Recurrence):
    unary, transition, lengths = rg.Input("T N"), rg.Input("N N"), rg.Lengths("T")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
        goal    += a[lengths-1, n]
    """


class OwnSegments(rg.Recurrence):
    unary, transition, lengths = rg.Input("T D N"), rg.Input("N N"), rg.Lengths("T")
    rules = """
        a[t, n] += unary[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        goal    += a[lengths-1, n]
    """


class OwnTrees(rg.Recurrence):
    unary, ruled, lengths = rg.Input("T T N"), rg.Input("N N N"), rg.Lengths("T")
    rules = """
        b[i, i, a] += unary[i, i, a]
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * ruled[a, l, r] * unary[i, j, a]
        goal       += b[0, lengths-1, a]
    """


def _recurrence(draws: _Draws) -> rg.Recurrence:
    steps, states = draws.size(1, 2, 3), draws.size(1, 2)
    batch, pairs = draws.batch, draws.logs(*draws.lead(), states, states)
    if draws.chance(0.3):
        return OwnChain(draws.logs(*batch, steps, states), pairs, draws.lengths(steps))
    if draws.chance(0.5):
        few = min(steps, 2)
        unary = draws.logs(*batch, few, draws.size(1, 2), states)
        return OwnSegments(unary, pairs, draws.lengths(few))
    ruled = draws.logs(*draws.lead(), states, states, states)
    return OwnTrees(draws.logs(*batch, steps, steps, states), ruled, draws.lengths(steps))


SIDES = ((1, 1), (1, 2), (2, 1), (0, 0), (0, 1), (2, 0))
KINDS: list[Callable[[_Draws], rg.extend.Structure]] = [
    _chain, _chain, _segments, _segments, _tree, _tree, _dependencies, _derivations, _alignment,
    _bitext, _mixed, _matching, _recurrence,
]  # fmt: skip
