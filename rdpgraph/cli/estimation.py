"""The options of estimators, as an estimator."""

from collections.abc import Callable
from dataclasses import replace

import torch
import typer

from rdpgraph.cli.options import EstimatorName, ProposalName
from rdpgraph.errors import ModelError
from rdpgraph.estimate.pilot import Pilot
from rdpgraph.estimate.problem import Estimator
from rdpgraph.estimate.proposal import Proposal
from rdpgraph.estimate.proposals import Global, Landmark, Local, LocalGlobal, Uniform
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selection import Size

_REPLICATES = 16


_PROPOSALS: dict[ProposalName, Callable[[], Proposal]] = {
    ProposalName.UNIFORM: Uniform,
    ProposalName.LOCAL: Local,
    ProposalName.GLOBAL: Global,
    ProposalName.LOCAL_GLOBAL: LocalGlobal,
    ProposalName.LANDMARK: Landmark,
    ProposalName.PILOT: Pilot,
}


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
    estimator = Randomized.default(keep=0.1 if keep is None else keep, replicates=many)
    if proposal is None or proposal is ProposalName.DEFAULT:
        return estimator
    return replace(estimator, proposal=_PROPOSALS[proposal]())


def seeded(seed: int | None) -> torch.Generator | None:
    """A generator; without a seed, torch's own randomness."""
    if seed is None:
        return None
    if not -(2**63) <= seed < 2**64:
        raise ModelError(f"--seed needs a whole number of 64 bits; got {seed}.")
    return torch.Generator().manual_seed(seed)
