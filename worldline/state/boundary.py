"""Boundary: what was seen of a state between two blocks, one flag a segment.

Two digests of a segment (see `segments`) say whether its content changed, and nothing else: bytes
that were written with the values that they had are not seen, and need not move either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from worldline.errors import InvalidInput

#: One bool per segment of a layout.
Flags = npt.NDArray[np.bool_]


class Baseline(StrEnum):
    """What a segment is held against to tell whether anything was ever written there."""

    #: The state that the session began with, made anew from its preset and seed.
    INITIAL_STATE = "initial state"
    #: Zero bytes: where the initial state is not known, or there was no room to make it.
    ZEROS = "zeros"


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """A state at rest between two blocks, as its digests tell."""

    #: The block that is generated next.
    block_index: int
    #: When it was reached, since the first boundary that was observed.
    at_ms: float
    #: How long the world waited for the digests.
    read_ms: float
    #: Segments whose digest is not that of the boundary before; none of the first boundary's.
    changed: Flags
    #: Segments whose digest is not the baseline's.
    differs: Flags


def pack_flags(flags: Flags) -> bytes:
    """Eight flags a byte, the first in the lowest bit."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpack_flags(packed: bytes, count: int, field: str) -> Flags:
    """So many flags.

    Raises:
        InvalidInput: the bytes hold another number of them; `field` names the message's field.
    """
    if len(packed) != -(-count // 8):
        raise InvalidInput(f"{field}: {len(packed)} bytes for {count} flags", field=field)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)
