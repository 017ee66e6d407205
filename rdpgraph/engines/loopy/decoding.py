"""Decode configurations from max-beliefs, and check whether they are consistent with these."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph.engines.loopy.compiled import compiled_messages, is_served
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.engines.loopy.orders import Order, orders, peeled
from rdpgraph.engines.loopy.propagation import Limits, Outcome, propagate
from rdpgraph.engines.loopy.schedules import DAMPED, Flooding, Sequential
from rdpgraph.engines.loopy.traceback import (
    ascended,
    better,
    costs,
    costs_one_by_one,
    scores,
    traced,
)
from rdpgraph.plan import clock


@dataclass(frozen=True, eq=False)
class DecodedModes:
    """Configurations that were decoded from max-beliefs."""

    states: Tensor  # (B, active variables)
    # (B,) True where the messages converged and the configuration is among the best of every
    # factor. It is then optimal on trees, and anywhere for tree-reweighted messages.
    consistent: Tensor
    cut: bool = False  # the time limit ended the search
    crosses = True


def decode(equations: Equations, outcome: Outcome, limits: Limits) -> DecodedModes:
    """Decode the best state of every variable, breaking ties so that neighbours agree.

    Messages that have not converged run on with damping. Ties are decided by a traceback. If the
    result is not among the best of every factor, it is improved: by chains of changes where there
    are hard zeros and compiled code, else one variable at a time. Chains apart, all of this takes
    no more sweeps than the messages took before.
    """
    messages = outcome.messages
    beliefs = equations.beliefs(messages)
    states, converged = equations.best_states(beliefs), outcome.converged.cpu()
    if not equations.edges.count or not equations.batch:
        return DecodedModes(states, torch.ones(equations.batch, dtype=torch.bool, device="cpu"))
    end = math.inf if limits.seconds is None else clock.now() + limits.seconds
    tied = _tied(equations, beliefs)
    items = (tied.any(1).cpu() | ~converged).nonzero().flatten()
    if len(items) and clock.now() < end:
        read = tuple(values[items.to(values.device)] for values in (states, tied))
        part = equations.part(messages, items)
        search = _TieSearch(*part, outcome.sweeps[items], limits, end, read[0])
        search.run(converged[items], read if bool(converged[items].all()) else None)
        states[items.to(states.device)] = search.states
        if search.consistent is not None and len(items) == equations.batch:
            return DecodedModes(states, search.consistent & converged, clock.now() > end)
    cut = bool(len(items)) and clock.now() > end
    if not bool(converged.any()):
        return DecodedModes(states, converged, cut)
    known = _decider_of(equations).scores(states)
    return DecodedModes(states, _agreed(equations, messages, states, known, converged), cut)


def are_possible(equations: Equations, states: Tensor) -> Tensor:
    """Return (B,) whether configurations (B, V) violate no factor."""
    return _decider_of(equations).scores(states)[:, 0] == 0


@dataclass(frozen=True, eq=False)
class _Path:
    """An order in which to decide variables."""

    order: Order | Tensor  # for torch, or the (V,) layers of the variables
    count: int  # number of its layers
    cost: float  # of a pass, in sweeps


@dataclass(frozen=True, eq=False)
class _Decider(ABC):
    """Decides variables given those decided before, and scores configurations."""

    equations: Equations

    @abstractmethod
    def seconds(self) -> float:
        """Return the seconds that it takes to find orders, rounded up."""

    @abstractmethod
    def paths(self, *, peels: bool) -> tuple[_Path, _Path, _Path | None, float] | None:
        """Return three orders and a negligible cost, in sweeps; None if factors are too wide.

        The orders are outwards from a variable of every component, of few layers, and, if asked
        for and there is one, that in which variables with few factors come last.
        """

    @abstractmethod
    def traced(
        self, messages: Messages, states: Tensor, free: Tensor, path: _Path, end: float
    ) -> Tensor:
        """Decide free variables (B, V) in an order; return (B, V) states."""

    @abstractmethod
    def ascended(self, states: Tensor, path: _Path, passes: Tensor, end: float) -> Tensor:
        """Improve (B, V) states one variable at a time, in at most (B,) passes."""

    def chained(self, states: Tensor, sweeps: float, end: float) -> Tensor | None:
        """Improve (B, V) states by chains of changes, which read as much as so many sweeps at most.

        None where there is no code for it.
        """
        del states, sweeps, end

    @abstractmethod
    def scores(self, states: Tensor) -> Tensor:
        """Return the (B, 2) scores of (B, V) states, as `traceback.scores` does."""


class _LayerByLayer(_Decider):
    """Decides the variables of a layer together, by torch."""

    def seconds(self) -> float:
        return tuning.SECONDS_PER_EDGE * self.equations.edges.count

    def paths(self, *, peels: bool) -> tuple[_Path, _Path, _Path | None, float] | None:
        edges = self.equations.edges
        pair = orders(edges)
        if pair is None:
            return None
        peeling = peeled(edges) if peels else None
        found = (*pair, *([] if peeling is None else [peeling]))
        passes, little = costs(self.equations, found)
        paths = [_Path(o, len(o.layers), cost) for o, cost in zip(found, passes, strict=True)]
        return paths[0], paths[1], paths[2] if len(paths) > 2 else None, little

    def traced(
        self, messages: Messages, states: Tensor, free: Tensor, path: _Path, end: float
    ) -> Tensor:
        assert isinstance(path.order, Order)
        return traced(self.equations, messages, states, free, path.order, end)

    def ascended(self, states: Tensor, path: _Path, passes: Tensor, end: float) -> Tensor:
        assert isinstance(path.order, Order)
        return ascended(self.equations, states, path.order, passes, end)

    def scores(self, states: Tensor) -> Tensor:
        return scores(self.equations, states)


class _OneByOne(_Decider):
    """Decides one variable after the other, by compiled code."""

    def seconds(self) -> float:
        return tuning.SECONDS_PER_ORDERED * self.equations.edges.count

    def paths(self, *, peels: bool) -> tuple[_Path, _Path, _Path | None, float] | None:
        outwards, colours, peeling, counts = compiled_messages(self.equations).layers(peels=peels)
        cost, little = costs_one_by_one(self.equations)
        last = None if peeling is None else _Path(peeling, counts[2], cost)
        return _Path(outwards, counts[0], cost), _Path(colours, counts[1], cost), last, little

    def traced(
        self, messages: Messages, states: Tensor, free: Tensor, path: _Path, end: float
    ) -> Tensor:
        assert isinstance(path.order, Tensor)
        if clock.now() > end:
            return states
        self._count(path.cost)
        compiled = compiled_messages(self.equations)
        return compiled.traced(compiled.flat(messages), states, free, path.order)

    def ascended(self, states: Tensor, path: _Path, passes: Tensor, end: float) -> Tensor:
        assert isinstance(path.order, Tensor)
        if clock.now() > end:
            return states
        self._count(path.cost * float(passes.double().mean()))
        return compiled_messages(self.equations).ascended(states, path.order, passes)

    def chained(self, states: Tensor, sweeps: float, end: float) -> Tensor | None:
        left, equations = end - clock.now(), self.equations
        most = sweeps * equations.edges.count
        if left < math.inf:
            most = min(most, max(left, 0.0) * tuning.OPERATIONS_PER_SECOND / tuning.CHAINED_SLOT)
        states, slots = compiled_messages(equations).chained(states, most)
        clock.count(tuning.CHAINED_SLOT * slots)
        return states

    def _count(self, sweeps: float) -> None:
        clock.count(sweeps * self.equations.batch * self.equations.operations)

    def scores(self, states: Tensor) -> Tensor:
        return compiled_messages(self.equations).scores(states)


def _decider_of(equations: Equations) -> _Decider:
    """Return the decider for a model: by compiled code where that passes its messages."""
    served = equations.temperature == 0 and is_served(equations)
    return (_OneByOne if served else _LayerByLayer)(equations)


class _TieSearch:
    """Searches for configurations of items with ties, and keeps the best one of each."""

    def __init__(
        self, equations: Equations, messages: Messages, sweeps: Tensor, limits: Limits, end: float,
        states: Tensor,
    ) -> None:  # fmt: skip
        self.equations = equations
        self.messages = tuple(message.clone() for message in messages)
        self.limits = limits
        self.end = end
        self.consistent: Tensor | None = None  # (B,) where nothing was left to search for
        self.states = states.clone()
        self.decider = _decider_of(equations)
        self.scores = self.decider.scores(self.states)
        self.left = effort.DECODING_SWEEPS * sweeps.double()
        self.settling = (effort.SETTLING_SWEEPS * sweeps).long()
        # Orders in which to decide ties, and the (B,) items each is for.
        self.paths: list[tuple[_Path, Tensor]] = []

    def run(self, converged: Tensor, read: tuple[Tensor, ...] | None = None) -> None:
        """Search with as many sweeps as each item has left.

        ``read`` are the best states and ties of the beliefs, if they have been computed.
        """
        converged = self._settle(converged)
        if self._is_decided(converged):
            return
        # Messages that did not converge break no ties; chains of changes need none broken.
        chained = self._improve_by_chains(~converged)
        if bool(chained.all()):
            return
        self._find_orders()
        if not self.paths or clock.now() > self.end:
            return
        # The traceback of a tree is exact, that of tables often best; others must leave some time.
        equations = self.equations
        exact = equations.forest or all(isinstance(k, TableKernel) for k in equations.kernels)
        share = torch.where(converged, math.inf if exact else 0.5, 0.2)
        self._trace(torch.where(chained, -1.0, share), read)
        done = _agreed(equations, self.messages, self.states, self.scores, converged)
        if bool(done.all()):
            self.consistent = done
            return
        # What is not among the best of every factor is improved, by changes of one variable where
        # hard zeros do not ask for more.
        done = done | chained | self._improve_by_chains(~done & ~chained)
        passes = (self.left / self.colours.cost).clamp(0, effort.ASCENTS).long()
        rows = (~done & (passes > 0)).nonzero().flatten()
        if len(rows) and clock.now() < self.end:
            some, start = equations.part(self.messages, rows)[0], self.states[rows]
            decider = self._decider_of(some)
            self._take(decider.ascended(start, self.colours, passes[rows], self.end), rows)

    def _improve_by_chains(self, asked: Tensor) -> Tensor:
        """Improve the states of some items by chains of changes; return (B,) where these apply.

        Without hard zeros a variable can change alone, as it does in coordinate ascent.
        """
        rows, none = asked.nonzero().flatten(), torch.zeros_like(asked)
        hard = any(not kernel.bounded for kernel in self.equations.kernels)
        if not len(rows) or not hard or clock.now() > self.end:
            return none
        some, states = self.equations.part(self.messages, rows)[0], self.states[rows]
        states = self._decider_of(some).chained(states, effort.CHAIN_SWEEPS, self.end)
        if states is None:
            return none
        self._take(states, rows)
        return asked

    def _is_decided(self, converged: Tensor) -> bool:
        """Return whether nothing is left to search for: no ties, and states that agree."""
        equations = self.equations
        if not bool(converged.all()):
            return False
        if bool(_tied(equations, equations.beliefs(self.messages)).any()):
            return False
        done = _agreed(equations, self.messages, self.states, self.scores, converged)
        if bool(done.all()):
            self.consistent = done
        return self.consistent is not None

    def _find_orders(self) -> None:
        """Find the orders in which to decide variables, which take long to find in large graphs."""
        equations, begin = self.equations, clock.now()
        if begin + self.decider.seconds() > self.end:
            return
        peels = _peels(equations)
        found = self.decider.paths(peels=bool(peels.any()))
        if found is None:
            return
        outwards, self.colours, peeling, little = found
        if peeling is None or peeling.count > effort.PEELED_LAYERS * outwards.count:
            peeling, peels = outwards, torch.zeros_like(peels)
        self.left = (self.left + little).clamp(min=0.0)
        self.paths = [(outwards, ~peels), (peeling, peels)]

    def _decider_of(self, equations: Equations) -> _Decider:
        return self.decider if equations is self.equations else _decider_of(equations)

    def _settle(self, converged: Tensor) -> Tensor:
        """Run messages that have not converged on with damping; return (B,) which have by then."""
        rows = (~converged).nonzero().flatten()
        sweeps = int(self.settling[rows].amin()) if len(rows) else 0
        if not sweeps or clock.now() > self.end:
            return converged
        equations, messages = self.equations.part(self.messages, rows)
        limits = _damped(self.limits, sweeps, self.end)
        outcome = propagate(equations, messages, limits)
        self.left[rows] -= tuning.DAMPED_SWEEP * outcome.sweeps
        self._take(equations.best_states(equations.beliefs(outcome.messages)), rows)
        for current, new in zip(self.messages, outcome.messages, strict=True):
            current[rows.to(current.device)] = new
        return converged.index_copy(0, rows, outcome.converged.cpu())

    def _trace(self, share: Tensor, read: tuple[Tensor, ...] | None) -> None:
        """Decide tied variables outwards, if that costs at most a share of the sweeps left."""
        for path, every in self.paths:
            items = ((path.cost <= share * self.left) & every).nonzero().flatten()
            if not len(items):
                continue
            some, sent = self.equations.part(self.messages, items)
            if read is None:
                beliefs = some.beliefs(sent)
                states, free = some.best_states(beliefs), _tied(some, beliefs)
            else:
                states, free = (part[items.to(part.device)] for part in read)
            decided = self._decider_of(some).traced(sent, states, free, path, self.end)
            self._take(decided, items)
            self.left[items] -= path.cost

    def _take(self, states: Tensor, rows: Tensor) -> None:
        """Keep the states of those items that improve on the best ones so far."""
        equations = self.equations.part(self.messages, rows)[0]
        rows = rows.to(states.device)
        new = self._decider_of(equations).scores(states)
        taken = better(new, self.scores[rows]).unsqueeze(1)
        self.scores[rows] = torch.where(taken, new, self.scores[rows])
        self.states[rows] = torch.where(taken, states, self.states[rows])


def _peels(equations: Equations) -> Tensor:
    """Return (B,) whether an order by `peeled` suits an item.

    It does if there are hard zeros, and none lets one neighbour alone decide a variable: then
    decisions would have to propagate from neighbour to neighbour.
    """
    hard = torch.zeros(equations.batch, dtype=torch.bool, device="cpu")
    if equations.forest:
        return hard
    fixing = hard.clone()
    for kernel in equations.kernels:
        if not isinstance(kernel, TableKernel):
            hard |= not kernel.bounded
        elif not kernel.bounded:
            possible = kernel.scaled > -math.inf
            hard |= ~possible.flatten(1).all(1).cpu()
            if len(kernel.ports) == 2:
                for slot in (1, 2):
                    fixing |= (possible.sum(slot) < 2).flatten(1).any(1).cpu()
    return hard & ~fixing


def _damped(limits: Limits, sweeps: int, end: float) -> Limits:
    """Return the limits of a number of damped sweeps before the end."""
    schedule = limits.schedule
    if not isinstance(schedule, Flooding | Sequential):
        schedule = Sequential()
    damping = limits.damping if limits.damping.share >= DAMPED.share else DAMPED
    return replace(
        limits, schedule=schedule, damping=damping, progress=None, sweeps=sweeps,
        seconds=None if end == math.inf else end - clock.now(),
    )  # fmt: skip


def _two_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (B, n) largest and second largest values of (B, K, n)."""
    if values.shape[1] > 2:
        best, second = values.topk(2, 1).values.unbind(1)
        return best, second
    one, other = values.unbind(1)
    return torch.maximum(one, other), torch.minimum(one, other)


def _slack(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps ** 0.75)


def _tied(equations: Equations, beliefs: tuple[Tensor, ...]) -> Tensor:
    """Return (B, V) whether the two best states of a variable are equally good."""
    device = equations.unary_device
    tied = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.bool, device=device)
    for c, belief in zip(equations.edges.classes, beliefs, strict=True):
        if c.size < 2 or not len(c.variables):
            continue
        best, second = _two_largest(belief)
        close = best - second <= _slack(belief) * best.abs().clamp(min=1.0)
        tied[:, c.variables] = close & (best > -math.inf)
    return tied


def _agreed(
    equations: Equations, messages: Messages, states: Tensor, known: Tensor, converged: Tensor
) -> Tensor:
    """Return (B,) whether converged messages agree with configurations of known scores."""
    possible = converged & (known[:, 0] == 0).cpu()
    if not bool(possible.any()):
        return possible
    return possible & _consistent(equations, messages, states).cpu()


def _consistent(equations: Equations, messages: Messages, states: Tensor) -> Tensor:
    """Return (B,) whether the configuration is among the best of every factor and variable."""
    good = torch.ones(equations.batch, dtype=torch.bool, device=equations.unary_device)
    for c, belief in zip(equations.edges.classes, equations.beliefs(messages), strict=True):
        taken = belief.gather(1, states[:, c.variables].unsqueeze(1))[:, 0]
        good = good & _among_best(taken, belief.amax(1))
    incoming = equations.incoming(messages)
    for number in range(len(equations.kernels)):
        taken, best = equations.factor_scores(number, incoming, states)
        good = good & _among_best(taken, best)
    return good


def _among_best(taken: Tensor, best: Tensor) -> Tensor:
    slack = 10 * _slack(best) * best.abs().clamp(min=1.0)
    return ((taken >= best - slack) & (taken > -math.inf)).all(1)
