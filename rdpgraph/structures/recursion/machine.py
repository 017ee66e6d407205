"""Running programs on the compiled machine: sums, gradients, maxima, draws and the k best."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.logspace.gradients import is_transformed
from rdpgraph.native import library
from rdpgraph.structures.recursion.inputs import (
    DIRECT,
    TABLE,
    Inputs,
    inputs_of,
    known_program,
    places_of,
    table_in_rows,
    tables_of,
    zeros,
)
from rdpgraph.structures.recursion.program import Program
from rdpgraph.structures.recursion.tape import Tape


@dataclass(frozen=True, eq=False)
class Run:
    """A program with its values."""

    program: Program  # the steps
    inputs: Inputs  # their tensors
    goal: Tensor  # (B,) the value of the last step
    values: Tensor  # of all steps after the potentials of the sites
    room: Tensor  # the tables, prepared for products
    levels: Tensor | None  # in float64, what is taken off rows of values; None: nothing
    # Of links, before products and after them, for gradients and losses; the first only if kept.
    rows: Tensor | None
    first_row: int | None  # the first byte of links in values, if these lie as those rows do
    tables: "array[int]"  # addresses and strides of the inputs
    best: bool  # whether values are maxima
    # Whether sums of large numbers have lost digits of float32, whether there is a NaN, whether
    # rows of pairs are among those before products, and whether these are not kept, but made again
    # for one gradient in place of values (2: they were).
    noted: "array[int]"
    arrays: "array[int]"  # the addresses of all of these

    def value(self, number: int) -> Tensor:
        """(B, P, K) of a step; of no places if it is not stored."""
        if number in self.program.unstored:
            return self.values.new_empty(len(self.inputs.unary), 0, self.program.ranges[number][2])
        return self._part(self.values, number)

    def _part(self, values: Tensor, number: int) -> Tensor:
        """(B, P, K) of a step, in a tensor of all after the sites."""
        before, places, labels, _, start, hop = self.program.ranges[number]
        unary, batch = self.inputs.unary, self.inputs.unary.shape[0]
        at = batch * before + start
        part = values[at - unary.numel() :] if at >= unary.numel() else unary.flatten()[at:]
        return part.as_strided((batch, places, labels), (hop, labels, 1))

    def linked(self, values: Tensor, labels: int, every: int = 1) -> Tensor:
        """(L, B, K) of links of one place and so many labels, in a tensor of all after the sites.

        Of all links by tables or each second one; these lie at equal distances.
        """
        links, batch = self.program.links[every - 1 :: every], self.inputs.unary.shape[0]
        first, after = [*links, 0, 0][:2]
        hop = batch * (after - first) if len(links) > 1 else 0
        part = values[batch * first - self.inputs.unary.numel() :]
        return part.as_strided((len(links), batch, labels), (hop, labels, 1))

    def _all(self, number: float) -> tuple[Tensor, Tensor, Tensor]:
        """A number for each of all values; for those of the sites; and for the others."""
        unary = self.inputs.unary
        every = self.values.new_full((unary.numel() + self.values.numel(),), number)
        return every, every[: unary.numel()].view(unary.shape), every[unary.numel() :]

    def gradients(
        self, gradient: Tensor, wanted: Sequence[bool], seeds: tuple[Tensor, int] | None = None
    ) -> list[Tensor | None]:
        """Gradients in the potentials and each slot, if ``wanted``, given that of the goal (B,).

        And those of `linked` values as seeds, (L, B, K), with which links they are.
        """
        if self.noted[3] > 1:
            again = run(self.program, self.inputs, whole=self.levels is None, rows=True, once=True)
            return again.gradients(gradient, wanted, seeds)
        dense = self.first_row is not None
        sites, below = (zeros(part, dense=dense) for part in (self.inputs.unary, self.values))
        if seeds is not None:
            self.linked(below, seeds[0].shape[2], seeds[1]).copy_(seeds[0])
        after = self._rows_after() if self.first_row is None else below
        first = self.first_row or 0
        if self.noted[3]:
            self.arrays[7], self.noted[3] = self.values.data_ptr() + first, 2
        pairs, rooms = self.program.pairs, self.tables[7::TABLE]
        sums = self._extras(
            [slot in pairs and use and rooms[slot] != DIRECT for slot, use in enumerate(wanted)]
        )
        extras = self._down(gradient, wanted, (sites, below), after.data_ptr() + first, sums)
        return self._collected(gradient, wanted, sites, below, extras)

    def second(
        self, gradient: Tensor, moves: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The goal's derivative (B,) along ``moves`` of the inputs, and that of `gradients`."""
        (below, *parts), heads, tails = self._all(0.0), self._rows_after(), self._rows_after()
        none = [False] * len(wanted)
        self._down(gradient, none, parts, heads.data_ptr(), self._extras(none))
        parts = [None if move is None else move.double().contiguous() for move in moves]
        (along, _, means), (turns, sites, others) = self._all(0.0), self._all(0.0)
        room = torch.empty_like(self.room)
        kept = self.values.new_empty(len(gradient) * self.program.row_sizes[1])
        extras = self._extras(wanted)
        moved, places = places_of(parts), places_of(extras)
        library.function("tape_second")(
            self.addresses, below.data_ptr(), moved.buffer_info()[0], along.data_ptr(),
            room.data_ptr(), turns.data_ptr(), kept.data_ptr(), heads.data_ptr(), tails.data_ptr(),
            places.buffer_info()[0], len(self.program.ranges), len(gradient), len(moves),
            library.threads(self.program.work * len(gradient), len(gradient)),
        )  # fmt: skip
        gradients = self._collected(gradient, wanted, sites, others, extras)
        return self._part(means, -1).reshape(-1), gradients

    def _rows_after(self) -> Tensor:
        """Room for rows of links after products."""
        return zeros(self.values, len(self.inputs.unary) * self.program.row_sizes[2])

    def _extras(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Zeros for the gradients of tables, by slot."""
        rows, given = self.program.rows, self.inputs.given
        return [
            zeros(given[slot - 1], dense=True) if use and slot in rows else None
            for slot, use in enumerate(wanted)
        ]

    def _down(
        self, gradient: Tensor, wanted: Sequence[bool], below: Sequence[Tensor], after: int,
        products: Sequence[Tensor | None],
    ) -> list[Tensor | None]:  # fmt: skip
        """Compute gradients of sites and other values, and links' rows; return those of tables.

        The address ``after`` is that of links' rows; ``products`` of the rows of pairs, summed,
        become those of their tables.
        """
        batch, gradient = len(gradient), gradient.to(self.values.dtype)
        extras = self._extras(wanted)
        places = places_of([*extras, *products])
        library.function("down", self.values.dtype)(
            self.addresses, gradient.data_ptr(), *places_of(below), after, places.buffer_info()[0],
            len(self.program.ranges), batch, len(wanted), gradient.stride(0),
            library.threads(self.program.work * batch, batch if batch > 1 else None),
        )  # fmt: skip
        return [one if more is None else more for one, more in zip(extras, products, strict=True)]

    def _collected(
        self, gradient: Tensor, wanted: Sequence[bool], sites: Tensor, below: Tensor,
        extras: Sequence[Tensor | None],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients by slot, of those of sites, other values and tables; NaN with the goal."""
        results: list[Tensor | None] = [sites if wanted[0] else None]
        for slot, (use, given) in enumerate(zip(wanted[1:], self.inputs.given, strict=True), 1):
            result = extras[slot]
            if use and result is None:
                part = self._part(below, self.program.leaves[slot])
                result = part.sum_to_size(given.shape).clone()
            results.append(result)
        if self.noted[1] and bool((lost := self.goal.isnan() & (gradient != 0)).any()):
            for result in results:
                if result is not None:
                    count = 1 if result.ndim == 2 else len(result)
                    spoilt = lost.reshape(-1, count).any(0)
                    result.masked_fill_(spoilt.reshape(-1, *(1,) * (result.ndim - 1)), math.nan)
        return results

    @property
    def differentiable_twice(self) -> bool:
        """Return whether `second` is for this log-sum, which needs rows of links, too."""
        return self.values.dtype == torch.float64 and bool(self.noted[2])

    def most(self) -> Tensor:
        """(B, sites, K) the best score with each state of each site, given maxima; -inf: none."""
        program, unary = self.program, self.inputs.unary
        batch, (above, sites, others) = unary.shape[0], self._all(-math.inf)
        self._part(others, -1).view(-1).copy_(self.goal)
        library.function("most", unary.dtype)(
            self.addresses, above.data_ptr(), len(program.ranges), batch,
            len(self.inputs.given) + 1, library.threads(program.work * batch, batch),
        )  # fmt: skip
        return sites.clone()

    def descend(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(3, U) derivation, site and state of all sites used by best derivations, or draws.

        Number d of item b is derivation d * B + b; each draw has a separate stream of numbers.
        """
        return self._used(self._descended(None, None, count, generator))

    def states(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return (count, B, sites) states that `descend` finds, -1 for sites that are not used."""
        return self._states(None, count, generator)

    def perturbed(self, noise: Tensor) -> Tensor:
        """(count, B, sites) the states of largest noise (count, B, sites, K) and log-probability.

        Each given the states already chosen, of labels that are the states of sites; draws, where
        the noise is Gumbel's. -1 as for `states`.
        """
        return self._states(noise.to(self.values.dtype).contiguous(), len(noise), None)

    def _states(
        self, noise: Tensor | None, count: int, generator: torch.Generator | None
    ) -> Tensor:
        batch, sites, _ = self.inputs.unary.shape
        states = torch.full((count, batch, sites), -1, device="cpu")
        held = self._descended(states, noise, count, generator)
        library.function("taken", self.inputs.unary.dtype)(held.buffer_info()[0], None)
        return states

    def _descended(
        self, states: Tensor | None, noise: Tensor | None, count: int,
        generator: torch.Generator | None,
    ) -> "array[int]":  # fmt: skip
        """The address and length of a list of the sites used; written to states, if given."""
        batch, dtype = self.inputs.unary.shape[0], self.inputs.unary.dtype
        seed = 0
        if not self.best and noise is None:
            device = "cpu" if generator is None else generator.device
            numbers = torch.empty((), dtype=torch.int64, device=device)
            seed = int(numbers.random_(generator=generator))
        held = array("q", (0, 0))
        library.function("descend", dtype)(
            self.addresses, held.buffer_info()[0],
            *[None if part is None else part.data_ptr() for part in (states, noise)],
            len(self.program.ranges), batch, len(self.inputs.given) + 1, count, seed, self.best,
            library.threads(self.program.work * (batch * count), batch * count),
        )  # fmt: skip
        return held

    def losses(self, other: "Run", *, divergence: bool) -> Tensor:
        """(B,) the mean over derivations of minus their log-probability in another run.

        Both are log-sums of one program in float64, this one with rows of links; for a
        ``divergence`` less the entropy. +inf where the other forbids what is possible, and 0 where
        nothing is.
        """
        (losses, _, others), room = self._all(0.0), torch.empty_like(self.room)
        batch = self.inputs.unary.shape[0]
        library.function("tape_losses")(
            self.addresses, other.addresses, losses.data_ptr(), room.data_ptr(),
            len(self.program.ranges), batch, len(self.inputs.given) + 1, divergence,
            library.threads(self.program.work * batch, batch),
        )  # fmt: skip
        return self._part(others, -1).reshape(-1)

    def k_best(self, count: int) -> tuple[Tensor, Tensor]:
        """(3, U) the best derivations as `descend`, and (count, B) their scores; -inf: none.

        By lazy lists of the nodes (Huang and Chiang 2005, algorithm 3). A score is the sum of the
        entries of inputs that the derivation reads, and differentiable in these.
        """
        held, there = self._listed(None, count)
        reads, unary = self._used(held).split(held[2:].tolist(), 1), self.inputs.unary
        scores = self.values.new_zeros(count * len(there))
        for part, (tree, row, column) in zip((unary, *self.inputs.given), reads, strict=True):
            if part.is_floating_point():
                entries = part.reshape(-1).index_select(0, row * part.shape[-1] + column)
                scores = scores.index_add(0, tree, entries)
        few = torch.arange(count, device="cpu").unsqueeze(1) >= there
        tree, row, state = reads[0]
        used = torch.stack((tree, row % unary.shape[1], state))
        return used, scores.view(count, -1).masked_fill(few, -math.inf)

    def k_best_states(self, count: int) -> Tensor:
        """(count, B, sites) the states of `k_best`; -1 at unused sites, and where none is left."""
        batch, sites, _ = self.inputs.unary.shape
        states = torch.full((count, batch, sites), -1, device="cpu")
        held, _ = self._listed(states, count)
        library.function("taken", self.inputs.unary.dtype)(held.buffer_info()[0], None)
        return states

    def _listed(self, states: Tensor | None, count: int) -> tuple["array[int]", Tensor]:
        """The address and length of a list, and the entries read of each slot; (B,) how many are.

        The list is of the entries that the best derivations read; of none if states are given.
        """
        batch, slots = self.inputs.unary.shape[0], len(self.inputs.given) + 1
        held = array("q", (0,) * (slots + 2))
        there = torch.empty(batch, dtype=torch.int64, device="cpu")
        library.function("lists", self.inputs.unary.dtype)(
            self.addresses, held.buffer_info()[0], None if states is None else states.data_ptr(),
            there.data_ptr(), len(self.program.ranges), batch, slots, count,
            library.threads(self.program.work * batch, batch),
        )  # fmt: skip
        return held, there

    def _used(self, held: "array[int]") -> Tensor:
        """(3, U) the result that the library holds at an address; frees it."""
        result = torch.empty(held[1], 3, dtype=torch.int64, device="cpu")
        taken = library.function("taken", self.inputs.unary.dtype)
        taken(held.buffer_info()[0], result.data_ptr())
        return result.T

    @property
    def addresses(self) -> int:
        """The address of the addresses of all arrays of a run."""
        return self.arrays.buffer_info()[0]


def program_of(tape: Tape) -> Program | None:
    """The program of a tape that has a goal, if the machine is there and has all steps."""
    return known_program(tape) if serves(tape) else None


def serves(tape: Tape) -> bool:
    """Return whether the machine is there for a tape."""
    every = tape.states is None and tape.unary.is_cpu
    return every and not is_transformed() and library.available(tape.dtype)


def run(
    program: Program, inputs: Inputs, *, best: bool = False, whole: bool = True,
    rows: bool = False, once: bool = False, alike: bool = False,
) -> Run:  # fmt: skip
    """Compute the values of all steps, log-sums or maxima.

    In float64 where float32 with levels lacks digits, as near sums of large numbers.

    Args:
        program: the steps.
        inputs: their tensors.
        best: whether maxima.
        whole: whether values are read one by one; else those in float32 have levels taken off.
        rows: whether to keep rows of links for `Run.gradients` and `Run.losses`.
        once: whether only those that `Run.gradients` needs, once or, run again, more often.
        alike: whether expanded tables are prepared once for all items, for `Run.gradients` only.
    """
    unary = inputs.unary
    batch, dtype = unary.shape[0], unary.dtype
    tables, size = tables_of(program, inputs, alike=alike)
    goal = unary.new_empty(batch)
    values = zeros(unary, batch * program.size - unary.numel(), dense=True)
    room = zeros(unary, size, dense=True)
    levels = None
    if dtype == torch.float32 and not whole:
        levels = unary.new_empty(batch * program.levels, dtype=torch.float64)
    plain, before, after = program.row_sizes
    pairs = not once or plain == before
    table, first, again = table_in_rows(program, tables), None, False
    if table is not None:
        first = (batch * (program.first_link or 0) - unary.numel()) * unary.element_size()
        # Series of narrow ones have rows that are not made of values.
        again = once and dtype == torch.float32 and table[3] > library.panel_width(4)
        again = again and table[7] != DIRECT
    before = 0 if again else before if pairs else plain
    kept = zeros(unary, batch * (before + after), dense=table is not None) if rows else None
    noted = array("q", [0, 0, pairs, again])
    fixed = program.values, program.steps, program.index
    arrays = places_of([*fixed, None, values, room, levels, kept, kept, None])
    arrays[3], arrays[9] = tables.buffer_info()[0], noted.buffer_info()[0]
    if kept is not None:
        arrays[8] += batch * before * kept.element_size()
    parts = goal, values, room, levels, kept, first, tables
    done = Run(program, inputs, *parts, best, noted, arrays)
    library.function("up", dtype)(
        done.addresses, goal.data_ptr(), len(program.ranges), batch, len(inputs.given) + 1, best,
        library.threads(program.work * batch, batch if batch > 1 else None),
    )  # fmt: skip
    if done.noted[0]:
        return run(program, inputs.double(), whole=False, rows=rows, once=once)
    return done


def values_of(tape: Tape, *, best: bool, whole: bool = True) -> Run | None:
    """The values of all steps of a tape, log-sums or maxima, if the machine has them.

    Those that are not read one by one are in float64 where they would lose digits in float32.
    """
    program = program_of(tape)
    if program is None:
        return None
    inputs = inputs_of(tape, program)
    if not whole and not program.levelled:
        inputs = inputs.double()
    return run(program, inputs, best=best, whole=whole)
