"""The motion criterion: which escapes are open, and that state moves where none is."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.condition import Transfer
from worldline.admissibility.motion import Motion, ServedObject, decide_motion
from worldline.errors import InvalidInput

WORLD = Transfer(1_670_124_960, 400.0, 0.93e9)

transfers = st.builds(
    Transfer, st.integers(2, 2**63 - 1), st.floats(1e-6, 8.64e7), st.floats(0.0, 1e15)
)


@st.composite
def objects(draw: st.DrawFn) -> ServedObject:
    transfer = draw(transfers)
    return ServedObject(
        transfer=transfer,
        reduced_bytes=draw(st.none() | st.integers(1, transfer.state_bytes - 1)),
        history_steps=draw(st.integers(0, 2**63 - 1)),
        replay_step_ms=draw(st.none() | st.floats(1e-6, 8.64e7)),
        trajectory_valued=draw(st.booleans()),
    )


#: The audit of the paper's table 5, by the escape that each workload has today.
AUDIT = {
    "deterministic sim replay (CARLA class), cheap and exact": (
        ServedObject(WORLD, history_steps=100, replay_step_ms=1.0),
        Motion.REPLAY,
    ),
    "the same after an hour: replay grows with the session": (
        ServedObject(WORLD, history_steps=36_000, replay_step_ms=1.0),
        Motion.MOVE,
    ),
    "RL and rollout farms, episodic resets": (
        ServedObject(WORLD, trajectory_valued=False),
        Motion.RESTART,
    ),
    "streaming text-to-video, state tolerates less than all of it": (
        ServedObject(WORLD, reduced_bytes=400_000_000),
        Motion.REDUCE,
    ),
    "window-rewrite worlds, across architectures": (
        ServedObject(WORLD, history_steps=10_000),
        Motion.MOVE,
    ),
    "window-rewrite worlds, one block of 375.6 ms a step": (
        ServedObject(WORLD, history_steps=2, replay_step_ms=375.6),
        Motion.MOVE,
    ),
}


@pytest.mark.parametrize(("served", "motion"), AUDIT.values(), ids=AUDIT.keys())
def test_the_papers_audit(served: ServedObject, motion: Motion) -> None:
    assert decide_motion(served).motion is motion


@pytest.mark.parametrize(("reduces", "replays", "restarts"), list(product([False, True], repeat=3)))
def test_state_moves_exactly_when_three_escapes_are_closed(
    reduces: bool, replays: bool, restarts: bool
) -> None:
    served = ServedObject(
        WORLD,
        reduced_bytes=1 if reduces else None,
        history_steps=10,
        replay_step_ms=40.0 if replays else 40.1,
        trajectory_valued=not restarts,
    )
    decision = decide_motion(served)
    opened = {Motion.REDUCE: reduces, Motion.REPLAY: replays, Motion.RESTART: restarts}
    expected = tuple(escape for escape, is_open in opened.items() if is_open)
    assert decision.escapes == expected
    assert decision.motion is (expected[0] if expected else Motion.MOVE)


def test_a_replay_of_exactly_the_horizon_does_not_exceed_it() -> None:
    at = ServedObject(WORLD, history_steps=4, replay_step_ms=100.0)
    above = ServedObject(WORLD, history_steps=4, replay_step_ms=math.nextafter(100.0, 101.0))
    assert decide_motion(at).motion is Motion.REPLAY
    assert decide_motion(above).motion is Motion.MOVE


def test_a_world_without_history_is_replayed_in_no_time() -> None:
    fresh = ServedObject(WORLD, history_steps=0, replay_step_ms=1e6)
    assert decide_motion(fresh).motion is Motion.REPLAY


def test_reasons_say_the_numbers() -> None:
    moved = decide_motion(ServedObject(WORLD, history_steps=3, replay_step_ms=200.0))
    assert moved.reason == (
        "no reduction keeps the contract, a replay up to step 3 takes 600 ms, more than the "
        "horizon of 400 ms, and a restart loses the trajectory: 1670124960 bytes must move"
    )
    unlike = decide_motion(ServedObject(WORLD))
    assert "a replay does not give the same state" in unlike.reason
    replayed = decide_motion(ServedObject(WORLD, history_steps=1, replay_step_ms=200.0))
    assert replayed.reason == ("a replay up to step 1 takes 200 ms, within the horizon of 400 ms")
    reduced = decide_motion(ServedObject(WORLD, reduced_bytes=7))
    assert "7 of 1670124960 bytes" in reduced.reason
    restarted = decide_motion(ServedObject(WORLD, trajectory_valued=False))
    assert "a restart loses nothing" in restarted.reason


def test_the_numbers_lead_to_the_gate() -> None:
    decision = decide_motion(
        ServedObject(WORLD, reduced_bytes=9, history_steps=3, replay_step_ms=200.0)
    )
    assert decision.numbers == {
        "state_bytes": 1_670_124_960.0,
        "horizon_ms": 400.0,
        "dirty_rate_bytes_per_s": 0.93e9,
        "required_rate_bytes_per_s": WORLD.required_rate_bytes_per_s,
        "history_steps": 3.0,
        "reduced_bytes": 9.0,
        "replay_step_ms": 200.0,
        "replay_ms": 600.0,
    }
    bare = decide_motion(ServedObject(WORLD))
    assert not {"reduced_bytes", "replay_ms", "replay_step_ms"} & bare.numbers.keys()


@given(objects())
def test_any_object_is_decided(served: ServedObject) -> None:
    decision = decide_motion(served)
    assert (decision.motion is Motion.MOVE) == (not decision.escapes)
    assert Motion.MOVE not in decision.escapes
    assert all(math.isfinite(number) for number in decision.numbers.values())
    assert decision.reason


@given(objects(), st.integers(0, 2**63 - 1))
def test_a_longer_history_never_opens_an_escape(served: ServedObject, steps: int) -> None:
    longer = ServedObject(
        served.transfer,
        served.reduced_bytes,
        max(steps, served.history_steps),
        served.replay_step_ms,
        served.trajectory_valued,
    )
    assert set(longer.escapes) <= set(served.escapes)


@pytest.mark.parametrize("bad", [0, -1, WORLD.state_bytes, WORLD.state_bytes + 1, 1.5])
def test_a_reduction_that_reduces_nothing_is_named(bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        ServedObject(WORLD, reduced_bytes=bad)
    assert caught.value.field == "reduced_bytes"


@pytest.mark.parametrize("bad", [-1, 2**63, 1.5, True])
def test_a_bad_history_is_named(bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        ServedObject(WORLD, history_steps=bad)
    assert caught.value.field == "history_steps"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e9])
def test_a_bad_step_is_named(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        ServedObject(WORLD, replay_step_ms=bad)
    assert caught.value.field == "replay_step_ms"


@pytest.mark.parametrize("bad", [None, 1, "no"])
def test_a_trajectory_of_doubtful_value_is_named(bad: bool) -> None:
    with pytest.raises(InvalidInput) as caught:
        ServedObject(WORLD, trajectory_valued=bad)
    assert caught.value.field == "trajectory_valued"
