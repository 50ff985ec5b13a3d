"""Scalar: a Python value of the state tree, and its canonical bits.

Two scalars are the same when type and bits are: `True` is not `1`, `-0.0` is not `0.0`, and a NaN
equals only the NaN with its own payload. The canonical form (a kind and a payload) is what digests
cover and what the protobuf carries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TypeAlias

from worldline.errors import InvalidInput

ScalarValue: TypeAlias = bool | int | float | complex | str | bytes | None

#: Longest int payload: 2**32767 is beyond any counter and still cheap to parse.
INT_BYTES_MAX = 4096


class Kind(IntEnum):
    """Type tag in the canonical encoding; numbers are part of the digest and never change."""

    NONE = 0
    BOOL = 1
    INT = 2
    FLOAT = 3
    COMPLEX = 4
    STRING = 5
    BYTES = 6


_KIND_OF_TYPE: Mapping[type, Kind] = {
    type(None): Kind.NONE,
    bool: Kind.BOOL,
    int: Kind.INT,
    float: Kind.FLOAT,
    complex: Kind.COMPLEX,
    str: Kind.STRING,
    bytes: Kind.BYTES,
}


def is_scalar(value: object) -> bool:
    """Whether the exact type is a scalar's; subclasses (enums, numpy floats) are not."""
    return type(value) in _KIND_OF_TYPE


def encode(value: ScalarValue, *, leaf: str | None = None) -> tuple[Kind, bytes]:
    """Kind and canonical payload (little endian; ints in shortest two's complement).

    Raises:
        InvalidInput: not a scalar, an int beyond 4096 bytes, or a string that is not UTF-8.
    """
    kind = _KIND_OF_TYPE.get(type(value))
    if kind is None:
        raise InvalidInput(
            f"{type(value).__name__} is no scalar of a state tree", field="scalar", leaf=leaf
        )
    return kind, _ENCODERS[kind](value, leaf)


def decode(kind: Kind, payload: bytes, *, leaf: str | None = None) -> ScalarValue:
    """The value of a canonical form.

    Raises:
        InvalidInput: the payload is not the canonical one of any value of this kind.
    """
    try:
        value = _DECODERS[kind](payload)
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise InvalidInput(f"malformed scalar: {error}", field="scalar", leaf=leaf) from None
    if encode(value, leaf=leaf)[1] != payload:
        raise InvalidInput("scalar is not in its shortest form", field="scalar", leaf=leaf)
    return value


def _encode_int(value: int, leaf: str | None) -> bytes:
    length = (value if value >= 0 else ~value).bit_length() // 8 + 1
    if length > INT_BYTES_MAX:
        raise InvalidInput(
            f"int of {length} bytes; at most {INT_BYTES_MAX}", field="scalar", leaf=leaf
        )
    return value.to_bytes(length, "little", signed=True)


def _encode_string(value: str, leaf: str | None) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            "string holds lone surrogates and is not UTF-8", field="scalar", leaf=leaf
        ) from None


# The values are typed by the kind that picks the row, which mypy cannot follow.
_ENCODERS: Mapping[Kind, Callable[..., bytes]] = {
    Kind.NONE: lambda value, leaf: b"",
    Kind.BOOL: lambda value, leaf: bytes([value]),
    Kind.INT: _encode_int,
    Kind.FLOAT: lambda value, leaf: struct.pack("<d", value),
    Kind.COMPLEX: lambda value, leaf: struct.pack("<dd", value.real, value.imag),
    Kind.STRING: _encode_string,
    Kind.BYTES: lambda value, leaf: value,
}

_DECODERS: Mapping[Kind, Callable[[bytes], ScalarValue]] = {
    Kind.NONE: lambda payload: None,
    Kind.BOOL: lambda payload: {b"\x00": False, b"\x01": True}[payload],
    Kind.INT: lambda payload: int.from_bytes(payload, "little", signed=True),
    Kind.FLOAT: lambda payload: _float(payload),
    Kind.COMPLEX: lambda payload: complex(*struct.unpack("<dd", payload)),
    Kind.STRING: lambda payload: payload.decode("utf-8"),
    Kind.BYTES: lambda payload: payload,
}


def _float(payload: bytes) -> float:
    value: float = struct.unpack("<d", payload)[0]
    return value
