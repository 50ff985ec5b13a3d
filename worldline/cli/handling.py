"""Handling: what is done to a state's bytes between the source's slot and the commit."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.codec import Codec
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.admissibility.schedule import Schedule, VerificationPlacement
from worldline.admissibility.verified_rate import VerifiedWire


@dataclass(frozen=True, slots=True)
class Handling:
    """The fixed cost of a move, its codec, and where its bytes are digested.

    Without a digest rate the rates of paths are taken as those of verified bytes.
    """

    setup_ms: float = 0.0
    codec: Codec | None = None
    digest_rate_bytes_per_s: float | None = None
    placement: VerificationPlacement = VerificationPlacement.PIPELINED

    def payload_bytes(self, state_bytes: int) -> int:
        """What crosses the wire."""
        return state_bytes if self.codec is None else self.codec.payload_bytes(state_bytes)

    def verified_rate_bytes_per_s(self, state_bytes: int, rate_bytes_per_s: float) -> float:
        """Verified bytes of the payload a second, on a path of that rate."""
        if self.digest_rate_bytes_per_s is None:
            return rate_bytes_per_s
        payload_bytes = self.payload_bytes(state_bytes)
        # Receipts bind to the decoded tree (section 6.4): each byte of the payload stands for
        # that many bytes to digest.
        digest_rate = self.digest_rate_bytes_per_s * payload_bytes / state_bytes
        wire = VerifiedWire(rate_bytes_per_s, digest_rate)
        return wire.rate_bytes_per_s(payload_bytes, Schedule(self.placement))

    def condition(self, transfer: Transfer, rate_bytes_per_s: float) -> Condition:
        """Condition (1) for that transfer, handled so, over a path of that rate.

        Raises:
            InvalidInput: a value out of range.
        """
        rate = self.verified_rate_bytes_per_s(transfer.state_bytes, rate_bytes_per_s)
        path = PathCost(rate, self.setup_ms)
        if self.codec is None:
            return Condition(transfer, path)
        return self.codec.condition(transfer, path)
