"""Significance: which bits of a leaf's element mean what."""

from __future__ import annotations

#: By dtype, the lowest bit first; elements are little-endian.
SIGNIFICANCE: dict[str, dict[str, range]] = {
    "bfloat16": {"sign": range(15, 16), "exponent": range(7, 15), "mantissa": range(7)},
    "float32": {"sign": range(31, 32), "exponent": range(23, 31), "mantissa": range(23)},
    "int64": {"sign": range(63, 64), "high half": range(32, 63), "low half": range(32)},
    "uint8": {"value": range(8)},
}
