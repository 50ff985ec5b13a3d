"""Quantities: sizes, rates and durations as people write them.

Each is parsed once, exactly, into the unit that the arithmetic has: bytes, bytes a second,
milliseconds. A number without a unit is refused, because 41 may be gigabits or gigabytes; only 0
means the same in every unit. `b` is bits and `B` is bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from worldline.admissibility.bounds import (
    check_dirty_rate,
    check_duration_ms,
    check_rate,
    check_setup_ms,
    check_state_bytes,
)
from worldline.errors import InvalidInput

_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY_PREFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_FACTORS = {prefix: Decimal(10) ** power for prefix, power in _PREFIXES.items()} | {
    prefix: Decimal(2) ** power for prefix, power in _BINARY_PREFIXES.items()
}
_BYTES = {f"{prefix}B": factor for prefix, factor in _FACTORS.items()}
_BYTES_PER_S = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | {
    f"{prefix}{bits}": _FACTORS[prefix] / 8
    for prefix in _PREFIXES
    for bits in ("b/s", "bit/s", "bps")
}
_MS = {
    "ns": Decimal("1e-6"),
    "us": Decimal("1e-3"),
    "ms": Decimal(1),
    "s": Decimal(1_000),
    "min": Decimal(60_000),
    "h": Decimal(3_600_000),
}
#: At most 24 digits on each side: enough for a byte in a petabyte, no work for a hostile input.
_WRITTEN = re.compile(
    r"(?P<number>[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})\s*(?P<unit>[A-Za-z/]*)"
)


def state_bytes(text: str, option: str) -> int:
    """A size such as `1.67GB`, `1600MiB` or `1670124960B`; a part of a byte counts as a byte.

    Raises:
        InvalidInput: it is none, or out of range; `field` is `option`.
    """
    return check_state_bytes(math.ceil(_parsed(text, option, _BYTES, "1.67GB or 1600MiB")), option)


def rate(text: str, option: str) -> float:
    """A rate such as `41Gb/s`, `100Gbps` or `12.5GB/s`, in bytes a second.

    Raises:
        InvalidInput: it is none, or out of range; `field` is `option`.
    """
    return check_rate(float(_parsed(text, option, _BYTES_PER_S, "41Gb/s or 12.5GB/s")), option)


def dirty_rate(text: str, option: str) -> float:
    """A rate, or 0 for a source that stands still, in bytes a second.

    Raises:
        InvalidInput: it is none, or out of range; `field` is `option`.
    """
    parsed = _parsed(text, option, _BYTES_PER_S, "0.93GB/s, or 0 for a frozen source")
    return check_dirty_rate(float(parsed), option)


def duration_ms(text: str, option: str) -> float:
    """A duration such as `400ms` or `1.5s`, in milliseconds.

    Raises:
        InvalidInput: it is none, or out of range; `field` is `option`.
    """
    return check_duration_ms(float(_parsed(text, option, _MS, "400ms or 1.5s")), option)


def setup_ms(text: str, option: str) -> float:
    """A duration, or 0, in milliseconds.

    Raises:
        InvalidInput: it is none, or out of range; `field` is `option`.
    """
    return check_setup_ms(float(_parsed(text, option, _MS, "57ms, or 0")), option)


def human_rate(bytes_per_s: float) -> str:
    """41.00 Gb/s and the like: bits, as fabrics are sold."""
    bits_per_s = bytes_per_s * 8
    for unit, factor in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bits_per_s >= factor:
            return f"{bits_per_s / factor:.2f} {unit}"
    return f"{bits_per_s:.0f} b/s"


def human_ms(duration: float) -> str:
    """400 ms, 1.5 s and the like."""
    return f"{duration / 1e3:g} s" if duration >= 1e3 else f"{duration:.4g} ms"


def _parsed(text: str, option: str, units: Mapping[str, Decimal], example: str) -> Decimal:
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{option} takes a value such as {example}; got {text!r}", field=option)
    number, unit = Decimal(match["number"]), match["unit"]
    if unit in units:
        return number * units[unit]
    if number == 0 and not unit:
        return number
    said = f"has no unit {unit!r}" if unit else "needs a unit"
    raise InvalidInput(f"{option} {said}: write {example}; got {text!r}", field=option)
