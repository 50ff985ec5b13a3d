"""Codec: a lossless codec in front of the wire, which carries r*S bytes and costs its own time.

Paper, section 4.1 and section 6.4: the codec form of condition (1) replaces S by the compressed
payload r*S plus codec time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from worldline.admissibility.bounds import DURATION_MS_MAX, check_rate, check_state_bytes
from worldline.admissibility.condition import Condition, PathCost, Transfer
from worldline.fields import BYTES_MAX, positive

#: Bytes on the wire for each of the state. What is random already grows a little.
RATIO_MIN = 1e-6
RATIO_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Codec:
    """What a lossless codec was measured to do on this state: r, and bytes of *state* a second.

    Its two passes are charged one after the other, and neither beside the wire.

    Raises:
        InvalidInput: a value out of range; `field` is its name.
    """

    ratio: float
    encode_rate_bytes_per_s: float
    decode_rate_bytes_per_s: float

    def __post_init__(self) -> None:
        positive(self.ratio, "ratio", at_least=RATIO_MIN, at_most=RATIO_MAX)
        check_rate(self.encode_rate_bytes_per_s, "encode_rate_bytes_per_s")
        check_rate(self.decode_rate_bytes_per_s, "decode_rate_bytes_per_s")

    def payload_bytes(self, state_bytes: int) -> int:
        """r*S in whole bytes, rounded up.

        Raises:
            InvalidInput: a size out of range.
        """
        check_state_bytes(state_bytes, "state_bytes")
        return min(math.ceil(self.ratio * state_bytes), BYTES_MAX)

    def codec_ms(self, state_bytes: int) -> float:
        """Encode and decode S bytes, in milliseconds.

        Raises:
            InvalidInput: a size out of range.
        """
        check_state_bytes(state_bytes, "state_bytes")
        return state_bytes * self._pass_s_per_byte * 1e3

    def condition(self, transfer: Transfer, path: PathCost) -> Condition:
        """Condition (1) with r*S for S, and codec time in the fixed cost of the move.

        D stays whole, as printed: what generation rewrites meanwhile need not compress alike.
        """
        codec_ms = self.codec_ms(transfer.state_bytes)
        return Condition(
            transfer=Transfer(
                state_bytes=self.payload_bytes(transfer.state_bytes),
                horizon_ms=transfer.horizon_ms,
                dirty_rate_bytes_per_s=transfer.dirty_rate_bytes_per_s,
            ),
            # A day is the longest horizon, so nothing that takes longer is told apart.
            path=PathCost(path.rate_bytes_per_s, min(path.setup_ms + codec_ms, DURATION_MS_MAX)),
        )

    def saved_ms(self, state_bytes: int, rate_bytes_per_s: float) -> float:
        """(1 - r)*S/B less the codec's time; negative where it costs more than it saves.

        Raises:
            InvalidInput: a value out of range; `field` is its name.
        """
        check_rate(rate_bytes_per_s, "rate_bytes_per_s")
        codec_ms = self.codec_ms(state_bytes)
        return (1 - self.ratio) * state_bytes / rate_bytes_per_s * 1e3 - codec_ms

    @property
    def pays_below_bytes_per_s(self) -> float:
        """The path rate above which the codec costs more than it saves, whatever the size.

        (1 - r)*S/B = codec time solved for B; 0 where r >= 1 and it never pays.
        """
        return max(0.0, 1 - self.ratio) / self._pass_s_per_byte

    @property
    def _pass_s_per_byte(self) -> float:
        return 1 / self.encode_rate_bytes_per_s + 1 / self.decode_rate_bytes_per_s
