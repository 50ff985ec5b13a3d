"""Digest rate: how many bytes a second this host's cores digest, measured once at start.

Admission lets only so many moves into one host at once as its digests keep up with (paper, section
6.5: K* = B_crc / B_wire), and believes no data sheet. Measured is what moves are digested with, the
same pool over granules of noise that no core's own cache holds. Movers of one host that start
together measure each other's load too, and that is right: they will digest together.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

import numpy as np

from worldline.fields import positive, whole
from worldline.state.digest import GRANULE_BYTES, crc64

#: Long enough for tens of granules a thread, and nobody notices it at a start.
MEASURE_S = 0.05
#: Beyond any core's second-level cache.
_NOISE_GRANULES = 32


async def measured_digest_rate(pool: Executor, threads: int, measure_s: float = MEASURE_S) -> float:
    """Bytes a second that `threads` of `pool` digest together; takes about `measure_s`.

    Raises:
        InvalidInput: no threads, or no time.
    """
    whole(threads, "threads", at_least=1)
    positive(measure_s, "measure_s")
    loop = asyncio.get_running_loop()
    noise = memoryview(await loop.run_in_executor(pool, _noise))
    began_s = time.perf_counter()
    digested = await asyncio.gather(
        *(
            loop.run_in_executor(pool, _digest_until, noise, first, began_s + measure_s)
            for first in range(threads)
        )
    )
    return sum(digested) * GRANULE_BYTES / (time.perf_counter() - began_s)


def _noise() -> bytes:
    return np.random.default_rng().bytes(_NOISE_GRANULES * GRANULE_BYTES)


def _digest_until(noise: memoryview, first: int, end_s: float) -> int:
    """Digest one granule after another, beginning with `first`; returns how many, at least one."""
    granules = 0
    while granules == 0 or time.perf_counter() < end_s:
        at = (first + granules) % _NOISE_GRANULES * GRANULE_BYTES
        crc64(noise[at : at + GRANULE_BYTES])
        granules += 1
    return granules
