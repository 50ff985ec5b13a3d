"""Messages become values once, at the edge, or name the field at fault."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission import parse
from tests.rows import row
from worldline.admissibility.row_codec import row_to_proto
from worldline.contract import contract_to_proto
from worldline.errors import InvalidInput
from worldline.ticket import MovePurpose
from worldline.v1 import admission_pb2, move_pb2, profile_pb2

from .builders import CONTRACT, STATE_BYTES


def move_message(**changes: Any) -> admission_pb2.AdmitMoveRequest:
    fields: dict[str, Any] = {
        "move_id": "move-1",
        "session_id": "session-1",
        "epoch": 1,
        "contract": contract_to_proto(CONTRACT),
        "source_node_id": "a",
        "targets": [admission_pb2.MoveTarget(node_id="b", engine_id="engine-b", slots_free=1)],
        "extent_bytes": STATE_BYTES,
        "topology_hash": b"12345678",
        "purpose": move_pb2.MOVE_PURPOSE_SESSION,
    }
    return admission_pb2.AdmitMoveRequest(**(fields | changes))


def session_message(**device: Any) -> admission_pb2.AdmitSessionRequest:
    fields: dict[str, Any] = {
        "engine_id": "engine-a",
        "slots_total": 2,
        "slot_bytes": STATE_BYTES,
        "rows": [row_to_proto(row("mg2"))],
    }
    return admission_pb2.AdmitSessionRequest(
        preset="mg2",
        contract=contract_to_proto(CONTRACT),
        state_bytes=STATE_BYTES,
        device=admission_pb2.DeviceLoad(**(fields | device)),
    )


def finish_message(
    wire_ms: float = 100.0, tail_ms: float = 5.0, **changes: Any
) -> admission_pb2.FinishMoveRequest:
    stats = move_pb2.PushStats(
        wire_bytes=STATE_BYTES,
        wire_ms=wire_ms,
        verify_tail_ms=tail_ms,
        verification=move_pb2.VERIFICATION_PIPELINED,
    )
    fields: dict[str, Any] = {"ticket_id": "t", "move_id": "move-1", "push_stats": stats}
    return admission_pb2.FinishMoveRequest(**(fields | changes))


def test_a_move() -> None:
    request = parse.move_request(move_message())
    assert request.contract == CONTRACT
    assert request.extent_bytes == STATE_BYTES
    assert request.purpose is MovePurpose.SESSION


def test_a_probe_needs_neither_contract_nor_session() -> None:
    message = move_message(purpose=move_pb2.MOVE_PURPOSE_PROBE, session_id="")
    message.ClearField("contract")
    assert parse.move_request(message).contract is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"move_id": ""}, "move_id"),
        ({"session_id": ""}, "session_id"),
        ({"source_node_id": ""}, "source_node_id"),
        ({"targets": []}, "targets"),
        ({"targets": [admission_pb2.MoveTarget(node_id="b")] * 65}, "targets"),
        ({"targets": [admission_pb2.MoveTarget(node_id=" ")]}, "targets.node_id"),
        ({"targets": [admission_pb2.MoveTarget(node_id="a")]}, "targets.node_id"),
        ({"targets": [admission_pb2.MoveTarget(node_id="b", host_id="\n")]}, "targets.host_id"),
        (
            {"targets": [admission_pb2.MoveTarget(node_id="b", digest_rate_bytes_per_s=math.inf)]},
            "targets.digest_rate_bytes_per_s",
        ),
        ({"saves_ms": math.nan}, "saves_ms"),
        ({"saves_ms": -1.0}, "saves_ms"),
        ({"bulk_wait_ms": -1.0}, "bulk_wait_ms"),
        ({"bulk_wait_ms": math.inf}, "bulk_wait_ms"),
        ({"epoch": 2**63}, "epoch"),
        ({"extent_bytes": 0}, "extent_bytes"),
        ({"extent_bytes": 2**63}, "extent_bytes"),
        ({"topology_hash": b""}, "topology_hash"),
        ({"topology_hash": bytes(65)}, "topology_hash"),
        ({"purpose": 0}, "purpose"),
        ({"purpose": 9}, "purpose"),
        ({"contract": None}, "contract"),
        ({"dirty_rate_bytes_per_s": -1.0}, "dirty_rate_bytes_per_s"),
        ({"dirty_rate_bytes_per_s": math.nan}, "dirty_rate_bytes_per_s"),
        ({"dirty_rate_bytes_per_s": math.inf}, "dirty_rate_bytes_per_s"),
    ],
)
def test_a_bad_move_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse.move_request(move_message(**changes))
    assert caught.value.field == field


def test_a_move_to_itself_has_a_reason_of_its_own() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse.move_request(move_message(source_node_id="b"))
    assert caught.value.reason == "MOVE_TO_ITSELF"


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_horizon_is_named_on_the_way_in(bad: float) -> None:
    message = move_message()
    message.contract.horizon_ms = bad
    with pytest.raises(InvalidInput) as caught:
        parse.move_request(message)
    assert caught.value.field == "contract.horizon_ms"


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({"engine_id": ""}, "device.engine_id"),
        ({"slot_bytes": 2**63}, "device.slot_bytes"),
        ({"slots_total": 2**32 - 1, "slot_bytes": 2**40}, "device.slot_bytes"),
        ({"rows": [profile_pb2.ProfileRow()]}, "closing"),
        ({"residents": [{"preset": ""}]}, "contract.service_class"),
        (
            {"residents": [{"preset": "", "contract": contract_to_proto(CONTRACT)}]},
            "device.residents.preset",
        ),
    ],
)
def test_a_bad_device_is_named(device: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse.session_request(session_message(**device))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["contract", "device", "state_bytes"])
def test_a_session_request_with_a_part_missing_is_named(name: str) -> None:
    message = session_message()
    message.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as caught:
        parse.session_request(message)
    assert caught.value.field == name


def test_verification_is_part_of_what_a_path_costs() -> None:
    report = parse.move_report(finish_message(committed=True, frozen_ms=150.0))
    assert report.sample is not None
    assert report.sample.transfer_ms == 105.0
    assert report.sample.frozen_ms == 150.0
    assert report.verified


def test_a_move_that_did_not_commit_has_no_frozen_time() -> None:
    report = parse.move_report(finish_message(frozen_ms=150.0))
    assert report.sample is not None
    assert report.sample.frozen_ms == 0.0


@pytest.mark.parametrize(
    "stats",
    [
        None,
        move_pb2.PushStats(),
        move_pb2.PushStats(wire_bytes=5),
        move_pb2.PushStats(wire_ms=5.0),
    ],
)
def test_figures_that_measured_nothing_are_left_out(stats: move_pb2.PushStats | None) -> None:
    assert parse.move_report(finish_message(push_stats=stats)).sample is None


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (finish_message(move_id=""), "move_id"),
        (finish_message(frozen_ms=-1.0), "frozen_ms"),
        (finish_message(frozen_ms=math.nan), "frozen_ms"),
        (finish_message(wire_ms=-1.0), "push_stats.wire_ms"),
        (finish_message(tail_ms=math.inf), "push_stats.verify_tail_ms"),
    ],
)
def test_a_bad_report_is_named(message: admission_pb2.FinishMoveRequest, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse.move_report(message)
    assert caught.value.field == field


durations = st.floats(0, 86_400_000) | st.floats()


@given(durations, durations, durations, st.integers(0, 2**64 - 1), st.booleans())
def test_any_figures_parse_or_are_named(
    wire_ms: float, tail_ms: float, frozen_ms: float, wire_bytes: int, committed: bool
) -> None:
    message = finish_message(wire_ms, tail_ms, frozen_ms=frozen_ms, committed=committed)
    message.push_stats.wire_bytes = wire_bytes
    named = {
        "push_stats.wire_ms": wire_ms,
        "push_stats.verify_tail_ms": tail_ms,
        "frozen_ms": frozen_ms,
    }
    bad = [field for field, value in named.items() if not 0 <= value <= 86_400_000]
    if not bad and wire_bytes >= 2**63 and 0 < wire_ms + tail_ms <= 86_400_000:
        bad = ["wire_bytes"]
    if not bad:
        parse.move_report(message)
        return
    with pytest.raises(InvalidInput) as caught:
        parse.move_report(message)
    assert caught.value.field in bad
