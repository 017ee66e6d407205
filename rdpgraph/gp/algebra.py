"""What normal distributions are computed with: their noise, and factors of their covariances."""

import torch
from torch import Tensor

from rdpgraph.errors import ModelError


def noise(
    *shape: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Independent standard normal draws, on a device whichever one the generator is on."""
    own = device if generator is None else generator.device
    return torch.randn(*shape, dtype=dtype, device=own, generator=generator).to(device)


def cholesky(covariance: Tensor, what: str, remedy: str) -> Tensor:
    """Lower Cholesky factors; differentiable.

    Args:
        covariance: (*batch, n, n).
        what: it is of, as the message names it.
        remedy: what to do where there is no factor.

    Raises:
        ModelError: a matrix without one.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise ModelError(
            f"The covariance of {what} is not positive definite in {covariance.dtype} (no Cholesky "
            f"factor at row {int(failed.max())}): {remedy}."
        )
    return factor
