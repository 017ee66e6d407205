"""What proposals ask of a tape: which sites are used at all, and what their states may meet."""

import math

import torch
from torch import Tensor

from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.recursion.down import down, of_sites
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.up import leaves


@torch.no_grad()
def usable(tape: Tape) -> Tensor:
    """(*lead, *sites, K) whether some derivation uses a site, whatever links say of states."""
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
    """(*lead, *sites, N) the log of the mean of what the links to and from each state say.

    Args:
        tape: on all states.
        landmarks: over how many random labels at the other end the mean of a link is taken.
        generator: the randomness.
    """
    sites, width = math.prod(tape.site_shape), tape.unary.shape[-1]
    total = tape.unary.new_zeros(tape.batch, sites, width)
    known: dict[int, tuple[Tensor, Tensor]] = {}
    for end in (0, 1):
        sums = total.new_full((tape.batch, sites, width), -math.inf)
        counts = total.new_zeros(sites, 1)
        for before, source, after in tape.meetings:
            own = after if end else before
            if own.sites is None or own.sites.ndim > 1:  # of other sites in each item
                continue
            if id(source) not in known:
                known[id(source)] = _sides(source, landmarks, generator)
            logs = known[id(source)][end].to(sums)
            sums[:, own.sites] = torch.logaddexp(sums[:, own.sites], logs)
            counts[own.sites] += 1.0
        mean = torch.where(counts > 0, sums - counts.log(), 0.0)
        total = total + mean
    return total.reshape(tape.unary.shape)


def _sides(
    source: Tensor | Potential, landmarks: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(B or 1, P or 1, N) and (..., M): the log-mean over random labels of the other end."""
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
