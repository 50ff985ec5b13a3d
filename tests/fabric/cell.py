"""Cell: the fabric of both experiments, in the paper's proportions, and slower.

Times are twice the paper's (horizon 800 ms for its 400, retransmission timers of 1,072 ms for its
536), and rates such that two cores are never what a move waits for: 0.1 Gbit/s a port. A move alone
takes about 425 ms. The paper's takes 182 of 400 ms (section 6.3), and its two at once 415 where
nothing is lost: a port that is merely shared cannot do both, and this cell keeps the second,
because that two moves into one receiver are late is what the experiment is about. One node sends at
54/73 of the rate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tests.fabric.namespaces import Port

#: Twice the timer of the paper's network cards after tuning (appendix A).
_RETRANSMIT_MIN_MS = 1_072
PORT = Port(100_000_000, retransmit_min_ms=_RETRANSMIT_MIN_MS)
#: The same with a buffer of less than three packets.
SHALLOW_PORT = Port(
    100_000_000,
    burst_bytes=8_192,
    limit_bytes=8_192,
    packet_bytes_max=3_000,
    retransmit_min_ms=_RETRANSMIT_MIN_MS,
)


@dataclass(frozen=True, slots=True)
class ShapedCell:
    """What is built, and what moves through it."""

    nodes: tuple[str, ...] = ("a", "b", "c", "d")
    port: Port = PORT
    slow_sender: str = "d"
    slow_egress_bits_per_s: int = 74_000_000
    size_bytes: int = 5_000_000
    horizon_ms: float = 800.0

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)
