"""Rows: what cannot be one, what survives the wire, what admission is charged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import row
from worldline.admissibility.profile_row import (
    ROW_AGE_MAX_MS,
    ProfileRow,
    QuantumSpread,
    RequestShape,
)
from worldline.admissibility.row_codec import (
    row_from_proto,
    row_to_proto,
    shape_from_proto,
    shape_to_proto,
)
from worldline.contract import DecodeTier
from worldline.errors import InvalidInput
from worldline.numa import Binding
from worldline.v1 import profile_pb2

durations = st.floats(1e-3, 1e6)
spreads = st.builds(
    lambda samples, one, other: QuantumSpread(samples, min(one, other), max(one, other)),
    st.integers(1, 2**32 - 1),
    durations,
    durations,
)
bindings = st.builds(
    Binding, st.frozensets(st.integers(0, 300), max_size=40), st.none() | st.integers(0, 1_023)
)
shapes = st.builds(RequestShape, st.sampled_from(("tiny", "mg2")), st.sampled_from(DecodeTier))
rows = st.builds(
    ProfileRow,
    shape=shapes,
    binding=bindings,
    device=st.sampled_from(("cpu", "cuda:0")),
    quanta_per_block=st.integers(2, 1_000),
    denoising_steps=st.integers(1, 1_000),
    step=spreads,
    closing=spreads,
    age_ms=st.floats(0, 8.64e7),
)


@given(rows)
def test_a_row_survives_the_wire(one: ProfileRow) -> None:
    message = profile_pb2.ProfileRow.FromString(row_to_proto(one).SerializeToString())
    assert row_from_proto(message) == one


@given(shapes)
def test_a_shape_survives_the_wire(shape: RequestShape) -> None:
    assert shape_from_proto(shape_to_proto(shape)) == shape


@given(rows, st.integers(1, 1_000))
def test_a_block_is_charged_its_quanta_at_the_percentile(one: ProfileRow, steps: int) -> None:
    assert one.step is not None
    left_out = one.denoising_steps - steps
    quanta = max(1, one.quanta_per_block - left_out)
    charged = (quanta - 1) * one.step.p95_ms + one.closing.p95_ms
    assert one.charge.block_ms(steps) == pytest.approx(charged)


def test_names_and_ages() -> None:
    assert RequestShape("tiny", DecodeTier.NONE).name == "tiny/none"
    assert row().believed()
    assert row(age_ms=ROW_AGE_MAX_MS).believed()
    assert not row(age_ms=ROW_AGE_MAX_MS + 1).believed()
    assert row(age_ms=1e300).age_ms == 86_400_000.0, "older than a day is a day old"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"quanta_per_block": 0}, "quanta_per_block"),
        ({"quanta_per_block": 1_001}, "quanta_per_block"),
        ({"denoising_steps": 0}, "denoising_steps"),
        ({"step": None}, "step"),
        ({"age_ms": -1.0}, "age_ms"),
        ({"age_ms": math.nan}, "age_ms"),
        ({"device": ""}, "device"),
    ],
)
def test_what_cannot_be_a_row_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(row(), **change)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("samples", "p50_ms", "p95_ms", "field"),
    [
        (0, 1.0, 1.0, "samples"),
        (1, 0.0, 1.0, "p50_ms"),
        (1, math.nan, 1.0, "p50_ms"),
        (1, 1.0, math.inf, "p95_ms"),
        (1, 2.0, 1.0, "p95_ms"),
    ],
)
def test_what_cannot_be_a_spread_is_named(
    samples: int, p50_ms: float, p95_ms: float, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        QuantumSpread(samples, p50_ms, p95_ms)
    assert caught.value.field == field


def test_what_does_not_parse_is_named() -> None:
    def broken(field: str, change: object) -> None:
        message = row_to_proto(row())
        change(message)  # type: ignore[operator]
        with pytest.raises(InvalidInput) as caught:
            row_from_proto(message)
        assert caught.value.field == field

    broken("closing", lambda message: message.ClearField("closing"))
    broken("step", lambda message: message.ClearField("step"))
    broken("binding.cpus", lambda message: setattr(message.binding, "cpus", "3-1"))
    broken("binding.cpus", lambda message: setattr(message.binding, "cpus", "all"))
    broken("binding.numa_node", lambda message: setattr(message.binding, "numa_node", 2**31))
    broken("shape.decode_tier", lambda message: message.shape.ClearField("decode_tier"))
    broken("shape.preset", lambda message: message.shape.ClearField("preset"))
