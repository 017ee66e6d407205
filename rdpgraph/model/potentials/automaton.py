"""Potentials by automata that read their slots in order, logical constraints among them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.types import ArrayLike, broadcast_shapes
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import soft_scatter, soft_sum
from rdpgraph.model.potentials.potential import (
    Decomposition,
    Part,
    Stored,
    message_lead,
    select_lead,
)
from rdpgraph.model.potentials.table import as_whole, checked_log_values, settle


@dataclass(frozen=True, eq=False)
class Automaton(Stored):
    """A potential by a finite automaton: the log-value (nats) of the state in which it ends.

    It starts in state 0 and reads the slots in order, all of k states and with the same
    transitions. Memory is that of the Q k transitions and the log-values; messages cost O(Q k) per
    slot; the exact engine joins many slots by a chain of auxiliary variables of at most Q states
    instead of forming their table. `Or`, `Cardinality` and similar constraints are automata.

    Args:
        transitions: (Q, k) integer, the next state from each state on each state of a slot.
        log_accept: (*lead, Q) floating, the log-value of ending in each state; -inf where that is
            not accepted. Gradients flow to it.
        arity: the number of slots.

    Raises:
        ModelError: shapes that disagree, a transition out of range, or fewer than one slot.

    Example:
        >>> even = Automaton(torch.tensor([[0, 1], [1, 0]]), torch.tensor([0.0, -math.inf]), 2)
        >>> even.table(2).exp().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    transitions: Tensor
    log_accept: Tensor
    arity: int
    stored = "log_accept"

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(self, transitions: ArrayLike, log_accept: ArrayLike, arity: int) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_accept", whole=("transitions",))
        checked_log_values("Automaton", self.log_accept)
        given = as_whole("Automaton's transitions", self.transitions)
        if given.ndim != 2 or not given.numel():
            raise ModelError(
                "Automaton needs transitions of shape (Q, k), at least one state each; got "
                f"{tuple(given.shape)}."
            )
        count = len(given)
        if self.log_accept.ndim < 1 or self.log_accept.shape[-1] != count:
            raise ModelError(
                f"Automaton of {count} states needs log_accept of shape (..., {count}); got "
                f"{tuple(self.log_accept.shape)}."
            )
        low, high = (int(bound) for bound in given.aminmax())
        if low < 0 or high >= count:
            raise ModelError(
                f"Automaton of {count} states needs transitions to states 0 to {count - 1}; got "
                f"one to {low if low < 0 else high}."
            )
        require_fields(self, arity="[1, inf)")
        object.__setattr__(self, "transitions", given.to(self.log_accept.device).long())

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.log_accept.shape[:-1], *(self.transitions.shape[1],) * self.arity)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: a walk, O(grid) a slot and no larger in memory."""
        place = torch.zeros(1, dtype=torch.long, device=self.device)
        for chosen in states:
            read = chosen.to(self.device).unsqueeze(-2)
            place = self.transitions[place.unsqueeze(-1), read].flatten(-2)
        dims, grid = self.log_accept.shape[:-1], [chosen.shape[-1] for chosen in states]
        lead = broadcast_shapes(dims, place.shape[:-1])
        values = self.log_accept.expand(*lead, -1).gather(-1, place.expand(*lead, -1))
        return values.reshape([*lead, *grid])

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Automaton":
        """The potentials of some factors of a block; they share the transitions."""
        values = select_lead(self.log_accept, trailing=1, block=block, rows=rows)
        return Automaton(self.transitions, values, self.arity)

    def decompose(self) -> Decomposition | None:
        """A chain of the states after each slot but the last, where that beats the table."""
        size = self.transitions.shape[1]
        passed = self._passed()
        counts = [len(states) for states in passed]
        after = [*counts[1:], 1]
        chain = sum(size * n * m for n, m in zip(counts, after, strict=True))
        if size**self.arity <= max(4096, chain):
            return None
        # Each slot has a table of the state before it, its own, and the state after it, which is 0
        # where the transition agrees; the last one has the values of acceptance.
        parts: list[Part] = []
        for slot, states in enumerate(passed):
            following = self.transitions[states]
            if slot == self.arity - 1:
                log_values = self.log_accept[..., following]
            else:
                same = following.unsqueeze(-1) == passed[slot + 1]
                log_values = torch.where(same, 0.0, -math.inf).to(self.dtype)
            before, behind = self.arity + slot - 1, self.arity + slot
            if slot == 0:
                parts.append(Part((slot, behind), log_values.squeeze(0)))
            elif slot == self.arity - 1:
                parts.append(Part((before, slot), log_values))
            else:
                parts.append(Part((before, slot, behind), log_values))
        return Decomposition(tuple(counts[1:]), tuple(parts))

    def _passed(self) -> list[Tensor]:
        """The states before each slot that lie on the way to an accepted one."""
        transitions = self.transitions.cpu()
        count = len(transitions)
        reached = [torch.arange(count, device="cpu") == 0]
        for _ in range(self.arity - 1):
            mask = torch.zeros(count, dtype=torch.bool, device="cpu")
            mask[transitions[reached[-1]]] = True
            reached.append(mask)
        accepted = (self.log_accept.detach() > -math.inf).reshape(-1, count).any(0).cpu()
        passed: list[Tensor] = []
        for mask in reversed(reached):
            accepted = accepted[transitions].any(1)
            passed.append(mask & accepted)
        passed.reverse()
        # An auxiliary variable has at least one state, even where nothing is possible.
        kept = passed if bool(passed[0].any()) else reached
        return [mask.nonzero().flatten().to(self.device) for mask in kept]

    def allows_every_state(self) -> bool:
        """Return whether every state of every slot is part of some accepted configuration.

        False where the factors of a block differ in what they accept.
        """
        following, accepts = self.transitions.cpu().numpy(), self.log_accept.detach() > -math.inf
        accepts = accepts.reshape(-1, len(following)).cpu().numpy()
        if len(accepts) > 1 and bool((accepts != accepts[:1]).any()):
            return False
        # The states from which something is accepted, after each slot; then what is reached.
        alive = [accepts[0]]
        for _ in range(self.arity):
            alive.append(alive[-1][following].any(1))
        reached = np.arange(len(following)) == 0
        for after in reversed(alive[:-1]):
            on_the_way = following[reached]
            if not after[on_the_way].any(0).all():
                return False
            reached = np.zeros(len(following), bool)
            reached[on_the_way.reshape(-1)] = True
        return True

    def messages(
        self, incoming: Sequence[Tensor], *, temperature: float | Tensor = 1.0
    ) -> tuple[Tensor, ...]:
        """The log-messages to all slots by forward-backward: O(Q k) per slot, all leads at once.

        Arguments, result and errors as for `Potential.messages`; no table is formed.
        """
        if len(incoming) != self.arity:
            raise ModelError(
                f"Automaton needs a message for each of its {self.arity} slots; "
                f"got {len(incoming)}."
            )
        lead = message_lead(self, incoming, temperature)
        count, size = self.transitions.shape
        targets = self.transitions.flatten()
        # States come first, so that each step works on whole rows of factors; the lead, and with
        # it a temperature, is on the right.
        arriving = [_states_first(message, len(lead)) for message in incoming]
        backward = [_states_first(self.log_accept, len(lead))]
        for message in reversed(arriving[1:]):
            onward = backward[-1].index_select(0, targets).unflatten(0, (count, size))
            backward.append(soft_sum(onward + message, 1, temperature))
        start = torch.where(torch.arange(count, device=self.device) == 0, 0.0, -math.inf)
        forward = start.to(self.dtype).reshape(count, *(1,) * len(lead))
        outgoing: list[Tensor] = []
        for message, after in zip(arriving, reversed(backward), strict=True):
            onward = after.index_select(0, targets).unflatten(0, (count, size))
            result = soft_sum(onward + forward.unsqueeze(1), 0, temperature)
            outgoing.append(result.movedim(0, -1).expand(*lead, -1))
            if len(outgoing) < self.arity:
                steps = (forward.unsqueeze(1) + message).flatten(0, 1)
                forward = soft_scatter(steps, targets, count, temperature)
        return tuple(outgoing)


def _states_first(values: Tensor, dims: int) -> Tensor:
    """(*lead, states) as (states, *lead), the lead padded in front to ``dims`` dims."""
    lead = tuple(values.shape[:-1])
    padded = values.reshape(*(1,) * (dims - len(lead)), *lead, values.shape[-1])
    return padded.movedim(-1, 0)


@typed(arity="[1, inf)")
def Or(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """Constraint: at least one slot is true (log-value 0, else -inf); two automaton states.

    Args:
        arity: the number of binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> Or(2).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 1.0]]
    """
    return _constraint([[0, 1], [1, 1]], [False, True], arity, dtype)


@typed(arity="[1, inf)")
def And(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """Constraint: all slots are true (log-value 0, else -inf); two automaton states.

    Args:
        arity: the number of binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> And(2).table(2).exp().tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    return _constraint([[1, 0], [1, 1]], [True, False], arity, dtype)


@typed(arity="[1, inf)")
def Xor(arity: int, *, parity: int = 1, dtype: torch.dtype | None = None) -> Automaton:
    """Constraint: an odd (parity 1) or even (parity 0) number of true slots; two automaton states.

    Args:
        arity: the number of binary slots.
        parity: of the number of true slots: 1, odd; 0, even, as in the parity checks of a code.
        dtype: of the log-values; torch's default.

    Raises:
        ModelError: a parity other than 0 and 1.

    Example:
        >>> Xor(2, parity=1).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    if parity not in (0, 1):
        raise ModelError(f"Xor needs parity 1 (odd) or 0 (even); got {parity!r}.")
    return _constraint([[0, 1], [1, 0]], [parity == 0, parity == 1], arity, dtype)


@typed(arity="[1, inf)")
def AtMostOne(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """Constraint: no two slots are true (log-value 0, else -inf); three automaton states.

    Args:
        arity: the number of binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> AtMostOne(2).table(2).exp().tolist()
        [[1.0, 1.0], [1.0, 0.0]]
    """
    return _counted("AtMostOne", arity, 0, 1, dtype)


@typed(arity="[1, inf)")
def ExactlyOne(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """Constraint: exactly one slot is true (log-value 0, else -inf); three automaton states.

    Args:
        arity: the number of binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> ExactlyOne(2).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    return _counted("ExactlyOne", arity, 1, 1, dtype)


@typed(arity="[1, inf)", at_least="[0, inf)", at_most="[0, inf)")
def Cardinality(
    arity: int, *, at_least: int = 0, at_most: int | None = None, dtype: torch.dtype | None = None
) -> Automaton:
    """Constraint: the number of true slots lies between two bounds (log-value 0, else -inf).

    It says "at least k", "at most k", or with both bounds equal "exactly k" of the slots.

    It has ``at_most + 2`` automaton states, ``at_least + 1`` without an upper bound; messages cost
    O(arity) times that.

    Args:
        arity: the number of binary slots.
        at_least: the smallest number allowed.
        at_most: the largest number allowed; None, or at least the arity: no bound.
        dtype: of the log-values; torch's default.

    Raises:
        ModelError: a negative bound, or bounds that no number of true slots meets.

    Example:
        >>> Cardinality(3, at_least=1, at_most=2).table(3).exp().sum()
        tensor(6.)
    """
    return _counted("Cardinality", arity, at_least, at_most, dtype)


def _counted(
    name: str, arity: int, at_least: int, at_most: int | None, dtype: torch.dtype | None
) -> Automaton:
    highest = arity if at_most is None else min(at_most, arity)
    if at_least > highest:
        limit = f"the arity {arity}" if highest == arity else f"at_most={at_most}"
        raise ModelError(f"{name} needs at_least <= {limit}; got at_least={at_least}.")
    # Without an upper bound, counting stops at the lower one.
    last = at_least if highest == arity else highest + 1
    transitions = [[count, min(count + 1, last)] for count in range(last + 1)]
    holds = [at_least <= count <= highest for count in range(last + 1)]
    return _constraint(transitions, holds, arity, dtype)


def _constraint(
    transitions: Sequence[Sequence[int]],
    holds: Sequence[bool],
    arity: int,
    dtype: torch.dtype | None,
) -> Automaton:
    log_accept = [0.0 if accepted else -math.inf for accepted in holds]
    return Automaton(torch.tensor(transitions), torch.tensor(log_accept, dtype=dtype), arity)
