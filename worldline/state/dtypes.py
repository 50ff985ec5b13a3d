"""Dtypes: the element types that a leaf may have, and their sizes in bytes.

Names are torch's without the prefix. The table is closed on purpose: a type that is not in it
(quantized, sub-byte, opaque bits) has no layout that both ends agree on, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worldline.errors import InvalidInput

#: Bytes of one element by dtype name; every size is a power of two.
ITEMSIZE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "complex32": 4,
        "complex64": 8,
        "complex128": 16,
    }
)


def itemsize_bytes(dtype: str, *, leaf: str | None = None) -> int:
    """Bytes of one element.

    Raises:
        InvalidInput: the name is not in the table; `leaf` is passed on.
    """
    try:
        return ITEMSIZE_BYTES[dtype]
    except KeyError:
        raise InvalidInput(
            f"dtype {dtype!r} cannot be moved; known: {', '.join(ITEMSIZE_BYTES)}",
            field="layout.tensors.dtype",
            leaf=leaf,
        ) from None
