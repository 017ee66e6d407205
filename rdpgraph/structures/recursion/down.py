"""Passes of torch: log-sums from the leaves up, and max-marginals from the goal down.

The compiled machine runs programs on the CPU; torch all else, third derivatives included.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import soft_scatter, soft_sum
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.recursion import derivatives, machine
from rdpgraph.structures.recursion.inputs import inputs_of, known_program
from rdpgraph.structures.recursion.layouts import whole
from rdpgraph.structures.recursion.program import Program, with_tensors
from rdpgraph.structures.recursion.step import Reader, soft
from rdpgraph.structures.recursion.steps import Leaf, Pairs
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View


def leaves(tape: Tape) -> Iterator[Tensor]:
    """(B or 1, P, K) of every leaf in turn; sites are read all at once unless they are many."""
    wanted = [step for step in tape.steps if isinstance(step, Leaf)]
    sites = [step.sites for step in wanted if step.sites is not None]
    flat = tape.unary.reshape(tape.batch, math.prod(tape.site_shape), tape.unary.shape[-1])
    if flat.numel() > tuning.CACHE_BLOCK and not flat.requires_grad:
        read = (flat.index_select(1, numbers).to(tape.dtype) for numbers in sites)
    else:
        numbers = torch.cat(sites) if sites else torch.zeros(0, dtype=torch.long)
        chosen = flat.index_select(1, numbers.to(flat.device)).to(tape.dtype)
        read = iter(chosen.split_with_sizes([len(numbers) for numbers in sites], 1))
    for step in wanted:
        yield next(read) if step.logs is None else step.logs.to(tape.dtype)


def last_read(tape: Tape) -> list[list[int]]:
    """The values that no later step reads, for each step."""
    last = dict[int, int]()
    for number, step in enumerate(tape.steps):
        last.update((value.number, number) for view in step.reads for value in view.pool)
    ended: list[list[int]] = [[] for _ in tape.steps]
    for value, number in last.items():
        ended[number].append(value)
    return ended


def up(tape: Tape, temperature: float = 1.0) -> Reader:
    """The values of all steps; the last is the goal. Differentiable any number of times.

    Args:
        tape: laid out.
        temperature: 1.0 for sums, 0.0 for maxima; any other one needs ``ranks=False``.
    """
    program = machine.program_of(tape) if temperature in (0.0, 1.0) else None
    if program is not None and not torch.is_grad_enabled():
        inputs = inputs_of(tape, program)
        return _read(tape, program, machine.run(program, inputs, best=not temperature))
    given, held = leaves(tape), 0
    small = 0 if torch.is_grad_enabled() else tuning.CACHE_BLOCK // len(tape.steps)
    reader = Reader(temperature=temperature, small=small)
    for number, step in enumerate(tape.steps):
        leaf = isinstance(step, Leaf)
        reader.values.append(next(given) if leaf else step.up(reader, temperature))
        before = tape.steps[number - 1]
        # Large pairs are dropped after the next step has read them, and recomputed on demand.
        if isinstance(before, Pairs) and not torch.is_grad_enabled():
            pairs = reader.values[number - 1]
            held += pairs.numel()
            if held > tuning.CACHE_BLOCK:
                # A slice would hold the whole tensor.
                reader.values[number - 1] = pairs[:, :0].clone()
                reader.remade[number - 1] = before
    return reader


_COLDEST = 1e-6  # the temperature below which scores over it might overflow in float32


def log_sum(tape: Tape, temperature: float = 1.0) -> Tensor:
    """(*lead,) the log-sum of all derivations; twice differentiable.

    At another temperature, which needs ``ranks=False``, that of all values over it, times it.
    """
    program = machine.program_of(tape) if temperature >= _COLDEST else None
    if program is None:
        tape = whole(tape)
        return goal(tape, up(tape, temperature))
    given = inputs_of(tape, program)
    if temperature != 1.0:
        given = given.over(temperature)
    tracked = any(part.requires_grad for part in (given.unary, *given.given))
    if not tracked or not torch.is_grad_enabled():
        result = machine.run(program, given, whole=False).goal.to(given.unary)
    else:
        result = derivatives.log_sum(program, given, _by_torch(tape))
    result = result if len(tape.lead) == 1 else result.reshape(tape.lead)
    return result if temperature == 1.0 else temperature * result


def _by_torch(tape: Tape) -> Callable[..., Tensor]:
    """A function of the inputs: (B,) the log-sum in operations that autograd records."""

    def summed(*inputs: Tensor) -> Tensor:
        other = rebuilt(tape, inputs)
        return goal(other, up(other)).reshape(-1)

    return summed


def rebuilt(tape: Tape, inputs: Sequence[Tensor]) -> Tape:
    """A tape with other potentials and tensors of the slots of its program."""
    (unary, *given), tape = inputs, whole(tape)
    program = known_program(tape)
    assert program is not None
    scores = unary.reshape(tape.unary.shape)
    other = Tape(scores, tape.site_dims, ranks=tape.ranks, dtype=tape.dtype)
    other.steps.extend(with_tensors(tape.steps, program.slots, given))
    return other


def _read(tape: Tape, program: Program, done: machine.Run) -> Reader:
    """The values of a run as a reader."""
    reader = Reader(temperature=float(not done.best), small=tuning.CACHE_BLOCK // len(tape.steps))
    for number, step in enumerate(tape.steps):
        reader.values.append(done.value(number))
        if number in program.unstored:
            if isinstance(step, Pairs):
                reader.remade[number] = step
            elif not isinstance(step, Leaf):  # what reads parts of sites is stored
                reader.values[number] = step.up(reader, reader.temperature)
    return reader


def goal(tape: Tape, reader: Reader) -> Tensor:
    """(*lead,) the value of the whole."""
    # Without sites the gradient in their potentials is zero, not None.
    value = reader.values[-1] + tape.unary[..., :0].sum().to(tape.dtype)
    return value.reshape(-1).expand(tape.batch).reshape(tape.lead)


def exhausting(tape: Tape, wanted: Tensor) -> Tensor:
    """(*lead,) the log-sum of the derivations that use a wanted number (*lead,) of sites.

    Among alternatives those that use most sites are summed; -inf if that is not the number. The
    tape has one state of each site of a configuration, at -inf where it is unused.
    """
    given, reader, counts = leaves(tape), Reader(), Reader()
    for step in tape.steps:
        if isinstance(step, Leaf):
            logs = next(given)
            used = torch.full_like(logs, float(step.sites is not None))
            counts.values.append(torch.where(logs.detach() > -math.inf, used, -math.inf))
            reader.values.append(logs)
            continue
        with torch.no_grad():
            uses = step.terms(counts, scores=False)
            most = uses.amax(step.dim, keepdim=True)
        terms = step.terms(reader)
        total = soft(torch.where(uses == most, terms, -math.inf), step.dim, 1.0)
        reader.values.append(total)
        counts.values.append(most.squeeze(step.dim))
    enough = goal(tape, counts) == wanted
    return torch.where(enough, goal(tape, reader), -math.inf)


_ROUNDING = 1e-12  # of an expected number of sites, for each site


def scored_alone(
    unary: Tensor, states: Tensor, wanted: Tensor, laid_out: Callable[[Tensor], Tape], *,
    split: bool,
) -> Tensor | None:  # fmt: skip
    """The scores of configurations by the machine on all states; None where that takes longer.

    Of states (*lead, *batch, *sites) that use the ``wanted`` number of sites, (*lead, *batch); the
    lead, if there is one, is ``split`` where they are many.
    """
    every = torch.arange(unary.shape[-1], device=states.device)
    size, parts = states.numel() * len(every), [(states, wanted)]
    many = tuning.CACHE_BLOCK * len(states) // size if split and size else 1
    if not many or (size > tuning.CACHE_BLOCK and not split):
        return None
    if size > tuning.CACHE_BLOCK:
        parts = list(zip(states.split(many), wanted.split(many), strict=True))
    scores = list[Tensor]()
    for part, sites in parts:
        tape = laid_out(torch.where(part.unsqueeze(-1) == every, unary, -math.inf))
        score = _summed_alone(tape, sites, len(parts))
        if score is None:
            return None
        scores.append(score)
    return torch.cat(scores) if len(scores) > 1 else scores[0]


def _summed_alone(tape: Tape, wanted: Tensor, parts: int) -> Tensor | None:
    """`exhausting` by the machine, on all states, of which those of no configuration have -inf.

    None where it does not run the tape, where that takes longer with all ``parts`` of as many
    configurations, and where some derivations use fewer sites: their shares of the sum lower the
    expected number.
    """
    program = machine.program_of(tape)
    if program is None:
        return None
    if program.work * tape.batch * parts > tuning.SCORED_WORK * len(program.steps):
        return None
    inputs = inputs_of(tape, program)
    with torch.no_grad():
        done = machine.run(program, inputs, whole=False, rows=True, once=True)
        possible = done.goal > -math.inf
        (uses, *_) = done.gradients(possible.to(done.goal), [True, *[False] * len(inputs.given)])
        assert uses is not None
        lacking = (uses.sum((1, 2)) - wanted.reshape(-1)).abs() > _ROUNDING * (1 + uses.shape[1])
        if bool((possible & lacking).any()):
            return None
    tracked = any(part.requires_grad for part in (inputs.unary, *inputs.given))
    return log_sum(tape) if tracked and torch.is_grad_enabled() else done.goal.reshape(tape.lead)


@torch.no_grad()
def max_marginals(tape: Tape) -> Tensor:
    """(*lead, *sites, K) the best score with each state of each site; -inf: none."""
    done = machine.values_of(tape, best=True)
    if done is not None:
        return done.most().to(tape.unary).reshape(tape.unary.shape)
    tape = whole(tape)
    return of_sites(tape, down(tape, up(tape, 0.0)))


@torch.no_grad()
def down(tape: Tape, reader: Reader, *, scores: bool = True) -> list[Tensor]:
    """(B, P, K) of every step: the score of the best derivation through each entry, given maxima.

    An alternative loses, against the best of its parent, the difference of their log-values, which
    include those of steps if ``scores``.
    """
    batch = tape.batch
    given = _Given([[] for _ in reader.values])
    given.parts[-1] = [reader.values[-1].expand(batch, 1, 1)]
    result = list(reader.values)
    for number in range(len(tape.steps) - 1, -1, -1):
        step, value = tape.steps[number], reader.value(number)
        above = given.all_of(number)
        if above is None:
            above = value.new_full((batch, *value.shape[1:]), -math.inf)
        # Skip values that the upward pass recomputes.
        result[number] = above if number not in reader.remade else above[:, :0].clone()
        if isinstance(step, Leaf):
            # In the dtype of the potentials, to save memory for long sequences.
            result[number] = above.to(tape.unary.dtype)
        else:
            for view, part in step.passed_down(reader, value, above, scores=scores):
                given.give(view, part)
    return result


@dataclass(frozen=True, eq=False)
class _Given:
    """Scores passed down to the entries of values that come later."""

    parts: list[list[Tensor]]  # for each value, (B, P, K) each

    def all_of(self, number: int) -> Tensor | None:
        """(B, P, K) of one value; None: nothing."""
        parts, self.parts[number] = self.parts[number], []
        return _together(parts) if parts else None

    def give(self, view: View, part: Tensor) -> None:
        """Pass (B, M, P, K) to the entries that a view reads."""
        sizes = view.ways, view.places, view.width
        if part.shape[1:] != sizes:
            for dim, size in enumerate(sizes, 1):
                if part.shape[dim] > size:
                    part = part.amax(dim, keepdim=True)
        if view.parts > 1:
            part = part.expand(-1, *sizes).transpose(1, 2).flatten(2).unsqueeze(1)
        if view.index is None:
            flat = part.squeeze(2 if view.as_alternatives else 1)
            places = [value.places for value in view.pool]
            parts = [flat] if view.whole else flat.split_with_sizes(places, 1)
            for value, piece in zip(view.pool, parts, strict=True):
                self._add(value, piece)
            return
        count = view.size + 1
        flat = part.flatten(1, 2)
        if view.index.ndim == 2:
            rows = flat.transpose(0, 1)
            sums = soft_scatter(rows, view.index.flatten(), count, 0.0).transpose(0, 1)
        else:
            item = torch.arange(len(flat), device=flat.device).unsqueeze(1) * count
            groups = (item + view.index.flatten(1)).flatten()
            sums = soft_scatter(flat.flatten(0, 1), groups, len(flat) * count, 0.0)
            sums = sums.unflatten(0, (len(flat), count))
        places = [value.places for value in view.pool]
        for value, piece in zip(view.pool, sums[:, :-1].split(places, 1), strict=True):
            self._add(value, piece)

    def _add(self, value: Value, part: Tensor) -> None:
        parts = self.parts[value.number]
        parts.append(part)
        if len(parts) == tuning.COLLECTED_PARTS:
            parts[:] = [_together(parts)]


def _together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).amax(0)


def of_sites(tape: Tape, values: Sequence[Tensor]) -> Tensor:
    """(*lead, *sites, K) the best of the leaves' entries for each state; -inf: none."""
    sites, width = math.prod(tape.site_shape), tape.unary.shape[-1]
    read = [
        (step.sites, values[number])
        for number, step in enumerate(tape.steps)
        if isinstance(step, Leaf) and step.sites is not None
    ]
    if not read:
        return torch.full_like(tape.unary, -math.inf)
    numbers = torch.cat([places for places, _ in read])
    rows = torch.cat([part for _, part in read], 1)
    if bool((numbers.bincount() <= 1).all()):
        flat = tape.unary.new_full((tape.batch, sites, width), -math.inf)
        flat.index_copy_(1, numbers, rows.to(flat))
    else:
        rows = rows.transpose(0, 1)
        flat = soft_scatter(rows, numbers, sites, 0.0).transpose(0, 1).to(tape.unary)
    return flat.reshape(*tape.lead, *tape.site_shape, width)


@torch.no_grad()
def usable(tape: Tape) -> Tensor:
    """(*lead, *sites, K) whether a derivation can use a site, whatever the links."""
    given, reader = leaves(tape), Reader()
    for step in tape.steps:
        if isinstance(step, Leaf):
            reader.values.append(next(given))
        else:
            reader.values.append(step.terms(reader, scores=False).amax(step.dim))
    through = down(tape, reader, scores=False)
    return of_sites(tape, through) > -math.inf


@torch.no_grad()
def mean_values(tape: Tape, landmarks: int, generator: torch.Generator | None) -> Tensor:
    """(*lead, *sites, N) the log-mean of links to and from each state, over random other labels."""
    sites, width = math.prod(tape.site_shape), tape.unary.shape[-1]
    total = tape.unary.new_zeros(tape.batch, sites, width)
    known: dict[int, tuple[Tensor, Tensor]] = {}
    for end in (0, 1):
        sums = total.new_full((tape.batch, sites, width), -math.inf)
        counts = total.new_zeros(sites, 1)
        for before, source, after in tape.meetings:
            labels = after if end else before
            if labels.sites is None or labels.sites.ndim > 1:  # of other sites in each item
                continue
            if id(source) not in known:
                known[id(source)] = _sides(source, landmarks, generator)
            logs = known[id(source)][end].to(sums)
            sums[:, labels.sites] = torch.logaddexp(sums[:, labels.sites], logs)
            counts[labels.sites] += 1.0
        mean = torch.where(counts > 0, sums - counts.log(), 0.0)
        total = total + mean
    return total.reshape(tape.unary.shape)


def _sides(
    source: Tensor | Potential, landmarks: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(B or 1, P or 1, N) and (..., M): the log-means over random labels of the other end."""
    sizes = tuple(source.shape[-2:])
    means: list[Tensor] = []
    for end in (0, 1):
        size = sizes[1 - end]
        some = torch.arange(size, device=source.device)
        if size > landmarks:
            device = source.device if generator is None else generator.device
            some = torch.randint(size, (landmarks,), generator=generator, device=device)
            some = some.to(source.device)
        if isinstance(source, Potential):
            states = [some, torch.arange(sizes[end], device=source.device)]
            logs = source.evaluate(states if end else states[::-1])[None, None]
        else:
            logs = source.index_select(-2 if end else -1, some)
        dim = -2 if end else -1
        means.append(soft_sum(logs, dim) - math.log(len(some)))
    return means[0], means[1]
