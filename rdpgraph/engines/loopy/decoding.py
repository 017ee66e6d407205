"""Configurations decoded from max-beliefs, with a check of their consistency."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import first_best
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.engines.loopy.orders import Order, orders, peeled
from rdpgraph.engines.loopy.propagation import Limits, Outcome, propagate
from rdpgraph.engines.loopy.schedules import Flooding, LogDamping, Sequential
from rdpgraph.engines.loopy.traceback import ascended, better, costs, scores, traced
from rdpgraph.plan import clock

_ASCENT, _PASSES = 0.3, 10
"""Largest part of the sweeps that coordinate ascent may take, and most passes."""
_ALL, _SETTLING = 0.8, 0.6
"""Part of the sweeps that decoding may take in all, as scores and beliefs take time too; and the
part of them in which oscillating messages may settle, damped."""
_EACH, _DAMPED = 4, LogDamping(0.5)
"""Sweeps after each fixing of variables, and their damping, which ends oscillations."""
_OF_DAMPED = 1.2
"""Cost of a damped sweep, in sweeps."""
_DEEP = 2
"""Most layers of the peeling order, relative to the outward order: more of them come from a core in
which every variable has many factors, where peeling promises nothing."""
_ORDERING = 1e-5
"""Seconds to compute an order, per edge, rounded up."""
_WIDE = 500
"""Additional sweeps for models with factors so wide that there is nothing but sweeps."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Configurations decoded from max-beliefs."""

    states: Tensor  # (B, active variables)
    # (B,) the messages converged and every factor's best configurations include this one: then it
    # is optimal on trees, and under tree-reweighting anywhere
    consistent: Tensor
    cut: bool = False  # the time limit ended the search
    crosses = True


def decode(equations: Equations, outcome: Outcome, limits: Limits) -> Decoded:
    """Decode the best state of every variable, with ties broken so that neighbours agree.

    Messages that have not converged go on, damped. Items with ties are traced back. If the result
    is not among the best of every factor, one variable of every connected set of tied ones is fixed
    again and again while the messages run on, and the best configuration so far is improved one
    variable at a time. All of it takes no more sweeps than the messages took before.
    """
    messages = outcome.messages
    beliefs = equations.beliefs(messages)
    states, converged = _states(equations, beliefs), outcome.converged.cpu()
    if not equations.edges.count or not equations.batch:
        return Decoded(states, torch.ones(equations.batch, dtype=torch.bool, device="cpu"))
    end = math.inf if limits.seconds is None else clock.now() + limits.seconds
    tied = _tied(equations, beliefs)
    items = (tied.any(1).cpu() | ~converged).nonzero().flatten()
    if len(items) and clock.now() < end:
        read = tuple(values[items.to(values.device)] for values in (states, tied))
        part = _some(equations, messages, items)
        search = _Search(*part, outcome.sweeps[items], limits, end, read[0])
        search.run(converged[items], read if bool(converged[items].all()) else None)
        states[items.to(states.device)] = search.states
        if search.consistent is not None and len(items) == equations.batch:
            return Decoded(states, search.consistent & converged, clock.now() > end)
    cut = bool(len(items)) and clock.now() > end
    if not bool(converged.any()):
        return Decoded(states, converged, cut)
    known = scores(equations, states)
    return Decoded(states, _agreed(equations, messages, states, known, converged), cut)


@dataclass(frozen=True, eq=False)
class _Path:
    """An order in which to decide ties, its cost in sweeps, and the (B,) items it is for."""

    order: Order
    cost: float
    items: Tensor


class _Search:
    """Search for configurations of items with ties; keeps the best one of each."""

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
        self.scores = scores(equations, self.states)
        hurried = end < math.inf and clock.now() + _ORDERING * equations.edges.count > end
        self.orders = None if hurried else orders(equations.edges)
        self.left = _ALL * sweeps.double()
        self.settling = (_SETTLING * sweeps).long()
        if self.orders is None:
            self.left += _WIDE
            return
        self.costs = costs(equations, self.orders)
        self.left += self.costs.little
        every = torch.ones(equations.batch, dtype=torch.bool, device="cpu")
        self.paths = [_Path(self.orders[0], self.costs.outwards, every)]
        peels = _peels(equations)
        first = peeled(equations.edges) if bool(peels.any()) else None
        if first is not None and len(first.layers) <= _DEEP * len(self.orders[0].layers):
            cost = costs(equations, (first, self.orders[1])).outwards
            self.paths = [replace(self.paths[0], items=~peels), _Path(first, cost, peels)]

    def run(self, converged: Tensor, read: tuple[Tensor, ...] | None = None) -> None:
        """Search with as many sweeps as each item has left.

        ``read`` are the best states and ties of the beliefs, if they have been computed.
        """
        every, equations = torch.arange(self.equations.batch, device="cpu"), self.equations
        converged = self._settle(converged)
        # The traceback of a tree is exact, that of tables often best; others must leave some time.
        exact = equations.forest or all(isinstance(k, TableKernel) for k in equations.kernels)
        share = torch.where(converged, math.inf if exact else 0.5, 0.2)
        self._trace(equations, self.messages, every, share, read)
        done = consistent = _agreed(equations, self.messages, self.states, self.scores, converged)
        rows = every[~done]
        if not len(rows):
            self.consistent = consistent
            return
        passes = torch.zeros(len(every), dtype=torch.long, device="cpu")
        room, reserved, cost = self.left, passes, 1.0
        if self.orders is not None:
            room = self.left / self.costs.colours
            passes = (_ASCENT * room).clamp(0, _PASSES).long()
            reserved = self.costs.outwards + passes * self.costs.colours
            cost = self.costs.fixing
        sweeps = ((self.left - reserved) / cost).long()
        rows = rows[sweeps[rows] >= _EACH]
        if self.orders is not None:  # what is too little for messages is left to ascent
            passes = torch.where(sweeps < _EACH, room.clamp(0, _PASSES).long(), passes)
        if len(rows):
            equations, messages = _some(self.equations, self.messages, rows)
            equations, messages = _rounds(equations, messages, sweeps[rows], self.limits, self.end)
            self._take(_states(equations, equations.beliefs(messages)), rows)
            self._trace(equations, messages, rows, 1.0)
        rows = every[~done & (passes > 0)]
        if self.orders is not None and len(rows) and clock.now() < self.end:
            equations = _some(self.equations, self.messages, rows)[0]
            start, order = self.states[rows], self.orders[1]
            self._take(ascended(equations, start, order, passes[rows], self.end), rows)

    def _settle(self, converged: Tensor) -> Tensor:
        """Run unconverged messages on, damped; return (B,) which have converged then."""
        rows = (~converged).nonzero().flatten()
        sweeps = int(self.settling[rows].amin()) if len(rows) else 0
        if not sweeps or clock.now() > self.end:
            return converged
        equations, messages = _some(self.equations, self.messages, rows)
        limits = _damped(self.limits, sweeps, self.end)
        outcome = propagate(equations, messages, limits)
        self.left[rows] = (self.left[rows] - _OF_DAMPED * outcome.sweeps).clamp(min=0.0)
        self._take(_states(equations, equations.beliefs(outcome.messages)), rows)
        for current, new in zip(self.messages, outcome.messages, strict=True):
            current[rows.to(current.device)] = new
        return converged.index_copy(0, rows, outcome.converged.cpu())

    def _trace(
        self, equations: Equations, messages: Messages, rows: Tensor, share: Tensor | float,
        read: tuple[Tensor, ...] | None = None,
    ) -> None:  # fmt: skip
        """Decide tied variables outwards, at most at a share of each item's remaining sweeps."""
        if self.orders is None or clock.now() > self.end:
            return
        for path in self.paths:
            cheap = (path.cost <= share * self.left[rows]) & path.items[rows]
            items, places = rows[cheap], cheap.nonzero().flatten()
            if not len(items):
                continue
            subset, sent = _some(equations, messages, places)
            if read is None:
                beliefs = subset.beliefs(sent)
                states, free = _states(subset, beliefs), _tied(subset, beliefs)
            else:
                states, free = (part[places.to(part.device)] for part in read)
            self._take(traced(subset, sent, states, free, path.order, self.end), items)
            self.left[items] -= path.cost

    def _take(self, states: Tensor, rows: Tensor) -> None:
        """Keep the states of items that improve on the best ones so far."""
        equations = _some(self.equations, self.messages, rows)[0]
        rows = rows.to(states.device)
        new = scores(equations, states)
        taken = better(new, self.scores[rows]).unsqueeze(1)
        self.scores[rows] = torch.where(taken, new, self.scores[rows])
        self.states[rows] = torch.where(taken, states, self.states[rows])


def _peels(equations: Equations) -> Tensor:
    """(B,) whether there are hard zeros, none of which decides a variable by one neighbour alone.

    Otherwise decisions must propagate from neighbour to neighbour.
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


def _rounds(
    equations: Equations, messages: Messages, sweeps: Tensor, limits: Limits, end: float
) -> tuple[Equations, Messages]:
    """Equations with ties fixed round by round, and the messages of the last round."""
    whole, unary = equations, [u.expand(equations.batch, -1, -1).clone() for u in equations.unary]
    ended = tuple(message.clone() for message in messages)
    items, settled = (
        torch.arange(equations.batch, device="cpu"),
        torch.ones(equations.batch, dtype=torch.bool, device="cpu"),
    )
    while True:
        beliefs = equations.beliefs(messages)
        tied = _tied(equations, beliefs)
        keep = ((tied.any(1).cpu() | ~settled) & (sweeps >= _EACH)).nonzero().flatten()
        if not len(keep) or clock.now() > end:
            return whole.with_unary(tuple(unary)), ended
        if len(keep) < len(items):
            equations, messages = _some(equations, messages, keep)
            items, sweeps, tied, settled = items[keep], sweeps[keep], tied[keep], settled[keep]
            beliefs = tuple(belief[keep] for belief in beliefs)
        equations = equations.with_unary(
            _fixed(equations, beliefs, _first_of_each(equations.edges, tied))
        )
        outcome = propagate(equations, messages, _damped(limits, _EACH, end))
        messages, sweeps = outcome.messages, sweeps - outcome.sweeps
        settled = outcome.converged.cpu()
        for place in range(len(unary)):
            unary[place][items], ended[place][items] = equations.unary[place], messages[place]


def _damped(limits: Limits, sweeps: int, end: float) -> Limits:
    """Limits for a number of damped sweeps before the end."""
    schedule = limits.schedule
    if not isinstance(schedule, Flooding | Sequential):
        schedule = Sequential()
    damping = limits.damping if limits.damping.share >= _DAMPED.share else _DAMPED
    return replace(
        limits, schedule=schedule, damping=damping, progress=None, sweeps=sweeps,
        seconds=None if end == math.inf else end - clock.now(),
    )  # fmt: skip


def _some(equations: Equations, messages: Messages, rows: Tensor) -> tuple[Equations, Messages]:
    if len(rows) == equations.batch:
        return equations, messages
    return equations.items(rows), tuple(m[rows.to(m.device)] for m in messages)


def _states(equations: Equations, beliefs: tuple[Tensor, ...]) -> Tensor:
    """(B, V) first best state of every variable."""
    device = equations.unary_device
    states = torch.zeros(
        equations.batch, len(equations.edges.home), dtype=torch.long, device=device
    )
    for c, belief in zip(equations.edges.classes, beliefs, strict=True):
        states[:, c.variables] = first_best(belief)
    return states


def _two_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and second largest (B, n) of (B, K, n)."""
    if values.shape[1] > 2:
        best, second = values.topk(2, 1).values.unbind(1)
        return best, second
    one, other = values.unbind(1)
    return torch.maximum(one, other), torch.minimum(one, other)


def _slack(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps ** 0.75)


def _tied(equations: Equations, beliefs: tuple[Tensor, ...]) -> Tensor:
    """(B, V) whether the two best states of a variable are equally good."""
    device = equations.unary_device
    tied = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.bool, device=device)
    for c, belief in zip(equations.edges.classes, beliefs, strict=True):
        if c.size < 2 or not len(c.variables):
            continue
        best, second = _two_largest(belief)
        close = best - second <= _slack(belief) * best.abs().clamp(min=1.0)
        tied[:, c.variables] = close & (best > -math.inf)
    return tied


def _first_of_each(edges: Edges, tied: Tensor) -> Tensor:
    """(B, V) one variable of every set of tied ones that factors connect."""
    factor = edges.remembered("factor", _factor_of_each_edge).to(tied.device)
    variable = edges.variable.to(tied.device).expand(len(tied), -1)
    factor, count = factor.expand(len(tied), -1), tied.shape[1]
    numbers = torch.arange(count, device=tied.device)
    labels = torch.where(tied, numbers, count)
    none = labels.new_full((len(tied), sum(edges.factors)), count)
    while True:
        least = none.scatter_reduce(1, factor, labels.gather(1, variable), "amin")
        reached = labels.scatter_reduce(1, variable, least.gather(1, factor), "amin")
        reached = torch.where(tied, reached, count)
        ends = torch.nn.functional.pad(reached, (0, 1), value=count)
        reached = ends.gather(1, reached)
        if torch.equal(reached, labels):
            return tied & (labels == numbers)
        labels = reached


def _factor_of_each_edge(edges: Edges) -> Tensor:
    """(E,) factor of each edge, numbered kernel by kernel."""
    parts: list[Tensor] = []
    for segment in edges.segments:
        rows = edges.ports[segment.kernel][segment.port].rows
        first, count = sum(edges.factors[: segment.kernel]), edges.factors[segment.kernel]
        parts.append(first + (torch.arange(count, device="cpu") if rows is None else rows))
    return torch.cat(parts)


def _fixed(equations: Equations, beliefs: tuple[Tensor, ...], chosen: Tensor) -> tuple[Tensor, ...]:
    """Unary log-potentials that fix chosen variables (B, V) at their first best state."""
    result: list[Tensor] = []
    for c, unary, belief in zip(equations.edges.classes, equations.unary, beliefs, strict=True):
        others = torch.arange(c.size, device=unary.device).reshape(-1, 1)
        barred = chosen[:, c.variables].unsqueeze(1) & (others != belief.argmax(1, keepdim=True))
        result.append(torch.where(barred, -math.inf, unary))
    return tuple(result)


def _agreed(
    equations: Equations, messages: Messages, states: Tensor, known: Tensor, converged: Tensor
) -> Tensor:
    """(B,) whether the messages have converged and agree with the configuration of known score."""
    possible = converged & (known[:, 0] == 0).cpu()
    if not bool(possible.any()):
        return possible
    return possible & _consistent(equations, messages, states).cpu()


def _consistent(equations: Equations, messages: Messages, states: Tensor) -> Tensor:
    """(B,) whether the configuration is among the best of every factor and variable."""
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
