"""Scratch: memory of random bytes that a probe sends, in the same kind of memory as a slot's."""

from __future__ import annotations

import os
import secrets

import numpy

from services.mover.memory.allocate import allocate_memory
from services.mover.memory.base import SlotMemory

_STEP_BYTES = 4 << 20


def random_memory(device: str, size_bytes: int) -> SlotMemory:
    """Fresh memory of random bytes, which no lane can compress. Blocks; the caller closes it.

    Generators make 0.4 GB/s, and a large probe's ticket would run out meanwhile: one random block
    under a new key each time looks as random to anything on the way.

    Raises:
        Unavailable, CapacityExhausted: as `allocate_memory`.
    """
    scratch = allocate_memory(device, "worldline-probe", max(1, size_bytes))
    try:
        block = numpy.frombuffer(os.urandom(_STEP_BYTES), numpy.uint64)
        for start in range(0, size_bytes, _STEP_BYTES):
            masked = block ^ numpy.uint64(secrets.randbits(64))
            scratch.write(start, masked.data.cast("B")[: size_bytes - start])
    except BaseException:
        scratch.close()
        raise
    return scratch
