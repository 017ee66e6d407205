"""The options of estimators, as an estimator."""

import re
from dataclasses import replace
from enum import StrEnum

import torch
import typer

from rdpgraph.errors import ModelError
from rdpgraph.estimate.exact import Estimator
from rdpgraph.estimate.pilot import Pilot
from rdpgraph.estimate.proposal import Proposal
from rdpgraph.estimate.proposals import Global, Landmark, Local, LocalGlobal, Uniform
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selection import Size

_REPLICATES = 16


class EstimatorName(StrEnum):
    """What is done to the model before it is solved."""

    EXACT = "exact"
    RANDOMIZED = "randomized"


class ProposalName(StrEnum):
    """Which states look likely."""

    DEFAULT = "default"
    UNIFORM = "uniform"
    LOCAL = "local"
    GLOBAL = "global"
    LOCAL_GLOBAL = "local-global"
    LANDMARK = "landmark"
    PILOT = "pilot"


_PROPOSALS: dict[ProposalName, type[Proposal]] = {
    ProposalName.UNIFORM: Uniform,
    ProposalName.LOCAL: Local,
    ProposalName.GLOBAL: Global,
    ProposalName.LOCAL_GLOBAL: LocalGlobal,
    ProposalName.LANDMARK: Landmark,
    ProposalName.PILOT: Pilot,
}


def size(text: str) -> Size:
    """A number of states, ``100``, or a share of them: ``10%``, ``0.1``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if match is None:
        raise typer.BadParameter(f"expected a number of states or a share like 10%; got {text!r}")
    if not match[2] and match[1].isdigit():
        return int(match[1])
    return float(match[1]) / (100 if match[2] else 1)


def estimator_of(
    name: EstimatorName,
    keep: Size | None,
    proposal: ProposalName | None,
    replicates: int | None,
) -> Estimator | None:
    """The estimator asked for; None: exact.

    Raises:
        ModelError: a number that makes no sense.
    """
    if name is EstimatorName.EXACT:
        if keep is not None or proposal is not None or replicates is not None:
            raise typer.BadParameter(
                "--keep, --proposal and --replicates need --estimator randomized"
            )
        return None
    many = _REPLICATES if replicates is None else replicates
    found = Randomized.default(keep=0.1 if keep is None else keep, replicates=many)
    if proposal is None or proposal is ProposalName.DEFAULT:
        return found
    return replace(found, proposal=_PROPOSALS[proposal]())


def seeded(seed: int | None) -> torch.Generator | None:
    """A generator; without a seed, torch's own randomness."""
    if seed is None:
        return None
    if not -(2**63) <= seed < 2**64:
        raise ModelError(f"--seed needs a whole number of 64 bits; got {seed}.")
    return torch.Generator().manual_seed(seed)
