"""Chains whose states are spread over the processes of a mesh."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph._core.shapes import broadcasts
from rdpgraph.distributed import logs, paths, scaled
from rdpgraph.distributed.paths import Columns, RankRows
from rdpgraph.distributed.wire import Split, Wire, fingerprint
from rdpgraph.errors import ModelError
from rdpgraph.logspace.gradients import once, possible_alone, refused
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.structures.chain import recursion
from rdpgraph.structures.chain.checks import checked_lengths, require_path
from rdpgraph.structures.chain.factors import flat_lengths
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.steps import RankSteps
from rdpgraph.structures.chain.tensors import ChainTensors, Parts, RankTensors, flattened
from rdpgraph.structures.draws import checked_count

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class ShardedChain:
    """A `Chain` of which every rank holds some states: their unary potentials, and their columns.

    A step of the recursion multiplies what all states amount to by the columns of the transition
    that are here, and exchanges N numbers an item; with a transition of rank r, r numbers. Each
    rank holds 1/R of the N^2 numbers of the transition, of its exponentials and of its gradient,
    and T N numbers an item. `shard` makes one of a `Chain`.

    All ranks ask the same questions in the same order, as with every model of torch.distributed,
    and take part in the pass back: call ``backward()`` on all of them. Answers that are sharded
    are tensors of the states here, in ``start`` to ``start + n``.

    Args:
        unary: a DTensor (*batch, T, N) of log-potentials (nats), ``Shard(-1)``: the states.
        transition: a DTensor (N, N) or (*batch, T - 1, N, N), [from, to], ``Shard(-1)``, or two,
            the log-factors of a `LowRank`: (*lead, N, r) each, ``Shard(-2)``. Made of what a rank
            has by ``DTensor.from_local``, the whole is never in one place.
        lengths: (*batch,) integers in 0..T, the same on every rank; default: all T.

    Raises:
        ModelError: shapes or placements that do not fit, or that differ between the ranks.

    Example:
        >>> from rdpgraph.distributed import alone, shard
        >>> weather = Chain(torch.zeros(3, 2), torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
        >>> with alone() as mesh:  # or, under torchrun: group()
        ...     here = shard(weather, mesh)
        ...     bool(torch.isclose(here.log_partition(), weather.log_partition()))
        True
    """

    unary: "DTensor"
    transition: "DTensor | tuple[DTensor, DTensor]"
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        from torch.distributed.tensor import DTensor, Shard

        pair = isinstance(self.transition, tuple)
        sides = self.transition if isinstance(self.transition, tuple) else (self.transition,)
        parts = [("unary", self.unary, -1)]
        parts += [("transition", side, -2 if pair else -1) for side in sides]
        for name, part, dim in parts:
            if not isinstance(part, DTensor):
                raise ModelError(
                    f"ShardedChain needs its {name} as a DTensor; got {type(part).__name__} "
                    "(shard(chain, mesh) makes them of a Chain that every rank holds)."
                )
            if tuple(part.placements) not in ((Shard(dim),), (Shard(dim + part.ndim),)):
                raise ModelError(
                    f"ShardedChain needs its {name} placed as Shard({dim}), by states; got "
                    f"{tuple(part.placements)}."
                )
        *batch, total, states = self.unary.shape
        step = (states, states) if not pair else (states, sides[0].shape[-1])
        for side in sides:
            shape = tuple(side.shape)
            lead = (*batch, max(total - 1, 0))
            each = shape[-3:-2] in ((), lead[-1:])
            if shape[-2:] != step or not each or not broadcasts(shape[:-2], lead):
                raise ModelError(
                    f"ShardedChain of {total} steps and {states} states, batch {tuple(batch)}, "
                    f"needs a transition of shape {step} or {(*lead, *step)}; got {shape}."
                )
        if self.lengths is not None:
            alike = torch.zeros(*batch, total, 1, device=self._here.device)
            object.__setattr__(self, "lengths", checked_lengths(self.lengths, alike))
        self.wire.require_alike(
            "shapes, types, lengths or gradients",
            (
                [(tuple(part.shape), str(part.dtype), part.requires_grad) for _, part, _ in parts],
                None if self.lengths is None else self.lengths.tolist(),
            ),
        )
        for part in self._sides:
            if part.shape[-2 if pair else -1] != self.split.local:
                raise ModelError("ShardedChain needs unary and transition sharded alike.")

    @cached_property
    def wire(self) -> Wire:
        """The ranks of the mesh, and how they send to each other."""
        return Wire.of(self.unary.device_mesh)

    @cached_property
    def split(self) -> Split:
        """Which states each rank holds."""
        return Split(self.wire, tuple(self.wire.told(self._here.shape[-1])))

    @property
    def start(self) -> int:
        """The first of the states here."""
        return self.split.start

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front."""
        return tuple(self.unary.shape[:-2])

    @property
    def _here(self) -> Tensor:
        return self.unary.to_local()

    @property
    def _sides(self) -> tuple[Tensor, ...]:
        sides = self.transition if isinstance(self.transition, tuple) else (self.transition,)
        return tuple(side.to_local() for side in sides)

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats, the same on every rank; differentiable once.

        The gradients of the DTensors are sharded as they are. Those of a chain that every rank
        holds, by way of `shard`, are whole on every rank.
        """
        self.wire.asked("log_partition")
        here, *sides = (once(part, _ONCE) for part in (self._here, *self._sides))
        return possible_alone(self._log_partition(here, sides))

    def marginals(self) -> Tensor:
        """(*batch, T, n) the probabilities of the states here; a gradient of them is refused."""
        self.wire.asked("marginals")
        here = self._here.detach().requires_grad_()
        with torch.enable_grad():
            log_z = possible_alone(self._log_partition(here, [p.detach() for p in self._sides]))
            if not here.shape[-2]:
                return here.detach()
            shares = torch.autograd.grad(log_z.sum(), here)[0]
        parts = [part for part in (self._here, *self._sides) if part.requires_grad]
        return refused(shares, _ONCE, *parts) if parts and torch.is_grad_enabled() else shares

    def mode(self) -> Tensor:
        """(*batch, T) one most probable sequence, the same on every rank; O(T N^2 / R).

        A transition of low rank has its columns written out, N^2 / R numbers on each rank.

        Raises:
            ImpossibleEvidenceError: an item has no possible sequence.
        """
        self.wire.asked("mode")
        parts = self._tables()
        states = paths.viterbi(parts, self.split)
        require_path(states.unsqueeze(0), parts.lengths, "mode", self.batch_shape)
        return states.reshape([*self.batch_shape, states.shape[-1]])

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, T) independent exact draws, the same on every rank.

        The generators of the ranks must be in one state. The noise is that of all states, so that
        one seed gives the same draws on any number of ranks; without low rank, those of
        `Chain.sample`.

        Raises:
            ImpossibleEvidenceError: an item has no possible sequence.
        """
        count = checked_count(count)
        self.wire.asked(f"sample({count})")
        self.wire.require_one_state(generator)
        if isinstance(self.transition, tuple):
            parts = self._ranks(self._here, self._sides)
            drawn = paths.draw_by_rank(parts, self.split, count, generator)
        else:
            parts = self._tables()
            drawn = paths.draw(parts, self.split, count, generator)
        require_path(drawn[:1], parts.lengths, "samples", self.batch_shape)
        return drawn.reshape([count, *self.batch_shape, drawn.shape[-1]])

    def lazily(self) -> Chain:
        """The chain for `infer` with an estimator that keeps a few states, as `Randomized`.

        Unary potentials are whole on every rank, O(T N); the transition stays where it is, and is
        evaluated where an estimator asks: O(T K^2) numbers to keep K states. Every rank makes the
        same choices, from generators of one state, and asks the same questions in the same order;
        gradients reach the shards.
        """
        self.wire.asked("lazily")
        flat = self._here.flatten(0, -2)
        unary = self.split.known(flat).reshape(self.unary.shape)
        if isinstance(self.transition, tuple):
            left, right = self._sides
            return Chain(unary, RankRows(left, right, self.split), lengths=self.lengths)
        return Chain(unary, Columns(self._sides[0], self.split), lengths=self.lengths)

    def _log_partition(self, here: Tensor, sides: Sequence[Tensor]) -> Tensor:
        if not here.shape[-2]:
            return here.sum((-2, -1))
        if isinstance(self.transition, tuple):
            return logs.low_rank(self._ranks(here, sides), split=self.split).reshape(
                self.batch_shape
            )
        table = flattened(sides[0], self.batch_shape)
        unary, transition, lengths = Parts.of(here, table, self._flat_lengths())
        routes = (partial(way.log_partition, split=self.split) for way in (scaled, logs))
        attempts = recursion.stages(unary.dtype, unary.device, *routes)
        values = recursion.first_safe(attempts, unary, transition, lengths)
        return values.to(unary.dtype).reshape(self.batch_shape)

    def _flat_lengths(self) -> Tensor:
        return flat_lengths(self.lengths, self.unary.shape[:-1], self._here)

    def _ranks(self, here: Tensor, sides: Sequence[Tensor]) -> RankTensors:
        left, right = (flattened(side, self.batch_shape) for side in sides)
        flat = here.reshape([math.prod(self.batch_shape), *here.shape[-2:]])
        return RankTensors(flat, RankSteps(left, right), self._flat_lengths())

    @torch.no_grad()
    def _tables(self) -> ChainTensors:
        """With the columns here, (N, n), written out."""
        sides = [flattened(side, self.batch_shape) for side in self._sides]
        pair = isinstance(self.transition, tuple)
        columns = paths.columns(sides[0], sides[1], self.split) if pair else sides[0]
        return Parts.of(self._here.detach(), columns.detach(), self._flat_lengths())


def shard(chain: Chain, mesh: "DeviceMesh") -> ShardedChain:
    """A chain that every rank holds, spread over a mesh: each keeps the columns of its states.

    The states go to the ranks as ``torch.chunk`` has them. Gradients come back whole, to every
    rank. A chain too large to be held is declared by its shards: `ShardedChain`.

    Args:
        chain: the same on every rank, with a transition that is a tensor or a `LowRank`.
        mesh: of one dim.

    Raises:
        ModelError: chains that differ between the ranks, or another kind of transition.
    """
    wire, low = Wire.of(mesh), chain.transition
    if not isinstance(low, Tensor | LowRank):
        raise ModelError(
            f"shard needs a transition that is a tensor or a LowRank; got {type(low).__name__}."
        )
    parts = [low] if isinstance(low, Tensor) else [low.log_left, low.log_right]
    wire.require_alike(
        "potentials",
        [(tuple(part.shape), str(part.dtype), fingerprint(part)) for part in (chain.unary, *parts)],
    )
    unary = _placed(chain.unary, mesh, -1)
    if isinstance(low, Tensor):
        return ShardedChain(unary, _placed(low, mesh, -1), chain.lengths)
    return ShardedChain(
        unary, (_placed(low.log_left, mesh, -2), _placed(low.log_right, mesh, -2)), chain.lengths
    )


def _placed(whole: Tensor, mesh: "DeviceMesh", dim: int) -> "DTensor":
    """Sharded in one dim; gradients are gathered again, whole on every rank."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    held = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    return held.redistribute(mesh, [Shard(dim + whole.ndim)])


_ONCE = (
    "log Z of a ShardedChain is differentiable once, and its marginals are not; ask a Chain on one "
    "process."
)
