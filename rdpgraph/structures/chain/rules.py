"""Chains of tables or of ranks by their recurrences, in compiled code where that serves.

    a[0, n] = u[0, n],    a[t, n] = sum_m a[t-1, m] w[m, n] u[t, n],

and with ranks the sum over m goes by way of half[t, k] = sum_m a[t-1, m] left[m, k].
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from rdpgraph._core import tuning
from rdpgraph._core.cache import remembered
from rdpgraph._core.types import Lengths, LogZ, Paths, Transition, Unary
from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.recurrences import declaration, executor, logsums
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.program import Program
from rdpgraph.structures.chain import logs
from rdpgraph.structures.chain.factors import inside, masked, peak
from rdpgraph.structures.chain.steps import (
    ChainTensors,
    RankSteps,
    Steps,
    as_steps,
    of_tables,
    tables_of,
)

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_LENGTHS = "lengths"


@remembered(64)
def write_program(each: tuple[bool, ...], *, apart: bool = False) -> Program:
    """The recurrence of chains by one table, or by two of ranks.

    Args:
        each: for each table, whether every step has one.
        apart: whether a table `into` has the sums of a step without its unary potentials.
    """
    declared: dict[str, declaration.Input | declaration.Lengths] = {
        "unary": declaration.Input("T N")
    }
    steps = ["T-1 " if one else "" for one in each]
    at = ["t-1, " if one else "" for one in each]
    rules = ["a[0, n] += unary[0, n]"]
    into = (
        "into[t, n] += {}\na[t, n] += into[t, n] * unary[t, n]"
        if apart
        else "a[t, n] += {} * unary[t, n]"
    )
    if len(each) == 1:
        declared["transition"] = declaration.Input(f"{steps[0]}N N")
        rules.append(into.format(f"a[t-1, m] * transition[{at[0]}m, n]"))
    else:
        declared["left"] = declaration.Input(f"{steps[0]}N K")
        declared["right"] = declaration.Input(f"{steps[1]}K N")
        rules.append(f"half[t, k] += a[t-1, m] * left[{at[0]}m, k]")
        rules.append(into.format(f"half[t, k] * right[{at[1]}k, n]"))
    declared[_LENGTHS] = declaration.Lengths("T")
    rules.append("goal += a[lengths-1, n]")
    return declaration.program_of("Chain", tuple(declared.items()), "\n".join(rules))


class _ProgramInputs:
    """A program, its inputs in order, each with a dim of items, and sizes and lengths by name."""

    def __init__(
        self, unary: Tensor, tables: Sequence[Tensor], lengths: Lengths | None, *,
        apart: bool = False,
    ) -> None:  # fmt: skip
        total, states = unary.shape[1:]
        # Tables of one step, (B, 1, N, N), are those of all steps of an item.
        each = [table.ndim > 2 and (table.shape[1] != 1 or total == 2) for table in tables]
        links = [
            table if every else table.reshape(-1, *table.shape[-2:])
            for table, every in zip(tables, each, strict=True)
        ]
        self.program = write_program(tuple(each), apart=apart)
        self.inputs = [unary, *links]
        self.sizes = {"T": total, "N": states}
        if len(tables) > 1:
            self.sizes["K"] = tables[0].shape[-1]
        whole = lengths is None or min(lengths.tolist()) == total
        self.lengths: dict[str, Tensor | int] = {
            _LENGTHS: total if lengths is None or whole else lengths
        }

    @staticmethod
    def of(unary: Tensor, transition: Tensor | Steps, lengths: Lengths | None) -> "_ProgramInputs":
        return _ProgramInputs(unary, tables_of(transition), lengths)

    def run_up(self, *, best: bool, keep: bool = False) -> executor.Upward:
        return executor.run_up(
            self.program, self.inputs, self.lengths, self.sizes, best=best, keep=keep
        )

    def bound(self, batch: int) -> Bound:
        given: dict[str, Any] = {
            array.name: values
            for array, values in zip(self.program.inputs, self.inputs, strict=True)
        }
        lengths = self.lengths[_LENGTHS]
        given[_LENGTHS] = None if isinstance(lengths, int) else lengths
        return Bound.settled(self.program, given, self.sizes, (batch,))


def serves(unary: Unary, transition: Transition | Steps) -> bool:
    """Return whether compiled code is there for these chains."""
    if not unary.is_cpu or not isinstance(transition, Tensor | RankSteps) or not unary.numel():
        return False
    typed = not [side for side in tables_of(transition) if side.dtype != unary.dtype]
    return typed and not is_transformed() and executor.LIBRARY.available(unary.dtype)


def log_partition(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> LogZ:
    """Log Z as `recursion.log_partition`, by compiled code where it serves.

    The transition may be (B, 1, N, N), one for all steps of each item.
    """
    given = _ProgramInputs.of(unary, transition, lengths)
    if serves(unary, transition):
        return executor.log_partition(given.program, given.lengths, given.sizes, given.inputs)
    return log_partition_by_torch(unary, transition, lengths)


def log_partition_by_torch(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> LogZ:
    """`log_partition` wherever compiled code does not serve, in more time."""
    given = _ProgramInputs.of(unary, transition, lengths)
    inputs = dict(zip([one.name for one in given.program.inputs], given.inputs, strict=True))
    return logsums.log_partition(given.program, inputs, given.lengths, given.sizes)


def log_partition_in_parts(unary: Tensor, transition: "DTensor", lengths: Tensor | None) -> Tensor:
    """(*batch,) log Z of chains (*batch, T, N) where each process has a part of the transition."""
    if not unary.numel():
        return unary.sum((-2, -1))
    given = {"unary": unary, "transition": transition, _LENGTHS: lengths}
    return Bound(write_program((transition.ndim > 2,)), given).log_partition()


def edge_counts(unary: Unary, transition: Tensor, lengths: Lengths) -> Tensor:
    """(B, N, N) the gradient of each item's log Z in the transition of all steps (N, N)."""
    if unary.shape[2] > tuning.COUNTED_STATES:
        counts = _wide_counts(unary, transition, lengths)
        if counts is not None:
            return counts
    table = transition.expand(len(unary), *transition.shape)
    up = _ProgramInputs(unary, [table.unsqueeze(1)], lengths).run_up(best=False, keep=True)
    counts = executor.run_down(up, up.possible.to(unary), (False, True))[1]
    assert counts is not None
    return counts


def _wide_counts(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor | None:
    """`edge_counts` by products of matrices, one for each item; None where one may underflow.

    With the forward messages f, the marginals p and e = exp(w), the expected uses of w[m, n] are
    e[m, n] sum_t f[t-1, m] p[t, n] / y[t, n], where y[t] = f[t-1] e.
    """
    up = _ProgramInputs(unary, [transition], lengths).run_up(best=False, keep=True)
    marginals = executor.run_down(up, up.possible.to(unary), (True, False))[0]
    assert marginals is not None
    rows, marginals = executor.rows_of(up, "a")[:, :-1], marginals[:, 1:]
    before, matrix = (rows - peak(rows, (2,))).exp(), (transition - peak(transition, (0,))).exp()
    sums, least = before @ matrix, torch.finfo(unary.dtype).tiny * 2**30
    used = marginals > 0
    if bool((used & (sums < least * unary.shape[2])).any()):
        return None
    after = torch.where(used, marginals / sums, 0.0)
    return (before.mT @ after).mul_(matrix)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the forward messages, each row summing to 1; differentiable."""
    total = unary.shape[1]
    sums = _rows("a", masked(unary, lengths), transition)
    sums = sums - finite(soft_sum(sums, 2)).unsqueeze(2)
    return torch.where(inside(lengths, total).unsqueeze(2), sums, -math.inf)


def _rows(table: Literal["a", "into"], unary: Tensor, transition: Tensor | Steps) -> Tensor:
    """(B, T, N) the log-sums over prefixes up to each step, up to a shift; differentiable.

    With the step's own unary potentials, or `into` the step without these; nothing leads into the
    first.
    """
    tables = tables_of(transition)
    given = _ProgramInputs(unary, tables, None, apart=table == "into")

    def again(unary: Tensor, *inputs: Tensor) -> Tensor:
        total = unary.shape[1]
        each = [x.reshape(one.shape) for x, one in zip(inputs, tables, strict=True)]
        steps = as_steps(of_tables(*each))
        states = logs.forward(unary, steps, torch.full((len(unary),), total, device=unary.device))
        if table == "a":
            return states
        links = [steps.advance(step, state) for step, state in enumerate(states.unbind(1)[:-1])]
        return torch.stack([torch.zeros_like(states[:, 0]), *links], 1)

    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in given.inputs)
    return rows_made(given.run_up(best=False, keep=tracked), table, again, given.inputs)


def rows_made(
    up: executor.Upward, table: str, again: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> Tensor:
    """(B, T, N) the rows of a table that a pass upwards has made; differentiable in its inputs.

    Args:
        up: the pass, whose inputs are kept where one requires a gradient.
        table: its name.
        again: the same by torch, for derivatives of higher order.
        inputs: those of the pass, to which gradients flow.
    """
    found: Tensor = _Rows.apply(up, table, again, *inputs)  # pyright: ignore
    return found


def both(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Tensor:
    """(B, 2, T, N) forward and backward messages, as `recursion.messages`."""
    total = unary.shape[1]
    # Each item from its last step to its first, which is what a chain has from the first to the
    # last. The sums over what is behind a step leave out the step's own potentials.
    steps = (lengths.unsqueeze(1) - 1 - torch.arange(total, device="cpu")).clamp(min=0)
    turned = unary.gather(1, steps.unsqueeze(2).expand_as(unary))

    def backwards(side: Tensor) -> Tensor:
        if side.ndim == 2:
            return side.mT
        items = torch.arange(len(unary), device="cpu").unsqueeze(1) if len(side) > 1 else 0
        return side.mT[items, (steps[:, :-1] - 1).clamp(min=0)]

    link = of_tables(*map(backwards, tables_of(transition)[::-1]))
    arriving = torch.cat([torch.zeros_like(unary[:, :1]), _rows("into", turned, link)[:, 1:]], 1)
    behind = arriving.gather(1, steps.unsqueeze(2).expand_as(unary))
    behind = behind - peak(behind.detach(), (2,))
    behind = torch.where(inside(lengths, total).unsqueeze(2), behind, -math.inf)
    return torch.stack([forward(unary, transition, lengths), behind], 1)


class _Rows(Function):
    """The rows of a table that the pass upwards has made; they are the goals of its gradient."""

    @staticmethod
    def forward(
        ctx: Any, up: executor.Upward, table: str, again: Callable[..., Tensor], *inputs: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.up, ctx.table, ctx.again = up, table, again
        return executor.rows_of(up, table).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, (gradient,) = ctx.saved_tensors, gradients
        if torch.is_grad_enabled() or is_transformed(gradient):
            with torch.enable_grad():
                return None, None, None, *regradient(ctx.again, inputs, gradient)
        none, wanted = gradient.new_zeros(len(gradient)), ctx.needs_input_grad[3:]
        found = executor.run_down(ctx.up, none, wanted, rows=(ctx.table, gradient))
        return None, None, None, *found


def draw(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, count: int,
    generator: torch.Generator | None,
) -> Paths:  # fmt: skip
    """(count, B, T) exact draws; -1 beyond a length, and where nothing is possible."""
    up = _ProgramInputs.of(unary, transition, lengths).run_up(best=False, keep=True)
    return executor.states(up, 0, count, generator)


def takes_noise(unary: Unary, transition: Transition | Steps) -> bool:
    """Return whether `perturbed` serves: tables for one or all steps, of three sites or more."""
    return isinstance(transition, Tensor) and unary.shape[1] > 2 and serves(unary, transition)


def perturbed(unary: Unary, transition: Transition, lengths: Lengths, noise: Tensor) -> Paths:
    """(count, B, T) states of largest noise (count, B, T, N), the last first; -1 as for `draw`.

    Each is given the one after it: draws, where the noise is Gumbel's.
    """
    up = _ProgramInputs.of(unary, transition, lengths).run_up(best=False)
    return executor.states(up, 0, len(noise), None, noise)


def best_states(unary: Unary, transition: Transition, lengths: Lengths) -> Paths:
    """(B, T) the best sequences; -1 as for `draw`."""
    up = _ProgramInputs.of(unary, transition, lengths).run_up(best=True)
    return executor.states(up, 0, None, None)[0]


def max_marginals(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """(B, T, N) the best score with each state; -inf beyond a length. Without gradient."""
    up = _ProgramInputs.of(unary.double(), transition.double(), lengths).run_up(best=True)
    best = executor.best_with(up, only=0)[0]
    assert best is not None
    return best.to(unary)


def k_best(unary: Unary, transition: Transition, lengths: Lengths, k: int) -> Paths:
    """(k, B, T) the best sequences in turn; -1 beyond a length, and where there are fewer."""
    up = _ProgramInputs.of(unary.double(), transition.double(), lengths).run_up(best=True)
    return executor.best_states(up, 0, k)


def losses(parts: ChainTensors, other: ChainTensors, *, divergence: bool) -> Tensor | None:
    """(B,) nats: the cross-entropy of chains of one shape, or their divergence; in float64.

    Of a chain with itself the entropy. Differentiable; None where compiled code is not there.
    """
    unary, link, one, two = (part.double() for pair in (parts, other) for part in pair[:2])
    if not serves(unary, link):
        return None
    batch, total, states = unary.shape
    if link.shape != two.shape:  # those of either for each step
        link, two = (part.expand(batch, total - 1, states, states) for part in (link, two))
    ours = _ProgramInputs(unary, [link], parts.lengths).bound(batch)
    if other is parts:
        return ours.entropy().to(parts.unary)
    theirs = _ProgramInputs(one, [two], parts.lengths).bound(batch)
    found = ours.kl_divergence(theirs) if divergence else ours.cross_entropy(theirs)
    return found.to(parts.unary)
