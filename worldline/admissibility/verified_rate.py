"""Verified rate: what a wire and a digest engine carry together, and where that puts the digest.

Paper, section 6.5: harm(B_wire, B_crc) <= B_verified <= min(B_wire, B_crc), the lower bound where
one waits for the other, the upper where they overlap; and section 6.4: what stays exposed of an
overlapped digest is that of the last chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.bounds import check_duration_ms, check_rate, check_setup_ms
from worldline.admissibility.schedule import Schedule


@dataclass(frozen=True, slots=True)
class VerifiedWire:
    """A wire (B_wire) whose bytes one engine digests at the receiver (B_crc), in bytes a second.

    Raises:
        InvalidInput: a rate out of range; `field` is its name.
    """

    wire_rate_bytes_per_s: float
    digest_rate_bytes_per_s: float

    def __post_init__(self) -> None:
        check_rate(self.wire_rate_bytes_per_s, "wire_rate_bytes_per_s")
        check_rate(self.digest_rate_bytes_per_s, "digest_rate_bytes_per_s")

    @property
    def rate_min_bytes_per_s(self) -> float:
        """harm(B_wire, B_crc) = 1/(1/B_wire + 1/B_crc): digest only after the last byte."""
        return 1 / (1 / self.wire_rate_bytes_per_s + 1 / self.digest_rate_bytes_per_s)

    @property
    def rate_max_bytes_per_s(self) -> float:
        """min(B_wire, B_crc): whichever saturates first, the other hidden behind it."""
        return min(self.wire_rate_bytes_per_s, self.digest_rate_bytes_per_s)

    @property
    def wires_max(self) -> float:
        """K* = B_crc/B_wire, how many such wires the engine keeps up with (section 6.5)."""
        return self.digest_rate_bytes_per_s / self.wire_rate_bytes_per_s

    def transfer_ms(self, state_bytes: int, schedule: Schedule) -> float:
        """Time from the first byte sent until the last is digested, in milliseconds.

        Chunks cross in order, and each is digested in order once it is there. Whichever chunk
        was the last that the engine had to wait for, the bytes up to it crossed and the bytes
        from it on were digested, one after the other; the longest such sum is the time. Within a
        run of equal chunks that sum grows or falls steadily, so its ends suffice.

        Raises:
            InvalidInput: a size out of range.
        """
        longest_s, sent_bytes = 0.0, 0
        for run in schedule.runs(state_bytes):
            for before_bytes in (sent_bytes, sent_bytes + run.run_bytes - run.chunk_bytes):
                crossed_s = (before_bytes + run.chunk_bytes) / self.wire_rate_bytes_per_s
                digested_s = (state_bytes - before_bytes) / self.digest_rate_bytes_per_s
                longest_s = max(longest_s, crossed_s + digested_s)
            sent_bytes += run.run_bytes
        return longest_s * 1e3

    def rate_bytes_per_s(self, state_bytes: int, schedule: Schedule) -> float:
        """B_verified of one state on one schedule, between the two bounds.

        Raises:
            InvalidInput: a size out of range.
        """
        return state_bytes / self.transfer_ms(state_bytes, schedule) * 1e3


def rate_with_tail_bytes_per_s(
    wire_rate_bytes_per_s: float, wire_ms: float, tail_ms: float
) -> float:
    """B_wire * wall/(wall + tail): the verified rate from a measured tail (section 6.4).

    `wire_ms` is the wall of the wire alone, `tail_ms` the digest that is left after its last byte.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """
    check_rate(wire_rate_bytes_per_s, "wire_rate_bytes_per_s")
    check_duration_ms(wire_ms, "wire_ms")
    check_setup_ms(tail_ms, "tail_ms")
    return wire_rate_bytes_per_s * wire_ms / (wire_ms + tail_ms)
