"""Results in a reduced network's numbering, converted to that of the graph."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rdpgraph.engines.reduction.network import Network
from rdpgraph.errors import UnsupportedError


def variable_table(
    network: Network,
    parts: Iterable[tuple[Tensor, Tensor]],
    empty: float,
    settled: Tensor | float,
) -> Tensor:
    """Values of the remaining states as a flat (B, S) table over all states.

    Args:
        network: the reduced model.
        parts: active variables (n,) with equally many remaining states k, and their values
            (batch or 1, n, k); auxiliary variables are skipped.
        empty: value of a state that was dropped.
        settled: value of a settled variable's state: one number, or (B,).
    """
    domain = network.graph.domain
    device = network.constant.device
    starts = domain.state_starts
    flat = torch.full(
        (network.batch, int(starts[-1])), empty, dtype=network.constant.dtype, device=device
    )
    rows = torch.arange(network.batch, device="cpu").unsqueeze(1)
    fixed = (network.settled[0] >= 0).nonzero().flatten()
    if len(fixed) and not network.impossible:
        places = (starts[fixed] + network.settled[:, fixed]).expand(network.batch, -1)
        value = settled.unsqueeze(1) if isinstance(settled, Tensor) else flat.new_tensor(settled)
        flat = flat.index_put((rows.to(device), places.to(device)), value.to(flat))
    targets: list[Tensor] = []
    values: list[Tensor] = []
    auxiliary = len(network.numbers) < len(network.sizes)
    for variables, part in parts:
        if auxiliary:
            declared = variables < len(network.numbers)
            variables, part = variables[declared], part[:, declared.to(device)]
        numbers = network.numbers[variables]
        left = network.states_left(numbers, part.shape[2])
        targets.append((starts[numbers].unsqueeze(1) + left).reshape(-1))
        values.append(part.reshape(len(part), -1).expand(network.batch, -1).to(flat))
    if not targets:
        return flat
    return flat.index_copy(1, torch.cat(targets).to(device), torch.cat(values, 1))


def factor_tables(network: Network, block: int, beliefs: Callable[[int], Tensor]) -> Tensor:
    """(B, F, *sizes) probabilities of a block's factors, settled slots included.

    ``beliefs`` gives a group's probabilities (batch or 1, F, *sizes left).
    """
    declared = network.graph.blocks[block]
    sizes = declared.sizes
    if not network.origins[block] and declared.count and not network.impossible:
        raise UnsupportedError(
            f"Factor marginals of {type(declared.potential).__name__} over {len(sizes)} variables "
            "are not available; ask for fewer variables that another factor holds together."
        )
    shape = (network.batch, declared.count, math.prod(sizes))
    flat = torch.zeros(shape, dtype=network.constant.dtype, device=network.constant.device)
    batch = torch.arange(network.batch, device="cpu").reshape(-1, 1, 1)
    for members, group, slots in network.origins[block]:
        scopes = declared.scopes[members]
        places = torch.zeros(1, len(members), 1, dtype=torch.long, device="cpu")
        for slot, size in enumerate(sizes):
            if slot in slots:
                kept = network.groups[group].log_tables.shape[2 + slots.index(slot)]
                states = network.states_left(scopes[:, slot], kept).unsqueeze(0)
            else:
                states = network.settled[:, scopes[:, slot]].unsqueeze(-1)
            places = (places.unsqueeze(-1) * size + states.unsqueeze(-2)).flatten(2)
        values = flat.new_ones(1, 1, 1) if group < 0 else beliefs(group).flatten(2)
        index = (batch, members.reshape(1, -1, 1), places)
        values = values.to(flat.dtype).expand(network.batch, len(members), -1)
        flat = flat.index_put(tuple(i.to(flat.device) for i in index), values)
    return flat.reshape([*shape[:2], *sizes])


def full_states(network: Network, active: Tensor) -> Tensor:
    """(n, B, V) states of all variables from (n, B, active) ones, numbered as remaining."""
    device = active.device
    settled = network.settled.to(device).expand(network.batch, -1)
    full = settled.expand(len(active), *settled.shape).clone()
    numbers = network.numbers
    left = torch.tensor(network.sizes, dtype=torch.long, device="cpu")[: len(numbers)]
    for size in torch.unique(left).tolist():
        chosen = (left == size).nonzero().flatten()
        table = network.states_left(numbers[chosen], size).to(device)
        states = active[:, :, chosen.to(device)]
        rows = torch.arange(len(chosen), device=device)
        full[:, :, numbers[chosen].to(device)] = table[rows, states]
    return full
