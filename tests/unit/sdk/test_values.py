from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import IntegrityError, InvalidInput, TransferFailed
from worldline.sdk import Action, Failure, MovePhase, Rejected
from worldline.sdk.block import block_from_proto
from worldline.sdk.move_record import move_from_proto
from worldline.sdk.records import session_from_proto, trace_from_proto
from worldline.v1 import engine_pb2, move_pb2, placement_pb2


@given(st.integers(0, 15), st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 2**64 - 1))
def test_actions_reach_the_wire(keyboard: int, dx: float, dy: float, index: int) -> None:
    message = Action(keyboard, dx, dy).to_proto(index)
    assert (message.block_index, message.keyboard) == (index, keyboard)
    assert message.mouse_dx == pytest.approx(dx, rel=1e-6, abs=1e-30)
    assert message.mouse_dy == pytest.approx(dy, rel=1e-6, abs=1e-30)


def test_keys_are_bits() -> None:
    assert Action.keys("wd") == Action(0b1001)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((16,), "action.keyboard"),
        ((-1,), "action.keyboard"),
        ((0, math.nan), "action.mouse_dx"),
        ((0, 0.0, math.inf), "action.mouse_dy"),
        ((0, 1.01), "action.mouse_dx"),
    ],
)
def test_a_bad_action_names_its_field(values: tuple[float, ...], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Action(*values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no key 'Q'"):
        Action.keys("WQ")


def test_frames_are_an_array() -> None:
    message = engine_pb2.Block(
        block_index=4, frames=bytes(range(36)), frame_count=2, height=2, width=3, state_digest=0
    )
    block = block_from_proto(message)
    assert block.frames.shape == (2, 2, 3, 3)
    assert block.frames[1, 1, 2, 2] == 35
    assert block.state_digest == 0
    assert not block.frames.flags.writeable


def test_a_block_without_frames_or_digest() -> None:
    block = block_from_proto(engine_pb2.Block(frame_count=2, height=2, width=3))
    assert block.frames.shape == (0, 2, 3, 3)
    assert block.frames.dtype == np.uint8
    assert block.state_digest is None


def test_a_block_says_how_it_was_served() -> None:
    served = engine_pb2.Block(
        steps=2, steps_full=3, degraded_because="slack", releases_skipped=4, late_ms=1.5
    )
    block = block_from_proto(served)
    assert (block.steps, block.steps_full, block.degraded) == (2, 3, True)
    assert (block.degraded_because, block.releases_skipped, block.late_ms) == ("slack", 4, 1.5)
    # An engine from before says nothing, and degraded nothing.
    assert not block_from_proto(engine_pb2.Block()).degraded


def test_frames_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        block_from_proto(engine_pb2.Block(frames=b"abc", frame_count=1, height=1, width=2))
    assert caught.value.field == "block.frames"


def _record(phase: int, **fields: object) -> move_pb2.MoveRecord:
    return move_pb2.MoveRecord(move_id="m", session_id="s", phase=phase, **fields)  # type: ignore[arg-type]


def test_a_committed_record() -> None:
    record = move_from_proto(
        _record(
            move_pb2.MOVE_PHASE_DONE,
            push_stats=move_pb2.PushStats(
                wire_bytes=1000,
                wire_ms=1.0,
                verify_tail_ms=1.0,
                verification=move_pb2.VERIFICATION_PIPELINED,
                lanes=["sysv"],
            ),
            timings=[move_pb2.PhaseTiming(name="push", duration_ms=2.5)],
        )
    )
    assert (record.outcome, record.reason, record.committed) == ("committed", "", True)
    assert record.timings_ms == {"push": 2.5}
    assert record.push_stats is not None
    assert record.push_stats.rate_bytes_per_s == 500_000
    assert record.push_stats.verified
    record.raise_unless_committed()


def test_a_rejected_record_raises_its_verdict() -> None:
    verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_TARGET_FULL, explanation="full", retry_after_ms=9
    )
    record = move_from_proto(_record(move_pb2.MOVE_PHASE_REJECTED, verdict=verdict))
    assert (record.outcome, record.reason) == ("rejected", "TARGET_FULL")
    with pytest.raises(Rejected) as caught:
        record.raise_unless_committed()
    assert caught.value.verdict.retry_after_ms == 9
    assert (caught.value.reason, caught.value.retry_after_ms) == ("TARGET_FULL", 9)


def test_an_aborted_record_raises_its_failure() -> None:
    failure = move_pb2.Failure(reason="DIGEST_MISMATCH", message="no", leaf="k[1]", granule=3)
    record = move_from_proto(_record(move_pb2.MOVE_PHASE_ABORTED, failure=failure))
    assert (record.outcome, record.reason) == ("aborted", "DIGEST_MISMATCH")
    with pytest.raises(IntegrityError) as caught:
        record.raise_unless_committed()
    assert (caught.value.leaf, caught.value.granule) == ("k[1]", 3)
    assert isinstance(Failure("PEER_GONE", "x").to_error(), TransferFailed)


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        move_from_proto(_record(99))
    assert caught.value.field == "move.phase"


def test_terminal_phases() -> None:
    assert {phase for phase in MovePhase if phase.terminal} == {
        MovePhase.DONE,
        MovePhase.ABORTED,
        MovePhase.REJECTED,
    }


def test_a_session_without_a_contract_is_refused() -> None:
    with pytest.raises(InvalidInput):
        session_from_proto(placement_pb2.Session(session_id="s"))


def test_a_trace() -> None:
    span = placement_pb2.GetTraceResponse.Span(
        span_id="a", service="mover", name="push", duration_ms=2, attributes={"b": "2", "a": "1"}
    )
    found = trace_from_proto(placement_pb2.GetTraceResponse(trace_id="t", spans=[span]))
    assert found.spans[0].attributes == {"a": "1", "b": "2"}
