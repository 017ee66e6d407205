"""Messages between clusters of a join graph: loopy belief propagation on larger pieces."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph.engines.flat import factor_tables, variable_table
from rdpgraph.engines.network import Network
from rdpgraph.engines.solution import Approximation, Solution
from rdpgraph.engines.status import Status
from rdpgraph.engines.values import safe_log
from rdpgraph.model.gradients import refused
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.joingraph import ClusterGraph

_MESSAGES = 0.7  # the part of the time after which answers are read off
_READINGS = 5.0
_LEAST = 0.2
_PATIENCE = 12  # sweeps in which the residual should shrink by two thirds
_MOST_DAMPING = 0.8
_HOPELESS = 0.05  # a residual above this at full damping is not waited for


@dataclass(frozen=True, eq=False)
class _Cluster:
    """A table of values scaled to a maximum of one.

    Attributes:
        scope: the variables of its dims, after the batch dim.
        values: (b, *sizes).
        log_scale: (b,).
    """

    scope: tuple[int, ...]
    values: Tensor
    log_scale: Tensor


@dataclass(eq=False)
class _Run:
    """Messages where they stand: per link what the child and what the parent has said."""

    up: list[Tensor]
    down: list[Tensor]
    trace: list[float] = field(default_factory=list[float])
    converged: bool = False
    lost: bool = False  # a message to underflow
    crosses = True


@dataclass(frozen=True, eq=False)
class JoinedSolution(Approximation):
    """Iterative join-graph propagation (Mateescu, Kask, Gogate, Dechter 2010): approximate.

    Computes in float64. Log Z is the join graph's free energy; its gradient, with messages held
    fixed, is the beliefs. Marginals have no gradient, and that of the entropy is refused.

    Attributes:
        network: the reduced model.
        graph: its clusters; tensor t of the plan is factor t of the groups, one after the other.
        sweeps: at most, there and back.
        tolerance: on the largest change of a message scaled to a maximum of one.
        allowance: seconds for all answers; messages take seven tenths of it at most.
        damping: the share of the old message that is kept; raised where the residual stalls.
        loopy: answers what clusters do not: modes and max-marginals.
    """

    network: Network
    graph: ClusterGraph
    sweeps: int
    tolerance: float
    allowance: Allowance
    damping: float
    loopy: Callable[[], Solution] = field(repr=False)

    @cached_property
    def _tensors(self) -> list[tuple[int, int]]:
        """Per tensor of the plan its group and row."""
        return [
            (number, row)
            for number, group in enumerate(self.network.groups)
            for row in range(len(group.scopes))
        ]

    def _tables(self) -> Iterator[tuple[tuple[int, ...], list[Tensor]]]:
        """Of each cluster its scope, and the log-tables of its factors as views over that."""
        groups = self.network.groups
        tables = [group.each() for group in groups]
        scopes = [group.scopes.tolist() for group in groups]
        for scope, members in zip(self.graph.scopes, self.graph.tensors, strict=True):
            aligned: list[Tensor] = []
            for tensor in members:
                group, row = self._tensors[tensor]
                own = tables[group][:, row if tables[group].shape[1] > 1 else 0]
                aligned.append(_aligned(own, scopes[group][row], scope))
            yield scope, aligned

    def _clusters(self) -> list[_Cluster]:
        clusters: list[_Cluster] = []
        for scope, tables in self._tables():
            sizes = [self.graph.sizes[v] for v in scope]
            total = torch.zeros(1, *(1 for _ in sizes), dtype=torch.float64)
            total = total.to(self.network.constant.device)
            for table in tables:
                total = total + table.double()
            total = total.expand(-1, *sizes)
            peak = total.detach().flatten(1).amax(1)
            peak = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
            values = (total - peak.reshape(-1, *(1,) * len(sizes))).exp()
            clusters.append(_Cluster(scope, values, peak))
        return clusters

    @cached_property
    def _fixed(self) -> list[_Cluster]:
        with torch.no_grad():
            return self._clusters()

    @cached_property
    def _narrow(self) -> bool:
        """Whether possible values of a cluster are lost to underflow."""
        for (_, tables), own in zip(self._tables(), self._fixed, strict=True):
            lost = own.values == 0
            if bool(lost.any()):
                for table in tables:
                    lost = lost & (table > -math.inf)
                if bool(lost.any()):
                    return True
        return False

    @cached_property
    def _at(self) -> list[list[int]]:
        """Per cluster the numbers of its links."""
        links: list[list[int]] = [[] for _ in self.graph.scopes]
        for number, link in enumerate(self.graph.links):
            links[link.child].append(number)
            links[link.parent].append(number)
        return links

    @cached_property
    def _run(self) -> _Run:
        with torch.no_grad(), self.allowance.spending():
            return self._propagated()

    def _propagated(self) -> _Run:
        begin, left = clock.now(), self.allowance.left()
        like, batch = self._fixed[0].values if self._fixed else torch.zeros(0), self.network.batch
        # To read the answers off takes as long as some more times to make the tables.
        reading = _READINGS * (clock.now() - begin)
        deadline = begin + max(min(_MESSAGES * left, left - reading), _LEAST * left)
        ones = [
            like.new_ones(batch, *(self.graph.sizes[v] for v in link.separator))
            for link in self.graph.links
        ]
        run = _Run(list(ones), list(ones))
        count = len(self.graph.scopes)
        steps = [(cluster, True) for cluster in range(count)]
        steps += [(cluster, False) for cluster in reversed(range(count))]
        keep = 0.0
        for number in range(self.sweeps):
            change = 0.0
            for cluster, upwards in steps:
                change = max(change, self._send(run, cluster, keep, upwards=upwards))
                if clock.now() > deadline:
                    run.trace.append(max(change, math.ulp(1.0)))
                    return run
            run.trace.append(change)
            # The second sweep of a junction tree changes nothing: the first was exact.
            if change <= self.tolerance or self.graph.exact:
                run.converged = True
                break
            keep = max(keep, self.damping)
            if number and number % _PATIENCE == 0 and change > 0.3 * run.trace[-_PATIENCE]:
                if keep >= _MOST_DAMPING and change > _HOPELESS:
                    break
                keep = min(keep + 0.2, _MOST_DAMPING)
        return run

    def _send(self, run: _Run, cluster: int, keep: float, *, upwards: bool) -> float:
        """Messages of a cluster to its parents, or to its children; the largest change."""
        links = self.graph.links
        targets = [n for n in self._at[cluster] if (links[n].child == cluster) is upwards]
        if not targets:
            return 0.0
        own = self._fixed[cluster]
        table = self._belief(run, own, cluster)[0]
        alive = (own.values > 0).flatten(1).any(1).expand(len(table))
        change = 0.0
        for number in targets:
            said, heard = (run.up, run.down) if upwards else (run.down, run.up)
            total = _summed(table, self.graph.scopes[cluster], links[number].separator)
            new = torch.where(heard[number] > 0, total / heard[number], 0.0)
            peak = new.flatten(1).amax(1).reshape(-1, *(1,) * (new.ndim - 1))
            old = said[number]
            # Where all underflowed, or nothing is possible, nothing new is said.
            run.lost = run.lost or bool(((peak <= 0).flatten() & alive).any())
            new = torch.where(peak > 0, new / torch.where(peak > 0, peak, 1.0), old)
            change = max(change, float((new - old).abs().amax()))
            if keep:
                new = (1 - keep) * new + keep * old
            said[number] = new
        return change

    def _belief(self, run: _Run, own: _Cluster, cluster: int) -> tuple[Tensor, Tensor]:
        """The table times all that the cluster has heard: (B, *sizes) and its log-scale (B,)."""
        table, scale = own.values, own.log_scale
        for number in self._at[cluster]:
            link = self.graph.links[number]
            heard = run.down[number] if link.child == cluster else run.up[number]
            table = table * _aligned(heard, link.separator, own.scope)
            peak = table.detach().flatten(1).amax(1)
            safe = torch.where(peak > 0, peak, 1.0)
            if bool((safe < 1e-100).any()):
                table = table / safe.reshape(-1, *(1,) * (table.ndim - 1))
                scale = scale + safe.log()
        return table, scale

    def status(self) -> Status:
        """Whether the messages converged."""
        run = self._run
        # Of a junction tree log Z and marginals are exact, but not the modes.
        remedy = ""
        if self._narrow or run.lost:
            remedy = "values are too far apart for the clusters' tables: Loopy() works in logs"
        elif not run.converged:
            remedy = "the join graph's messages have not converged: allow more time, or damp them"
        else:
            remedy = "approximate: more memory or time allows larger clusters"
        return Status(
            exact=False,
            converged=run.converged and not (self._narrow or run.lost),
            biased=True,
            iterations=len(run.trace),
            residual=run.trace[-1] if run.trace else 0.0,
            trace=tuple(run.trace),
            method="join graph",
            remedy=remedy,
        )

    def log_partition(self) -> Tensor:
        """(B,) the join graph's approximation of log Z."""
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        network, run = self.network, self._run
        if network.impossible:
            return torch.full_like(network.constant, -math.inf).expand(network.batch)
        total = network.constant.double().expand(network.batch)
        recorded = torch.is_grad_enabled() and any(
            g.log_tables.requires_grad for g in network.groups
        )
        clusters = self._clusters() if recorded else self._fixed
        for cluster, own in enumerate(clusters):
            table, scale = self._belief(run, own, cluster)
            total = total + safe_log(table.flatten(1).sum(1)) + scale
        for up, down in zip(run.up, run.down, strict=True):
            total = total - safe_log((up * down).flatten(1).sum(1))
        total = torch.where(total.isnan() | (total == math.inf), -math.inf, total)
        return total.to(network.constant)

    @differentiable_property
    def _beliefs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Per variable (B, k) and per tensor (B, *sizes), each from its smallest cluster."""
        run, graph = self._run, self.graph
        home: dict[int, int] = {}
        for cluster in sorted(
            range(len(graph.scopes)), key=lambda c: -self._fixed[c].values[0].numel()
        ):
            for variable in graph.scopes[cluster]:
                home[variable] = cluster
        of_variables = [torch.zeros(0) for _ in graph.sizes]
        of_tensors = [torch.zeros(0) for _ in self._tensors]
        with torch.no_grad():
            for cluster, own in enumerate(self._fixed):
                table = self._belief(run, own, cluster)[0]
                table = _probabilities(table)
                for tensor in graph.tensors[cluster]:
                    group, row = self._tensors[tensor]
                    scope = tuple(self.network.groups[group].scopes[row].tolist())
                    joint = _summed(table, own.scope, tuple(sorted(scope)))
                    ranks = [sorted(scope).index(v) + 1 for v in scope]
                    of_tensors[tensor] = joint.permute(0, *ranks)
                for variable in own.scope:
                    if home[variable] == cluster:
                        of_variables[variable] = _summed(table, own.scope, (variable,))
        return of_variables, of_tensors

    @cached_property
    def _alive(self) -> Tensor:
        return self.log_partition().detach() > -math.inf

    def variable_marginals(self) -> Tensor:
        """(B, S) beliefs."""
        if self.network.impossible:
            return variable_table(self.network, [], 0.0, 0.0)
        beliefs, sizes = self._beliefs[0], torch.tensor(self.network.sizes)
        parts: list[tuple[Tensor, Tensor]] = []
        for size in torch.unique(sizes).tolist():
            members = (sizes == size).nonzero().flatten()
            own = [beliefs[v].expand(self.network.batch, -1) for v in members.tolist()]
            parts.append((members, torch.stack(own, 1)))
        flat = variable_table(self.network, parts, 0.0, 1.0)
        return torch.where(self._alive.unsqueeze(1), flat, 0.0)

    def _of_group(self, group: int) -> Tensor:
        tensors = [t for t, (number, _) in enumerate(self._tensors) if number == group]
        beliefs = [self._beliefs[1][t] for t in tensors]
        batch = max(len(belief) for belief in beliefs)
        return torch.stack([belief.expand(batch, *belief.shape[1:]) for belief in beliefs], 1)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) beliefs."""
        values = factor_tables(self.network, block, self._of_group)
        return torch.where(self._alive.reshape(-1, *(1,) * (values.ndim - 1)), values, 0.0)

    def expected_score(self) -> Tensor:
        """(B,) under the beliefs."""
        network = self.network
        total = network.constant.expand(network.batch).double()
        if network.impossible:
            return torch.zeros_like(total).to(network.constant)
        for number, group in enumerate(network.groups):
            belief = self._of_group(number)
            logs = torch.where(belief > 0, group.each().double(), 0.0)
            total = total + (belief * logs).flatten(1).sum(1)
        total = torch.where(self._alive, total, 0.0).to(network.constant)
        return refused(
            total, "A join graph's entropy has no gradient; Contraction() and Loopy() have one."
        )

    @differentiable_property
    def _other(self) -> Solution:
        return self.loopy()

    def max_marginals(self) -> Tensor:
        """(B, S) by loopy max-product."""
        return self._other.max_marginals()

    def mode(self) -> Tensor:
        """(B, V) by loopy max-product."""
        return self._other.mode()

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by loopy max-product."""
        return self._other.mode_exists()

    def mode_is_consistent(self) -> Tensor:
        """(B,) that of loopy max-product."""
        return self._other.mode_is_consistent()


def _aligned(values: Tensor, own: Sequence[int], scope: Sequence[int]) -> Tensor:
    """(b, *sizes of own) as a view that broadcasts over the dims of an ascending scope."""
    ranks = sorted(range(len(own)), key=lambda i: own[i])
    moved = values.permute(0, *(rank + 1 for rank in ranks))
    held = set(own)
    sizes = iter(moved.shape[1:])
    return moved.reshape(len(values), *(next(sizes) if v in held else 1 for v in scope))


def _summed(table: Tensor, scope: Sequence[int], kept: Sequence[int]) -> Tensor:
    """The other dims summed out."""
    held = set(kept)
    gone = [dim + 1 for dim, v in enumerate(scope) if v not in held]
    return table.sum(gone) if gone else table


def _probabilities(table: Tensor) -> Tensor:
    total = table.flatten(1).sum(1).reshape(-1, *(1,) * (table.ndim - 1))
    return table / torch.where(total > 0, total, 1.0)
