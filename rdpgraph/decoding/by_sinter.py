"""The decoder as sinter calls it; needs sinter, of the extra ``stim``."""

import importlib
from typing import Any

import numpy

from rdpgraph.decoding.cosets import CosetDecoder
from rdpgraph.errors import UnsupportedError
from rdpgraph.structures.parity.model import ParityModel

try:
    _sinter: Any = importlib.import_module("sinter")
    _Base: Any = _sinter.Decoder
    _Compiled: Any = _sinter.CompiledDecoder
except ImportError:
    _Base = _Compiled = object


class _CompiledParity(_Compiled):
    """A decoder of one model, for shots of packed bits."""

    def __init__(self, decoder: CosetDecoder) -> None:
        self.decoder = decoder

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: Any) -> Any:
        """Packed observables of packed detection events, as sinter says."""
        count = self.decoder.model.checks.num_checks
        shots = numpy.unpackbits(
            bit_packed_detection_event_data, axis=1, count=count, bitorder="little"
        )
        bits = self.decoder.decide(shots).numpy().astype(numpy.uint8)
        return numpy.packbits(bits, axis=1, bitorder="little")


class SinterDecoder(_Base):
    """A ``sinter.Decoder`` for ``sinter.collect(custom_decoders=...)``; can be pickled.

    Args:
        keep: the number of states kept, as for `CosetDecoder`; None: exact.

    Raises:
        UnsupportedError: sinter is not installed.
    """

    def __init__(self, keep: int | None = None) -> None:
        if _Base is object:
            raise UnsupportedError(
                "SinterDecoder needs sinter, which is not installed: pip install rdpgraph[stim]."
            )
        self.keep = keep

    def compile_decoder_for_dem(self, *, dem: Any) -> _CompiledParity:
        """Return a decoder of a stim.DetectorErrorModel, as sinter calls it."""
        model = ParityModel.from_dem(dem)
        return _CompiledParity(CosetDecoder(model, self.keep))
