"""Flooding with log-odds in binary pairwise models, and in parity checks by compiled code.

One number for a message takes a third of the time of the two that general sweeps in torch pass,
which is why these models have sweeps of their own where compiled code does not serve, too.
"""

import math
from array import array

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.engines.loopy.arithmetic import BOTTOM, FLOOR
from rdpgraph.engines.loopy.compiled import LIBRARY
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.engines.loopy.records import OddsGroup, OddsModel
from rdpgraph.native import library
from rdpgraph.native.records import numbers


class LogOdds:
    """The messages of a binary pairwise model as log-odds h = log m(1) / m(0), one for each edge.

    A table (a b; c d) turns cavity log-odds h into log (c + d e^h) / (a + b e^h). This is
    `Equations.update` with half the numbers and a third of the operations. The edges at the first
    slots of all factors come first, and those at their second slots follow.
    """

    def __init__(self, equations: Equations, messages: Messages) -> None:
        c = equations.edges.classes[0]
        slots: list[list[Tensor]] = [[], []]
        parts: list[Tensor] = []
        kernels = [each for each in equations.kernels if isinstance(each, TableKernel)]  # all
        items = max((len(kernel.group.log_tables) for kernel in kernels), default=1)
        for number, kernel in enumerate(kernels):
            for slot, segment in enumerate(equations.edges.by_kernel[number]):
                edges = equations.edges.segments[segment]
                slots[slot].append(torch.arange(edges.start, edges.stop, device="cpu"))
            parts.append(kernel.scaled.expand(items, -1, -1, kernel.count))
        order = torch.cat([*slots[0], *slots[1]]).to(c.variable.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)
        tables = torch.cat(parts, 3)
        (a, b), (x, y) = tables[:, 0].unbind(1), tables[:, 1].unbind(1)
        # The numerator and denominator of both directions, as a line in the other end's odds.
        self._lines = [torch.cat(pair, 1) for pair in ((x, b), (y, y), (a, a), (b, x))]
        self._variable = c.variable[order]
        unary = equations.unary[0][:, 1] - equations.unary[0][:, 0]
        self._unary = unary.expand(equations.batch, -1)
        self._boundary = equations.boundary
        self.odds = (messages[0][:, 1] - messages[0][:, 0])[:, order]
        # Room for a sweep: allocated again, it would cost more than what is computed in it.
        self._room = tuple(torch.empty_like(self.odds) for _ in range(3))

    @staticmethod
    def applies(equations: Equations) -> bool:
        """Return whether the model is binary, pairwise and dense, with odds within range."""
        boundary = equations.boundary
        alike = equations.temperature == 1 and LogOdds.alike(equations)
        if boundary is not None:  # one way for all parts
            alike = alike and equations.edges.count > 0
            alike = not bool(boundary.largest(torch.tensor(float(not alike), device="cpu")))
        return alike and _largest_odds(equations) < 0.9 * math.log(torch.finfo(equations.dtype).max)

    @staticmethod
    def alike(equations: Equations) -> bool:
        """Return whether the model is binary, pairwise and dense."""
        if len(equations.edges.classes) != 1 or equations.edges.classes[0].size != 2:
            return False
        if equations.weights is not None or equations.vanishing:
            return False
        return all(isinstance(k, TableKernel) and len(k.ports) == 2 for k in equations.kernels)

    def messages(self) -> Messages:
        """Log-messages whose maximum is 0."""
        odds = self.odds.index_select(1, self._place)
        return (torch.stack([(-odds).clamp(max=0), odds.clamp(max=0)], 1),)

    def step(self, keep: float) -> Tensor:
        """Sweep all messages, with weight ``keep`` for old ones; (B,) the largest change.

        The change is that of `arithmetic.change`, except for a message that turns from one state to
        the other: there it is up to twice as large.
        """
        odds, (cavity, other, new) = self.odds, self._room
        belief = self._unary.index_add(1, self._variable, odds)
        if self._boundary is not None:
            belief = self._boundary.joined([belief.unsqueeze(1)])[0].squeeze(1)
        torch.index_select(belief, 1, self._variable, out=cavity)
        ends = cavity.sub_(odds).exp_().reshape(len(odds), 2, -1)
        half = ends.shape[2]
        other[:, :half], other[:, half:] = ends[:, 1], ends[:, 0]
        x, y, a, b = self._lines
        torch.addcmul(a, b, other, out=cavity)
        torch.addcmul(x, y, other, out=new).div_(cavity).log_()
        size = torch.abs(new, out=cavity).clamp_(min=1.0)
        change = torch.sub(new, odds, out=other).div_(size)
        largest = torch.maximum(change.amax(1), -change.amin(1))
        if keep:
            new.lerp_(odds, keep)
        self.odds, self._room = new, (cavity, other, odds)
        return largest


def _largest_odds(equations: Equations) -> float:
    """Return a bound on the log-odds of all cavities: the sum of those of unaries and tables."""
    unary = equations.unary[0].detach()
    # Two impossible states differ by NaN, which no comparison passes.
    total = (unary[:, 1] - unary[:, 0]).abs().amax(0)
    for kernel in equations.kernels:
        assert isinstance(kernel, TableKernel)
        logs = kernel.scaled.detach()
        logs = logs.log() if equations.temperature else logs
        # The most by which the log-values of two states differ, in the direction of each slot.
        for dim, port in zip((1, 2), kernel.ports, strict=True):
            reach = (logs.select(dim, 1) - logs.select(dim, 0)).abs().amax((0, 1))
            total.index_add_(0, port.variables.to(total.device), reach.expand(kernel.count))
    if equations.boundary is not None:
        total = equations.boundary.joined([total.reshape(1, 1, -1)])[0]
        total = equations.boundary.largest(total.amax())
    largest = float(total.amax())
    return math.inf if math.isnan(largest) else largest


class CompiledOdds:
    """The messages of a binary pairwise model as log-odds, in compiled code: sums or maxima.

    They stand in the order of the edges. The kernel `kernels/messages/odds.h` does what `LogOdds`
    does in one pass over the factors, and holds no more than a number and two places per message.
    """

    def __init__(self, equations: Equations, messages: Messages) -> None:
        edges = equations.edges
        c, dtype = edges.classes[0], equations.dtype
        # Places are found in less time than a sweep takes, and large graphs need the memory.
        small = c.count <= tuning.CACHED_EDGES
        places = edges.remembered("odds", _by_variable) if small else _by_variable(edges)
        variable, starts, incident = places
        unary = (equations.unary[0][:, 1] - equations.unary[0][:, 0]).contiguous()
        self._odds = (messages[0][:, 1] - messages[0][:, 0]).contiguous()
        self._dtype = dtype
        groups, self._kept = array("q"), [variable, starts, incident, unary]
        for number, kernel in enumerate(equations.kernels):
            assert isinstance(kernel, TableKernel)
            first, second = (edges.segments[s] for s in edges.by_kernel[number])
            values = kernel.scaled.detach().contiguous()
            self._kept.append(values)
            groups.extend(
                numbers(
                    OddsGroup(
                        factors=kernel.count,
                        first=first.start,
                        second=second.start,
                        values=values.data_ptr(),
                        values_item=values[0].numel() if len(values) > 1 else 0,
                        tables=values.shape[-1],
                    )
                )
            )
        model = OddsModel(
            maximal=int(equations.temperature == 0),
            variables=len(c.variables),
            edges=c.count,
            group_count=len(equations.kernels),
            groups=groups.buffer_info()[0],
            odds=self._odds.data_ptr(),
            unary=unary.data_ptr(),
            unary_item=len(c.variables) if len(unary) > 1 else 0,
            variable=variable.data_ptr(),
            starts=starts.data_ptr(),
            incident=incident.data_ptr(),
        )
        self._model, self._groups = array("q", numbers(model)), groups

    @staticmethod
    def applies(equations: Equations) -> bool:
        """Return whether the model is binary, pairwise and dense, with odds within range."""
        fits = equations.boundary is None and equations.unary_device.type == "cpu"
        fits = fits and LogOdds.alike(equations) and equations.temperature in (0.0, 1.0)
        if not fits or not 0 < equations.edges.count < 2**31:
            return False
        if not LIBRARY.available(equations.dtype):
            return False
        range_ = math.log(torch.finfo(equations.dtype).max) if equations.temperature else math.inf
        return _largest_odds(equations) < 0.9 * range_

    def step(self, keep: float) -> Tensor:
        """Sweep all messages, with weight ``keep`` for old ones; (B,) the largest change."""
        every = torch.arange(len(self._odds), device="cpu")
        return self.sweeps(every, 1, -1.0, keep)[0][0]

    def sweeps(
        self, items: Tensor, most: int, tolerance: float, keep: float
    ) -> tuple[Tensor, Tensor]:
        """Sweep some items ``most`` times or until within a tolerance: `CompiledMessages.sweep`."""
        changes = torch.zeros(most, len(items), dtype=torch.float64, device="cpu")
        done = torch.zeros(len(items), dtype=torch.long, device="cpu")
        work = len(items) * self._odds.shape[1]
        threads = max(1, min(torch.get_num_threads(), work // tuning.SWEPT_ENTRIES))
        LIBRARY.function("flood", self._dtype)(
            self._model.buffer_info()[0], items.data_ptr(), changes.data_ptr(), done.data_ptr(),
            len(items), most, tolerance, keep, threads,
        )  # fmt: skip
        return changes[: int(done.amax())], done

    def messages(self) -> Messages:
        """Log-messages whose maximum is 0."""
        odds = self._odds
        result = odds.new_empty(len(odds), 2, odds.shape[1])
        torch.neg(odds, out=result[:, 0]).clamp_(max=0)
        torch.clamp(odds, max=0, out=result[:, 1])
        return (result,)


def _by_variable(edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
    """Return the (E,) variable of each edge, and each variable's first place in (E,) its edges."""
    c = edges.classes[0]
    variable = torch.empty(c.count, dtype=torch.int32, device="cpu")
    for where, part in c.each():
        variable[where] = part
    starts = torch.empty(len(c.variables) + 1, dtype=torch.int32, device="cpu")
    incident = torch.empty_like(variable)
    LIBRARY.function("sort_edges", torch.float32)(
        variable.data_ptr(), c.count, len(c.variables), starts.data_ptr(), incident.data_ptr()
    )
    return variable, starts, incident


class ParityMessages:
    """The messages of a model whose factors depend on parities of bits, as log-odds of 0."""

    def __init__(self, even: Tensor, equations: Equations, messages: Messages) -> None:
        self._equations, batch = equations, equations.batch
        starts, order = equations.edges.remembered("parities", _by_factor)
        c = equations.edges.classes[0]
        self._order = order
        self._parts = starts, c.variable[order].contiguous()
        unary = equations.unary[0].detach().double()
        prior = (unary[:, 0] - unary[:, 1]).expand(batch, -1)
        self._logs = prior.T.contiguous(), even.double().expand(batch, -1).T.contiguous()
        odds = messages[0][:, 0] - messages[0][:, 1]
        self._odds = odds[:, order].T.double().contiguous()  # (E, B)
        self._changes = torch.zeros(batch, dtype=torch.float64, device="cpu")

    @staticmethod
    def evens(equations: Equations) -> Tensor | None:
        """Return the (b, F) log-odds that factors' parities are even; None for other models."""
        classes, plain = equations.edges.classes, equations.weights is None
        plain = plain and equations.boundary is None
        if not plain or [c.size for c in classes] != [2] or not equations.edges.count:
            return None
        if equations.temperature not in (0.0, 1.0) or equations.unary_device.type != "cpu":
            return None
        if not bool(equations.unary[0].isfinite().all()):
            return None
        if not library.available(torch.float64, "parities"):
            return None
        odds = [kernel.log_odds() for kernel in equations.kernels]
        each = [part for part in odds if part is not None]
        if len(each) < len(odds):
            return None
        rows = max(map(len, each))
        even = torch.cat([part.expand(rows, -1) for part in each], 1)
        starts = equations.edges.remembered("parities", _by_factor)[0]
        # A hard check of one bit is a hard zero of it, and one of no parity is impossible.
        hard = even.isnan() | (even.isinf() & (starts.diff() == 1))
        return None if bool(hard.any()) else even

    def messages(self) -> Messages:
        """Log-messages whose maximum is 0."""
        odds = torch.empty_like(self._odds)
        odds[self._order] = self._odds
        odds = odds.T.to(self._equations.dtype)
        return (torch.stack([odds.clamp(max=0), (-odds).clamp(max=0)], 1),)

    def step(self, keep: float) -> Tensor:
        """Sweep all messages, with weight ``keep`` for old ones; (B,) the largest change.

        The change is that of `arithmetic.change`, except for a message that turns from one state to
        the other: there it is up to twice as large.
        """
        equations, (starts, variables), odds = self._equations, self._parts, self._odds
        seen = BOTTOM if equations.bounded or equations.forest else FLOOR
        tensors = starts, variables, *self._logs, odds, self._changes
        library.function("parity_flood")(
            *(part.data_ptr() for part in tensors), len(starts) - 1, len(self._logs[0]),
            odds.shape[1], keep, -equations.lowest, seen, int(equations.temperature == 1),
            library.threads(odds.numel(), least=2**14),
        )  # fmt: skip
        return self._changes.clone()


def _by_factor(edges: Edges) -> tuple[Tensor, Tensor]:
    """Return the (F + 1,) first edges of the factors, among edges (E,) in the order of factors."""
    first, parts = 0, list[Tensor]()
    offsets: list[int] = []
    for count in edges.factors:
        offsets.append(first)
        first += count
    for segment in edges.segments:
        rows = edges.ports[segment.kernel][segment.port].rows
        rows = torch.arange(edges.factors[segment.kernel], device="cpu") if rows is None else rows
        parts.append(rows + offsets[segment.kernel])
    factor = torch.cat(parts)
    starts = torch.cat(
        [torch.zeros(1, device="cpu").long(), factor.bincount(minlength=first).cumsum(0)]
    )
    return starts, factor.argsort(stable=True)
