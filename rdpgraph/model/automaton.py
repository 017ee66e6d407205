"""A potential that reads its slots in order: a deterministic finite automaton."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._shapes import broadcast_shapes
from rdpgraph._types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.model.arrays import settle
from rdpgraph.model.potential import Decomposition, Part, Potential, message_lead, select_lead
from rdpgraph.model.semiring import soft_scatter, soft_sum
from rdpgraph.model.table import checked_log_values


@dataclass(frozen=True, eq=False)
class Automaton(Potential):
    """The log-value (nats) of the state in which an automaton ends that has read the slots.

    It starts in state 0 and reads the slots in order, all of k states and with the same
    transitions. Memory is that of the Q k transitions and the log-values; messages cost O(Q k) per
    slot; the exact engine joins many slots by a chain of auxiliary variables of at most Q states
    instead of forming their table. `rdpgraph.model.logical` builds the usual constraints.

    Args:
        transitions: (Q, k) integer, the next state from each state on each state of a slot.
        log_accept: (*lead, Q) floating, the log-value of ending in each state; -inf where that is
            not accepted. Gradients flow to it.
        arity: how many slots it reads.

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

    if TYPE_CHECKING:  # what the fields are made of

        def __init__(self, transitions: ArrayLike, log_accept: ArrayLike, arity: int) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_accept", whole=("transitions",))
        checked_log_values("Automaton", self.log_accept)
        given = self.transitions
        if not isinstance(given, Tensor) or given.is_floating_point() or given.dtype == torch.bool:
            kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise ModelError(f"Automaton needs an integer tensor of transitions; got {kind}.")
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
        checked_arity("Automaton", self.arity)
        object.__setattr__(self, "transitions", given.to(self.log_accept.device).long())

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading dims, then the number of states of each slot."""
        return (*self.log_accept.shape[:-1], *(self.transitions.shape[1],) * self.arity)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-values."""
        return self.log_accept.dtype

    @property
    def device(self) -> torch.device:
        """Where the log-values live."""
        return self.log_accept.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: a walk, O(grid) a slot and no larger in memory."""
        place = torch.zeros(1, dtype=torch.long, device=self.device)
        for chosen in states:
            read = chosen.to(self.device).unsqueeze(-2)
            place = self.transitions[place.unsqueeze(-1), read].flatten(-2)
        own, grid = self.log_accept.shape[:-1], [chosen.shape[-1] for chosen in states]
        lead = broadcast_shapes(own, place.shape[:-1])
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
        """For each slot the states before it that lie on the way to an accepted one."""
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


def checked_arity(name: str, arity: int) -> int:
    """Refuse what is not a number of slots, or less than one."""
    if isinstance(arity, bool) or not isinstance(arity, int) or arity < 1:
        raise ModelError(f"{name} needs an arity of at least 1; got {arity!r}.")
    return arity


def _states_first(values: Tensor, dims: int) -> Tensor:
    """(*lead, states) as (states, *lead), the lead padded in front to ``dims`` dims."""
    lead = tuple(values.shape[:-1])
    padded = values.reshape(*(1,) * (dims - len(lead)), *lead, values.shape[-1])
    return padded.movedim(-1, 0)
