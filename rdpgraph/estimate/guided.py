"""What a proposal says of each variable of a reduced network: how whole configurations are led."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rdpgraph.engines.network import Network
from rdpgraph.engines.tables import Floats
from rdpgraph.errors import ModelError
from rdpgraph.estimate.proposals import Proposal, normalised
from rdpgraph.estimate.selections import TopSystematic
from rdpgraph.estimate.setting import Model, Setting

_KEPT = 0.5
"""A proposal that runs inference keeps this share of the states, and draws as many of the rest."""


@torch.no_grad()
def log_likely(
    proposal: Proposal,
    network: Network,
    *,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> list[list[Floats]]:
    """For each batch item and active variable the log-probabilities of the states left.

    Equal ones where the proposal gives -inf to all of them.

    Args:
        proposal: of the states of the graph's variables.
        network: the graph, reduced; its auxiliary variables have equal probabilities.
        solve: gives the posterior of a model to proposals that ask for one.
        generator: the randomness of the proposal.

    Raises:
        ModelError: scores that are NaN or +inf.
    """
    setting = Setting.of(
        network.graph, TopSystematic(_KEPT, _KEPT), solve=solve, generator=generator
    )
    of_groups = proposal.scores_of(setting) if setting.groups else ()
    rows = {int(number): place for place, number in enumerate(network.numbers.tolist())}
    equal = [np.full(size, -np.log(max(size, 1))) for size in network.sizes]
    every = [list(equal) for _ in range(network.batch)]
    for sites, given in zip(setting.groups, of_groups, strict=True):
        scores = given.to(sites.unary).expand(sites.unary.shape)
        if bool((scores.isnan() | (scores == torch.inf)).any()):
            raise ModelError(f"{type(proposal).__name__} gives scores that are NaN or +inf.")
        flat = scores.double().cpu().reshape(-1, *sites.unary.shape[-2:])
        flat = flat.expand(network.batch, *flat.shape[1:])
        assert sites.numbers is not None
        for site, number in enumerate(sites.numbers.tolist()):
            place = rows.get(number)
            if place is None:
                continue
            states = network.states_left(
                torch.tensor([number], device="cpu"), network.sizes[place]
            )[0]
            here = flat[:, site, states]
            silent = (here == -torch.inf).all(-1, keepdim=True)  # it knows of no possible state
            log_chances = normalised(torch.where(silent, 0.0, here)).numpy()
            for item in range(network.batch):
                every[item][place] = log_chances[item]
    return every
