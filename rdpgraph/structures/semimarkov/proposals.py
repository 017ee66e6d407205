"""What proposals ask of a semi-Markov chain: which labels of which segments look likely."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table
from rdpgraph.structures.chain.tensors import flattened, table_of
from rdpgraph.structures.semimarkov.masses import LabelledSegments


@torch.no_grad()
def unary(segments: Tensor, lengths: Tensor | None) -> Tensor:
    """(*batch, T, D, N) potentials; -inf for what starts before the sequence or ends beyond it."""
    place, reach, length = _places(segments, lengths)
    return torch.where((place >= reach) & (place < length), segments, -math.inf)


@torch.no_grad()
def mean_values(
    segments: Tensor,
    lengths: Tensor | None,
    potential: Potential,
    landmarks: int,
    generator: torch.Generator | None,
) -> Tensor:
    """(*batch, T, D, N) the log of a label's mean transition from others, and to others."""
    place, reach, length = _places(segments, lengths)
    before, after = _means(potential, landmarks, generator)
    if before.ndim > 1:
        # Number t is of the step from t to t + 1: it meets segments that start, or end, there.
        steps = torch.arange(segments.shape[-3], device=before.device)
        start = (steps.unsqueeze(1) - reach.T - 1).clamp(0, max(before.shape[-2] - 1, 0))
        before = before[..., start, :] if before.shape[-2] else before.new_zeros(1)
        after = pad(after, (0, 0, 0, 1)).unsqueeze(-2)
    return torch.where(place > reach, before, 0.0) + torch.where(place < length - 1, after, 0.0)


@torch.no_grad()
def log_masses(
    every: Tensor, lengths: Tensor | None, potential: Potential, states: Tensor, kept: Tensor
) -> Tensor:
    """(*lead, T, D, N) the log-mass of every label of a segment given those kept, for `Sites`.

    Args:
        every: (*batch, T, D, N) potentials.
        lengths: (*batch,).
        potential: the transition.
        states: (*lead, T, D, K) the labels that are kept.
        kept: of that shape, their potentials.
    """
    (*lead, steps, durations, few), labels = states.shape, every.shape[-1]
    every = unary(every, lengths).expand(*lead, steps, durations, labels)
    lengths = torch.tensor(steps, device=every.device) if lengths is None else lengths
    if len(potential.shape) > 2:
        potential = Table.from_logs(flattened(table_of(potential, of="SemiMarkov"), lead))
    shape = (math.prod(lead), steps, durations, few)
    segments = LabelledSegments(
        kept.double().reshape(shape),
        states.reshape(shape),
        lengths.expand(lead).reshape(-1),
        potential,
    )
    return segments.masses(every.reshape(*shape[:-1], labels)).reshape(every.shape)


def _places(segments: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Where segments end, how long before they start, and the lengths, against (T, D, N)."""
    device, (steps, durations) = segments.device, segments.shape[-3:-1]
    lengths = torch.tensor(steps, device=device) if lengths is None else lengths
    place = torch.arange(steps, device=device).reshape(-1, 1, 1)
    reach = torch.arange(durations, device=device).reshape(-1, 1)
    return place, reach, lengths.to(device).reshape(*lengths.shape, 1, 1, 1)


def _means(
    potential: Potential, landmarks: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(*each, N) over the labels before and those after; all of them if that costs O(N r)."""
    labels = potential.shape[-1]
    if isinstance(potential, LowRank):
        left, right = potential.log_left, potential.log_right
        # The means of the factors, over the labels at the other end.
        onto, back = ((part.logsumexp(0) - math.log(labels)) for part in (left, right))
        return (onto + right).logsumexp(1), (back + left).logsumexp(1)
    device = potential.device
    where = device if generator is None else generator.device
    asked = torch.randint(labels, (landmarks,), generator=generator, device=where).to(device)
    every = torch.arange(labels, device=device)
    before, after = potential.evaluate([asked, every]), potential.evaluate([every, asked])
    return before.logsumexp(-2) - math.log(landmarks), after.logsumexp(-1) - math.log(landmarks)
