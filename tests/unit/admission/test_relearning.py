"""Restart: nothing is granted before what is under way has been told."""

from __future__ import annotations

import pytest

from services.admission.core import Admission
from services.admission.policy import Policy
from services.admission.requests import MoveTarget, RememberedPath, RunningMove
from worldline.errors import InvalidInput
from worldline.verdict import RejectReason

from .builders import STATE_BYTES, move, probe, report, sample

PATH = RememberedPath("c", "b", rate_bytes_per_s=12.5e9, age_ms=1_000.0)


def running(number: int = 1, source: str = "a", target: str = "b") -> RunningMove:
    return RunningMove(
        ticket_id=f"old-{number}",
        move_id=f"move-{number}",
        session_id=f"session-{number}",
        epoch=1,
        source_node_id=source,
        target=MoveTarget(target, f"engine-{target}"),
        extent_bytes=STATE_BYTES,
        remaining_ms=10_000,
    )


def test_nothing_is_granted_before() -> None:
    admission = Admission(Policy(), relearning=True)
    for request in (move(9, "c"), probe(9, "c")):
        verdict = admission.admit_move(request, "t", 0.0).verdict
        assert verdict.reason is RejectReason.RELEARNING
        assert verdict.retry_after_ms > 0
    assert len(admission.holds) == 0


def test_what_is_told_holds_as_if_it_had_been_granted_here() -> None:
    admission = Admission(Policy(), relearning=True)
    assert admission.relearn((running(),), (PATH,), 5.0) == 1
    verdict = admission.admit_move(move(9, "c", "b", horizon_ms=250.0), "t9", 5.0).verdict
    assert verdict.reason is RejectReason.RECEIVER_BUSY
    assert verdict.numbers["moves_into_receiver"] == 1
    finished = admission.finish_move(
        report(move(1), ticket_id="old-1", sample=sample(12.5e9), verified=True), 5.1
    )
    assert finished is not None
    assert finished.taught is not None
    assert admission.admit_move(move(9, "c", "b", horizon_ms=250.0), "t9", 5.1).verdict.admitted


def test_what_nobody_ends_is_reaped() -> None:
    admission = Admission(Policy(), relearning=True)
    admission.relearn((running(),), (), 5.0)
    assert admission.expire(14.999) == []
    assert [hold.claims.move_id for hold in admission.expire(15.0)] == ["move-1"]


def test_being_told_twice_changes_nothing() -> None:
    admission = Admission(Policy(), relearning=True)
    told = ((running(1), running(2, "c", "d")), (PATH,))
    assert admission.relearn(*told, 0.0) == 2
    assert admission.relearn(*told, 1.0) == 2
    assert {hold.deadline_s for hold in admission.holds.all()} == {10.0}


def test_a_remembered_path_is_one_measurement_and_never_over_ones_own() -> None:
    admission = Admission(Policy(), relearning=True)
    admission.relearn((), (PATH,), 100.0)
    path = admission.paths.get("c", "b")
    assert path is not None
    assert (path.samples, path.updated_at_s) == (1, 99.0)
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(12.5e9)
    admission.relearn((), (RememberedPath("c", "b", 1e9, 0.0),), 101.0)
    assert admission.paths.get("c", "b") == path


def test_what_a_remembered_path_took_around_its_wire_is_charged() -> None:
    admission = Admission(Policy(), relearning=True)
    admission.relearn((), (RememberedPath("c", "b", 12.5e9, 0.0, setup_ms=40.0),), 0.0)
    path = admission.paths.get("c", "b")
    assert path is not None
    assert path.mean_cost.setup_ms == pytest.approx(40.0)
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(12.5e9)


def test_a_path_remembered_for_too_long_is_not_believed() -> None:
    admission = Admission(Policy(path_age_max_ms=500.0), relearning=True)
    admission.relearn((), (PATH,), 0.0)
    assert admission.paths.get("c", "b") is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ticket_id": ""}, "moves.ticket_id"),
        ({"remaining_ms": 0}, "moves.remaining_ms"),
        ({"extent_bytes": 0}, "moves.extent_bytes"),
        ({"source_node_id": "two words"}, "moves.source_node_id"),
    ],
)
def test_a_bad_move_is_named(changes: dict[str, object], field: str) -> None:
    values = {
        "ticket_id": "t",
        "move_id": "m",
        "session_id": "s",
        "epoch": 1,
        "source_node_id": "a",
        "target": MoveTarget("b"),
        "extent_bytes": 1,
        "remaining_ms": 1,
    }
    with pytest.raises(InvalidInput) as caught:
        RunningMove(**(values | changes))  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("rate", [0.0, float("nan"), float("inf"), -1.0])
def test_a_bad_rate_is_named(rate: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        RememberedPath("a", "b", rate, 0.0)
    assert caught.value.field == "paths.rate_bytes_per_s"
