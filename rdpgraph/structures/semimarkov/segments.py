"""Semi-Markov chains as a recursion over segments: what estimators restrict."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph._cache import remembered
from rdpgraph.model.potential import Potential
from rdpgraph.structures.chain.tensors import table_of
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


@dataclass(frozen=True, eq=False)
class SegmentsRecursion(Recursion):
    """The segmentations of a `SemiMarkov`, laid out on a tape.

    Sites are segments, [last position, duration]. On K states of each, log Z costs O(T (D K)^2),
    or O(T D K r) with a `LowRank` transition.

    Args:
        unary: (*batch, T, D, N) log-potentials of segments.
        transition: (N, N), or (*batch, T - 1, N, N).
        lengths: (*batch,), or None.
    """

    transition: Tensor | Potential
    lengths: Tensor | None = field(default=None, metadata={"dims": 0})

    site_dims = 2
    doubles = True

    @property
    def name(self) -> str:
        """The name of the model in messages."""
        return "SemiMarkov"

    def recursion(self, tape: Tape) -> Value:
        """By position: all segments that start there, then all that end there."""
        steps, durations = tape.site_shape
        transition = self.transition
        if isinstance(transition, Potential) and len(transition.shape) > 2:
            transition = table_of(transition, of=self.name)
        begun, ends = list[Value](), list[Value]()
        for place, (sites, latest) in enumerate(_places(steps, durations, tape.device)):
            segments = tape.sites.leaf(sites)
            if place:
                between = transition
                if isinstance(between, Tensor) and between.ndim > 2:
                    between = between[..., place - 1, :, :]
                entering = tape.link(ends[-1], between, to=segments)
                segments = tape.total((segments, entering))
            begun.append(segments)
            ends.append(tape.merge(View(tuple(begun[-durations:]), latest)))
        if self.lengths is None:
            return ends[-1] if ends else tape.one
        lengths = tape.lengths(self.lengths, steps).unsqueeze(1)
        empty = tape.allowed(lengths == 0)
        last = tape.total(tape.view(ends, (lengths - 1).unsqueeze(2))) if ends else tape.nothing
        return tape.total(tape.sum(last), empty)


@remembered(16)
def _places(steps: int, durations: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For each position the numbers of the sites that start there, and which of those end there.

    The latter are places among those of the latest positions where segments start, as many as there
    are durations; the longest first. Such as would start before the sequence are none.
    """
    reach, places = torch.arange(durations), list[tuple[Tensor, Tensor]]()
    counts = [min(durations, steps - start) for start in range(steps)]
    for place in range(steps):
        long = reach[: counts[place]]
        latest = torch.tensor(counts[: place + 1][-durations:])
        ends = latest.cumsum(0) - latest + reach[: len(latest)].flip(0)
        none = ends.new_full((durations - len(latest),), int(latest.sum()))
        sites = (place + long) * durations + long
        places.append((sites.to(device), torch.cat([none, ends]).unsqueeze(1).to(device)))
    return places
