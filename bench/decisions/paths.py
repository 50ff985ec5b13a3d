"""Measured paths: a third of the paths between nodes of one kind, each probed and moved over."""

from __future__ import annotations

import random
import zlib
from itertools import permutations

from bench.decisions.scene import KINDS, Size
from bench.fabric.streams import stream
from services.admission.core import Admission
from services.admission.paths import Pair
from worldline.admissibility.path_rate import TransferSample

MEASURED_SHARE = 0.3
PROBES_BYTES = (*(3 * (1 << 20,)), *(5 * (64 << 20,)))
MOVE_BYTES = 1_670_124_960
SETUP_MS = 2.0
#: Slowest and fastest path: 30 and 100 Gb/s.
RATES_BYTES_PER_S = (30e9 / 8, 100e9 / 8)
_AGE_MAX_MS = 1e12


class Rates:
    """What each path really reaches; the same for a pair in every run with this seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def transfer_ms(self, pair: Pair, size_bytes: int, luck: float) -> float:
        """A transfer of that size; `luck` is how many times as long as usual it takes."""
        # By a digest and not by a generator: a fleet has too many paths to seed one for each.
        share = zlib.crc32(f"{self._seed}/{pair[0]}/{pair[1]}".encode()) / 2**32
        slowest, fastest = RATES_BYTES_PER_S
        rate = slowest + share * (fastest - slowest)
        return (SETUP_MS + size_bytes / rate * 1e3) * luck


def measure(core: Admission, size: Size, seed: int, rates: Rates, now_s: float) -> int:
    """Teach admission the paths; returns how many. At most as many as it remembers."""
    draw = stream(seed, "decisions/paths")
    names = [f"node-{number:04}" for number in range(size.nodes)]
    pairs = [
        pair
        for kind in range(KINDS)
        for pair in permutations(names[kind::KINDS], 2)
        if draw.random() < MEASURED_SHARE
    ]
    for pair in pairs:
        for size_bytes in (*PROBES_BYTES, MOVE_BYTES):
            transfer_ms = rates.transfer_ms(pair, size_bytes, jitter(draw))
            core.paths.teach(pair, TransferSample(size_bytes, transfer_ms), now_s, _AGE_MAX_MS)
    return len(core.paths)


def jitter(draw: random.Random) -> float:
    """How much longer than usual: one move in fifty takes three times as long."""
    return 3.0 if draw.random() < 0.02 else draw.uniform(0.98, 1.02)
