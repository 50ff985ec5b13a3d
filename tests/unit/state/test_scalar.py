"""Scalars keep type and bits."""

from __future__ import annotations

import enum
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.state.strategies import scalars
from worldline.errors import InvalidInput
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.layout import Layout, ScalarLeaf, ScalarNode
from worldline.state.scalar import Kind, ScalarValue, decode, encode, is_scalar
from worldline.v1 import manifest_pb2


def over_the_wire(value: ScalarValue) -> ScalarValue:
    layout = Layout.build(tensors=(), scalars=(ScalarLeaf("$", value),), root=ScalarNode(0))
    message = manifest_pb2.Layout.FromString(layout_to_proto(layout).SerializeToString())
    return layout_from_proto(message).scalars[0].value


@given(scalars)
def test_round_trip_is_exact(value: ScalarValue) -> None:
    back = over_the_wire(value)
    assert type(back) is type(value)
    assert encode(back) == encode(value)
    assert encode(decode(*encode(value))) == encode(value)
    if not isinstance(value, float | complex):
        assert back == value


@pytest.mark.parametrize("raw", [0x7FF0_0000_0000_0001, 0xFFF8_DEAD_BEEF_0001, 1 << 63, 1])
def test_nan_payloads_and_negative_zero_survive(raw: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", raw))[0]
    assert struct.pack("<d", over_the_wire(value)) == struct.pack("<Q", raw)
    back = over_the_wire(complex(value, -0.0))
    assert isinstance(back, complex)
    assert struct.pack("<d", back.real) == struct.pack("<Q", raw)
    assert math.copysign(1, back.imag) == -1


def test_equality_is_of_type_and_bits() -> None:
    assert ScalarLeaf("x", True) != ScalarLeaf("x", 1)
    assert ScalarLeaf("x", 0.0) != ScalarLeaf("x", -0.0)
    assert ScalarLeaf("x", 0) != ScalarLeaf("x", 0.0)
    assert ScalarLeaf("x", "a") != ScalarLeaf("x", b"a")
    assert ScalarLeaf("x", None) != ScalarLeaf("y", None)
    assert ScalarLeaf("x", math.nan) == ScalarLeaf("x", math.nan)
    assert len({ScalarLeaf("x", math.nan), ScalarLeaf("x", math.nan)}) == 1


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value", [Colour.RED, np.float64(1), np.int64(1), bytearray(b"a"), [], 1 + 1j]
)
def test_only_exact_types_are_scalars(value: object) -> None:
    assert is_scalar(value) == (type(value) is complex)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.INT, b""),
        (Kind.INT, b"\x01\x00"),
        (Kind.INT, b"\xff\xff"),
        (Kind.INT, b"\x01" * 5000),
        (Kind.BOOL, b"\x02"),
        (Kind.FLOAT, b"\x00" * 7),
        (Kind.STRING, b"\xff"),
        (Kind.NONE, b"x"),
    ],
)
def test_other_than_canonical_payloads_are_refused(kind: Kind, payload: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(kind, payload, leaf="here")
    assert caught.value.leaf == "here"


@given(st.integers(-(2**4000), 2**4000))
def test_ints_take_their_shortest_form(value: int) -> None:
    payload = encode(value)[1]
    assert int.from_bytes(payload, "little", signed=True) == value
    shorter = payload[:-1]
    assert int.from_bytes(shorter, "little", signed=True) != value or not shorter
