"""What an answer is worth."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """Whether a posterior is exact, converged and unbiased, and what to do if not.

    Attributes:
        exact: the answers are exact up to rounding.
        converged: the iteration, if there was one, reached its tolerance.
        biased: log Z is a biased estimate.
        iterations: sweeps, or None where nothing iterates.
        residual: the last change of a message, or None.
        effective_sample_size: over replicates, or None.
        standard_error: of log Z over replicates, in nats, or None.
        bound: ``"upper"`` or ``"lower"`` if log Z is a bound; else empty.
        trace: the residual of every sweep.
        method: what answered, where one was tried after another; else empty.
        remedy: what would give a better answer; empty where there is nothing to improve.
    """

    exact: bool = True
    converged: bool = True
    biased: bool = False
    iterations: int | None = None
    residual: float | None = None
    effective_sample_size: float | None = None
    standard_error: float | None = None
    bound: str = ""
    trace: tuple[float, ...] = field(default=(), repr=False)
    method: str = ""
    remedy: str = ""
