"""The factors of one batch item as tree-reweighted messages need them: pairs, and the rest bounded.

Nothing is copied for each factor: factors that share a table point to it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.reduction.network import Group, HighOrderBlock, Network
from rdpgraph.engines.reduction.tables import Floats, Integers


@dataclass(frozen=True, eq=False)
class PairBlock:
    """Factors of two variables whose tables have one shape."""

    rows: Integers  # (F,) the variable of each table's first dim
    columns: Integers  # (F,) and of its second
    tables: Integers  # (F,) the place of each factor's table in `values`
    values: Floats  # (U, K, L) log-values


@dataclass(frozen=True, eq=False)
class Pairwise:
    """One batch item: unary log-values, pairs, and what all larger factors add at most."""

    sizes: Integers  # (V,) states of each variable
    unary: Floats  # (S,) log-values of the states of variable 0, then of variable 1, and so on
    pairs: tuple[PairBlock, ...]
    larger: int  # number of factors of three and more variables
    rest: float  # upper bound on their summed log-values (nats)

    @cached_property
    def starts(self) -> Integers:
        """(V + 1,) place of each variable's first state in `unary`."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @property
    def count(self) -> int:
        """Number of pairs."""
        return sum(len(each.rows) for each in self.pairs)

    @property
    def table_entries(self) -> int:
        """Number of table entries that a sweep reads."""
        return sum(len(each.rows) * math.prod(each.values.shape[1:]) for each in self.pairs)

    @cached_property
    def spans(self) -> tuple[tuple[slice, slice], ...]:
        """For each group of pairs, where the messages into its rows and into its columns lie.

        A message has one number for each state of its receiver, so that these are (F, K) and (F, L)
        numbers.
        """
        spans: list[tuple[slice, slice]] = []
        begin = 0
        for each in self.pairs:
            (height, width), factors = each.values.shape[1:], len(each.rows)
            middle, end = begin + factors * height, begin + factors * (height + width)
            spans.append((slice(begin, middle), slice(middle, end)))
            begin = end
        return tuple(spans)

    @cached_property
    def edges(self) -> tuple[Integers, Integers, Integers]:
        """(5, F) edges, (V + 1,) first place of each variable among (2 F,) ends, for `trws.h`."""
        parts, tables = list[Integers](), 0
        for pairs, (rows, columns) in zip(self.pairs, self.spans, strict=True):
            (height, width), factors = pairs.values.shape[1:], np.arange(len(pairs.rows))
            table = tables + pairs.tables * (height * width)
            into_row, into_column = rows.start + factors * height, columns.start + factors * width
            parts.append(np.stack([pairs.rows, pairs.columns, table, into_row, into_column]))
            tables += pairs.values.size
        edges = np.concatenate(parts, 1)
        ends = edges[:2].T.ravel()  # of edge e, the row at 2 e and the column at 2 e + 1
        counts = np.bincount(ends, minlength=len(self.sizes))
        return edges, np.concatenate([[0], np.cumsum(counts)]), np.argsort(ends, kind="stable")

    @cached_property
    def flat_tables(self) -> Floats:
        """All tables one after the other, to which the third row of `edges` points."""
        return np.concatenate([pairs.values.ravel() for pairs in self.pairs])

    @property
    def message_entries(self) -> int:
        """Number of entries of all messages."""
        return self.spans[-1][1].stop if self.spans else 0

    def views(self, messages: Floats) -> list[tuple[Floats, Floats]]:
        """Views (F, K) and (F, L) of the messages into rows and columns of each group of pairs."""
        return [
            (messages[a].reshape(len(each.rows), -1), messages[b].reshape(len(each.rows), -1))
            for each, (a, b) in zip(self.pairs, self.spans, strict=True)
        ]

    def states_of(self, variables: Integers, size: int) -> Integers:
        """(n, size) places of the states of variables that have ``size`` of them."""
        return self.starts[variables, None] + np.arange(size)

    @cached_property
    def receivers(self) -> Integers:
        """The state, as a place in `unary`, that each entry of the messages is about."""
        parts = [np.zeros(0, np.int64)]
        for each in self.pairs:
            parts.append(self.states_of(each.rows, each.values.shape[1]).ravel())
            parts.append(self.states_of(each.columns, each.values.shape[2]).ravel())
        return np.concatenate(parts)

    def beliefs(self, messages: Floats) -> Floats:
        """(S,) unary log-values plus all messages."""
        return self.unary + np.bincount(self.receivers, messages, len(self.unary))

    def later(self, *, forward: bool) -> Integers:
        """(V,) the number of pairs that each variable shares with those visited after it."""
        first = np.minimum if forward else np.maximum
        ends = [first(each.rows, each.columns) for each in self.pairs]
        none = np.zeros(0, np.int64)
        return np.bincount(np.concatenate([none, *ends]), minlength=len(self.sizes))

    @cached_property
    def span(self) -> float:
        """Bound on the absolute value of every sum of finite log-values, without larger factors."""
        if not len(self.sizes):
            return 0.0
        largest = [np.maximum.reduceat(absolute(self.unary), self.starts[:-1])]
        for each in self.pairs:
            tables = absolute(each.values).reshape(len(each.values), -1)
            largest.append(tables.max(1)[each.tables])
        return math.fsum(np.concatenate(largest).tolist())

    def score(self, states: Integers) -> float:
        """Summed log-values of a configuration, without those of larger factors."""
        total = float(self.unary[self.starts[:-1] + states].sum())
        for each in self.pairs:
            values = each.values[each.tables, states[each.rows], states[each.columns]]
            total += float(values.sum())
        return total

    def likeliest(self, messages: Floats) -> Integers:
        """(V,) the first of the best states of each variable's belief."""
        states, beliefs = np.zeros(len(self.sizes), np.int64), self.beliefs(messages)
        for size in np.unique(self.sizes).tolist():
            variables = (self.sizes == size).nonzero()[0]
            states[variables] = beliefs[self.states_of(variables, size)].argmax(1)
        return states


def pairwise_of(network: Network, item: int, rest: float) -> Pairwise:
    """The factors of one batch item of a network, without its constant.

    ``rest`` bounds the potentials that are no tables, as `bounds_of_blocks` does.
    """
    sizes = np.array(network.sizes, np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    unary = np.zeros(int(starts[-1]))
    pairs, larger, maxima = list[PairBlock](), len(network.high_order), [rest]
    for group in network.groups:
        scopes, (tables, places) = group.scopes.numpy(), _tables(group, item)
        if scopes.shape[1] == 1:
            np.add.at(unary, starts[scopes] + np.arange(tables.shape[1]), tables[places])
        elif scopes.shape[1] == 2:
            rows, columns = np.ascontiguousarray(scopes.T)
            pairs.append(PairBlock(rows, columns, places, np.ascontiguousarray(tables)))
        else:
            larger += len(scopes)
            maxima += tables.reshape(len(tables), -1).max(1)[places].tolist()
    return Pairwise(sizes, unary, tuple(pairs), larger, math.fsum(maxima))


def _tables(group: Group, item: int) -> tuple[Floats, Integers]:
    """The distinct tables of a group for one batch item, and each factor's place among them."""
    batched = group.log_tables.detach()
    tables = batched[item if len(batched) > 1 else 0].double().cpu().numpy()
    if len(tables) == 1:
        return tables, np.zeros(len(group.scopes), np.int64)
    rows = np.arange(len(group.scopes)) if group.rows is None else group.rows.numpy()
    return tables, rows


def bounds_of_blocks(network: Network) -> Tensor:
    """(B,) float64 upper bounds on the summed log-values of the potentials that are no tables."""
    total = torch.zeros(network.batch, dtype=torch.float64, device="cpu")
    for block in network.high_order:
        total = total + _largest(network, block)
    return total


def _largest(network: Network, block: HighOrderBlock) -> Tensor:
    """(B,) summed maxima of a block's factors, given the settled states of its variables.

    A max-message to a slot is the largest log-value with each state of that slot.
    """
    shape, settled = network.graph.batch_shape, network.settled[:, block.scopes]
    incoming: list[Tensor] = []
    for slot, size in enumerate(block.potential.slots(block.scopes.shape[1])):
        states = settled[:, :, slot].unsqueeze(-1)
        agrees = (states < 0) | (states == torch.arange(size, device="cpu"))
        logs = torch.where(agrees, 0.0, -math.inf).to(network.constant)
        incoming.append(logs[0] if len(logs) == 1 else logs.reshape(*shape, *logs.shape[1:]))
    with torch.no_grad():
        sent = block.potential.messages(incoming, temperature=0.0)[0]
    # Potentials compute in their own type: each addition may round down.
    largest = sent.amax(-1).double().cpu()
    error = torch.finfo(sent.dtype).eps * (len(incoming) + 8) * largest.abs()
    largest = torch.where(largest > -math.inf, largest + error, largest)
    largest = largest.expand(*largest.shape[:-1], len(block.scopes)).sum(-1)
    return largest.expand(shape).reshape(-1)


def absolute(values: Floats) -> Floats:
    """Absolute values; 0 for -inf."""
    return np.where(values > -math.inf, np.abs(values), 0.0)
