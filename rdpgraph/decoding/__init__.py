"""Decoders of parity models: cosets with a confidence, messages, rates learned from syndromes.

`SinterDecoder` is for ``sinter.collect``; sinter is imported when it is asked for.
"""

from typing import Any

from rdpgraph.decoding.cosets import CosetDecoder, Decoded, WindowDecoder
from rdpgraph.decoding.messages import Messages, MessagesDecoder, learn_damping
from rdpgraph.decoding.rates import LearnedRates, learn_rates

__all__ = [
    "CosetDecoder", "Decoded", "LearnedRates", "Messages", "MessagesDecoder", "WindowDecoder",
    "learn_damping", "learn_rates",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "SinterDecoder":
        from rdpgraph.decoding.by_sinter import SinterDecoder

        return SinterDecoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
