"""What a tape is to the compiled machine: a program, and the tensors that it is run on."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.tape.program import (
    Inputs,
    NotLoweredError,
    Program,
    Slot,
    lowered,
    tensor_of,
)
from rdpgraph.structures.tape.step import Step


class Lowered:
    """The steps of a tape, lowered when they are asked for.

    Attributes:
        unary: (*lead, *sites, K) the log-potentials of the sites' states.
        states: which states they are; None: all, in order.
        steps: all of them.
        dtype: of all log-values.
        batch: the product of the lead.
        site_shape: the dims of the sites.
    """

    unary: Tensor
    states: Tensor | None
    steps: list[Step]
    dtype: torch.dtype

    @property
    def batch(self) -> int:
        """The product of the batch dims, B."""
        raise NotImplementedError

    @property
    def site_shape(self) -> tuple[int, ...]:
        """The dims of the sites."""
        raise NotImplementedError

    @cached_property
    def program(self) -> Program | None:
        """What the compiled machine runs, if it has all steps; of a tape that has a goal."""
        if self.states is not None:
            return None
        try:
            return lowered(self.steps, self.unary.shape[-1])
        except NotLoweredError:
            return None

    @property
    def inputs(self) -> Inputs:
        """What its program is run on."""
        assert self.program is not None
        return Inputs(self.flat_unary, [tensor_of(slot, self.dtype) for slot in self.slots])

    @property
    def flat_unary(self) -> Tensor:
        """(B, sites, K) the potentials of the sites, in the type of the tape."""
        shape = self.batch, math.prod(self.site_shape), self.unary.shape[-1]
        return self.unary.reshape(shape).to(self.dtype).contiguous()

    @property
    def slots(self) -> Sequence[Slot]:
        """Those of its program."""
        assert self.program is not None
        return self.program.slots

    @property
    def whole(self) -> Self:
        """The tape with all steps."""
        return self
