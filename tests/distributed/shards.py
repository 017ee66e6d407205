"""Recurrences of which each process has a part of a table answer as those that have it whole."""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import rdpgraph as rg
from rdpgraph import Input, Lengths
from rdpgraph.errors import ModelError, UnsupportedError
from tests.distributed.checks import DOUBLE, check, close, seeded


class TwoChains(rg.Recurrence):
    """Two chains side by side, one observation of both."""

    first, second, seen = Input("N N"), Input("M M"), Input("T N M")
    rules = """
        a[0, n, m]    += seen[0, n, m]
        half[t, n, j] += a[t-1, i, j] * first[i, n]
        a[t, n, m]    += half[t, n, j] * second[j, m] * seen[t, n, m]
        goal          += a[T-1, n, m]
    """


class Trees(rg.Recurrence):
    """Spans with labels."""

    unary, ruled, lengths = Input("T T N"), Input("N N N"), Lengths("T")
    rules = """
        b[i, i, a] += unary[i, i, a]
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * ruled[a, l, r] * unary[i, j, a]
        goal       += b[0, lengths-1, a]
    """


def whole(values: Tensor) -> Tensor:
    """The values of all processes."""
    return values.full_tensor() if isinstance(values, DTensor) else values


# Of 4 states the last of three processes has none, of 5 it has fewer than the others.
@check
def chains_have_log_z_gradients_and_marginals(mesh: DeviceMesh, _: Path) -> None:
    generator, lengths = seeded(0), torch.tensor([4, 0, 3])
    for states, each, dim in product((5, 4), (False, True), (-2, -1)):
        shape = (3, states, states) if each else (states, states)
        unary = torch.randn(3, 4, states, generator=generator, dtype=DOUBLE).requires_grad_()
        table = torch.randn(shape, generator=generator, dtype=DOUBLE)
        table[..., 0, 1] = -torch.inf
        split = distribute_tensor(table, mesh, [Shard(len(shape) + dim)]).requires_grad_()
        alone = rg.Chain(unary, table.requires_grad_(), lengths=lengths)
        chain = rg.Chain(unary, split, lengths=lengths)
        close(chain.log_partition(), alone.log_partition(), 1e-12)
        found = torch.autograd.grad(chain.log_partition().sum(), (unary, split))
        known = torch.autograd.grad(alone.log_partition().sum(), (unary, table))
        assert found[1].placements == split.placements
        # Marginals, and their gradients.
        some = torch.randn(unary.shape, generator=generator, dtype=DOUBLE)
        found += torch.autograd.grad((chain.marginals() * some).sum(), (unary, split))
        known += torch.autograd.grad((alone.marginals() * some).sum(), (unary, table))
        # Scores of sequences.
        states_of = torch.randint(2, states, (2, 3, 4), generator=generator)
        found += torch.autograd.grad(chain.log_prob(states_of).sum(), (split,))
        known += torch.autograd.grad(alone.log_prob(states_of).sum(), (table,))
        for one, other in zip(found, known, strict=True):
            close(whole(one), other, 1e-10)


@check
def split_tables_keep_the_digits_of_float32(mesh: DeviceMesh, _: Path) -> None:
    unary, table = torch.randn(300, 7, generator=seeded(1)), torch.randn(7, 7, generator=seeded(2))
    split = distribute_tensor(5 * table, mesh, [Shard(1)])
    exact = rg.Chain(unary.double(), 5 * table.double()).log_partition()
    close(rg.Chain(unary, split).log_partition().double(), exact, 1e-6)


@check
def estimates_read_few_entries_of_split_tables(mesh: DeviceMesh, _: Path) -> None:
    unary, table = (torch.randn(*s, generator=seeded(3), dtype=DOUBLE) for s in ((5, 9), (9, 9)))
    few = rg.Randomized.default(keep=4, replicates=3)
    found, known = (
        rg.infer(rg.Chain(unary, one), estimator=few, generator=seeded(4)).log_partition
        for one in (distribute_tensor(table, mesh, [Shard(0)]), table)
    )
    close(found, known, 1e-12)


@check
def probabilities_may_be_split(mesh: DeviceMesh, _: Path) -> None:
    start, table = (torch.randn(*s, generator=seeded(5)).log_softmax(-1) for s in ((4,), (4, 4)))
    for dim in range(2):
        split = distribute_tensor(table, mesh, [Shard(dim)])
        found, known = (
            rg.Chain.hmm(start, one, table, torch.tensor([1, 0, 3])) for one in (split, table)
        )
        close(found.log_partition(), known.log_partition(), 1e-6)
        with pytest.raises(ModelError, match="sum to one"):
            rg.Chain.hmm(start, distribute_tensor(table + 1, mesh, [Shard(dim)]), table)


@check
def recurrences_take_tables_that_are_split_by_labels(mesh: DeviceMesh, _: Path) -> None:
    generator = seeded(6)
    given = [
        torch.randn(*shape, generator=generator, dtype=DOUBLE)
        for shape in ((3, 3), (4, 4), (5, 3, 4))
    ]
    known = TwoChains(*given)
    for dims in ((0, None, None), (None, 1, 2), (1, 0, 1)):
        pairs = zip(given, dims, strict=True)
        split = TwoChains(*(
            x if dim is None else distribute_tensor(x, mesh, [Shard(dim)]) for x, dim in pairs
        ))  # fmt: skip
        close(split.log_partition(), known.log_partition(), 1e-12)
        close(split.count(), known.count(), 0.0)
        close(split.by_input().best_score(), known.by_input().best_score(), 1e-12)
        close(split.entropy(), known.entropy(), 1e-10)
        expected = known.by_input().marginals()
        for name, uses in split.by_input().marginals().items():
            close(whole(uses), expected[name], 1e-10)


@check
def trees_take_rules_that_are_split(mesh: DeviceMesh, _: Path) -> None:
    unary = torch.randn(2, 4, 4, 4, generator=seeded(7), dtype=DOUBLE)
    rules = torch.randn(4, 4, 4, generator=seeded(8), dtype=DOUBLE)
    known = Trees(unary, rules, torch.tensor([4, 3]))
    for dim in range(3):
        split = Trees(unary, distribute_tensor(rules, mesh, [Shard(dim)]), torch.tensor([4, 3]))
        close(split.log_partition(), known.log_partition(), 1e-12)
        close(split.marginals(), known.marginals(), 1e-10)
        close(split.score(known.mode()), known.score(known.mode()), 1e-10)


@check
def what_split_tables_do_not_answer_is_said_in_one_line(mesh: DeviceMesh, _: Path) -> None:
    rank, given = (
        mesh.get_local_rank(),
        (torch.zeros(3, 3), torch.zeros(4, 4), torch.zeros(5, 3, 4)),
    )
    unary, table = given[2][..., 0], distribute_tensor(given[0], mesh, [Shard(0)])
    chain = rg.Chain(unary, table)
    asked = [chain.mode, chain.entropy, chain.max_marginals, chain.filtered, chain.edge_counts]
    for question in [*asked, TwoChains(table, *given[1:]).by_input().mode]:
        with pytest.raises(UnsupportedError, match="full_tensor") as said:
            question()
        assert "\n" not in str(said.value)
    close(rg.Chain(unary, table.full_tensor()).entropy(), torch.tensor(5.4930615), 1e-6)
    if mesh.size() > 1:
        places = distribute_tensor(given[2], mesh, [Shard(0)])
        with pytest.raises(UnsupportedError, match=r"seen.* split by T"):
            TwoChains(*given[:2], places).log_partition()
        with pytest.raises(ModelError, match="the same unary"):  # each has its own
            rg.Chain(unary + rank, table).log_partition()
        with pytest.raises(ModelError, match=r"got .*Partial.*redistribute"):
            rg.Chain(unary, DTensor.from_local(given[0], mesh, [Partial()])).log_partition()
    with pytest.raises(ModelError, match="NaN"):
        rg.Chain(unary, table * torch.nan).log_partition()
    with pytest.raises(ModelError, match="unary needs values that are all here"):
        rg.Chain(distribute_tensor(unary, mesh, [Shard(1)]), table)
    copies = DTensor.from_local(given[0], mesh, [Replicate()])
    close(rg.Chain(unary, copies).log_partition(), chain.log_partition(), 1e-6)
