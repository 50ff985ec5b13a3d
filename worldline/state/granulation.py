"""Granulation: how fine the granules of a dirty trace are.

A granule of 1 MiB is right for the wire and too coarse to look through: a small state has two of
them. A trace takes the finest power of two that its state can afford.
"""

from __future__ import annotations

from worldline.errors import InvalidInput
from worldline.state.layout import Layout

#: Finer than a token's keys in any cache that is known.
FINEST_BYTES = 128
COARSEST_BYTES = 1 << 20
#: Granules that a trace has by default: a digest of each costs a CPU about half a microsecond.
DEFAULT_COUNT = 1 << 17
#: Granules that a trace may have: two flags a granule and boundary cross the wire, 256 KiB.
COUNT_MAX = 1 << 20


def default_granule_bytes(layout: Layout) -> int:
    """The finest granule of which a state has at most `DEFAULT_COUNT`."""
    granule_bytes = FINEST_BYTES
    while granule_bytes < COARSEST_BYTES and layout.extent_bytes > DEFAULT_COUNT * granule_bytes:
        granule_bytes *= 2
    return granule_bytes


def check_granule_bytes(granule_bytes: int, layout: Layout) -> int:
    """The granule, 0 for the default.

    Raises:
        InvalidInput: no power of two from 128 bytes to 1 MiB, or the state has too many of them;
            `field` is `granule_bytes`.
    """
    if granule_bytes == 0:
        return default_granule_bytes(layout)
    is_power = granule_bytes > 0 and granule_bytes & (granule_bytes - 1) == 0
    if not is_power or not FINEST_BYTES <= granule_bytes <= COARSEST_BYTES:
        raise InvalidInput(
            f"granule_bytes is {granule_bytes}: must be a power of two from {FINEST_BYTES} to "
            f"{COARSEST_BYTES}, or 0 for what suits the state",
            field="granule_bytes",
        )
    if layout.extent_bytes > COUNT_MAX * granule_bytes:
        needed = FINEST_BYTES
        while layout.extent_bytes > COUNT_MAX * needed:
            needed *= 2
        raise InvalidInput(
            f"granule_bytes is {granule_bytes}: a state of {layout.extent_bytes} bytes has more "
            f"than {COUNT_MAX} of them; the finest that it can have is {needed}",
            field="granule_bytes",
        )
    return granule_bytes
