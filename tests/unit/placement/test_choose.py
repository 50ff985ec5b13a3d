"""Choice of targets and engines: filter, then policy."""

from __future__ import annotations

import itertools

import pytest

from services.placement.choose import Chosen, MoveWish, choose_engine, choose_target, no_room
from tests.unit.placement.makers import EQUAL, OTHER_TORCH, OTHER_WEIGHTS, candidate, contract
from worldline.contract import DeterminismTier
from worldline.errors import CapacityExhausted
from worldline.verdict import RejectReason, Verdict


def wish(**changes: object) -> MoveWish:
    fields: dict[str, object] = {
        "source_node_id": "n0",
        "fingerprint": EQUAL,
        "contract": contract(),
        "extent_bytes": 100,
    }
    return MoveWish(**fields | changes)  # type: ignore[arg-type]


def reason(answer: Chosen | Verdict) -> RejectReason | None:
    assert isinstance(answer, Verdict), answer
    return answer.reason


def test_most_free_slots_then_name_whatever_the_order() -> None:
    fleet = [candidate("3", slots_free=2), candidate("2", slots_free=2), candidate("1")]
    for order in itertools.permutations(fleet):
        assert choose_target(tuple(order), wish()) == Chosen("e2")


def test_never_the_source_even_when_named() -> None:
    fleet = (candidate("0", slots_free=4), candidate("1"))
    assert choose_target(fleet, wish()) == Chosen("e1")
    assert reason(choose_target(fleet, wish(node_id="n0"))) is RejectReason.NO_TARGET


@pytest.mark.parametrize(
    ("changes", "wanted", "retries"),
    [
        ({"alive": False}, RejectReason.NO_TARGET, True),
        ({"slots_free": 0}, RejectReason.TARGET_FULL, True),
        ({"slot_bytes": 99}, RejectReason.STATE_TOO_LARGE, False),
        ({"fingerprint": OTHER_TORCH}, RejectReason.FINGERPRINT_MISMATCH, False),
        ({"moves_in": 1}, RejectReason.RECEIVER_BUSY, True),
        ({"fingerprint": OTHER_TORCH, "slots_free": 0}, RejectReason.FINGERPRINT_MISMATCH, False),
    ],
)
def test_each_filter_says_no_with_its_reason(
    changes: dict[str, object], wanted: RejectReason, retries: bool
) -> None:
    answer = choose_target((candidate("1", **changes),), wish())
    assert reason(answer) is wanted
    assert isinstance(answer, Verdict)
    assert (answer.retry_after_ms > 0) is retries


def test_exactly_the_slot_size_fits() -> None:
    assert choose_target((candidate("1", slot_bytes=100),), wish()) == Chosen("e1")


def test_a_named_busy_target_is_left_to_admission() -> None:
    assert choose_target((candidate("1", moves_in=1),), wish(node_id="n1")) == Chosen("e1")


def test_a_mismatch_names_the_fact() -> None:
    answer = choose_target((candidate("1", fingerprint=OTHER_TORCH),), wish())
    assert isinstance(answer, Verdict)
    assert "torch: '2.13.0' here, '2.12.0' there" in answer.explanation


def test_several_reasons_become_no_target_with_each_of_them() -> None:
    fleet = (candidate("1", slots_free=0), candidate("2", fingerprint=OTHER_TORCH))
    answer = choose_target(fleet, wish())
    assert reason(answer) is RejectReason.NO_TARGET
    assert isinstance(answer, Verdict)
    assert "slots of n1" in answer.explanation
    assert "e2" in answer.explanation


def test_an_empty_fleet_is_no_target() -> None:
    assert reason(choose_target((), wish())) is RejectReason.NO_TARGET
    assert reason(choose_engine((), "", 0)) is RejectReason.NO_TARGET


def test_a_tier_drops_only_where_the_contract_allows_it() -> None:
    other = (candidate("1", fingerprint=OTHER_TORCH),)
    allowed = wish(contract=contract(tier_drop_allowed=True))
    assert choose_target(other, allowed) == Chosen("e1", tier_dropped=True)
    # An equal one is preferred, however full.
    both = (*other, candidate("2"))
    crowded = (candidate("1", fingerprint=OTHER_TORCH, slots_free=4), candidate("2"))
    assert choose_target(both, allowed) == choose_target(crowded, allowed) == Chosen("e2")


def test_a_t1_session_needs_no_equal_fingerprint_and_drops_nothing() -> None:
    schedule = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    answer = choose_target((candidate("1", fingerprint=OTHER_TORCH),), wish(contract=schedule))
    assert answer == Chosen("e1")


def test_other_weights_are_another_world_at_every_tier() -> None:
    other = (candidate("1", fingerprint=OTHER_WEIGHTS),)
    for tier in (DeterminismTier.T1_SCHEDULE_STABLE, DeterminismTier.T2_STATISTICAL):
        answer = choose_target(other, wish(contract=contract(determinism_tier=tier)))
        assert reason(answer) is RejectReason.FINGERPRINT_MISMATCH
    allowed = wish(contract=contract(tier_drop_allowed=True))
    assert reason(choose_target(other, allowed)) is RejectReason.FINGERPRINT_MISMATCH


def test_an_engine_for_a_session_is_the_least_utilized() -> None:
    fleet = (
        candidate("1", utilization=0.5, slots_free=4),
        candidate("2", utilization=0.1),
        candidate("3", utilization=0.1, slots_free=2),
    )
    assert choose_engine(fleet, "", 100) == Chosen("e3")
    assert choose_engine(fleet, "n1", 100) == Chosen("e1")
    full = (candidate("1", slots_free=0),)
    assert reason(choose_engine(full, "", 100)) is RejectReason.DEVICE_FULL
    assert reason(choose_engine(fleet, "", 1001)) is RejectReason.STATE_TOO_LARGE


def test_a_movers_refusal_becomes_the_right_verdict() -> None:
    full = no_room("n1", CapacityExhausted("none", retry_after_ms=7), RejectReason.TARGET_FULL)
    assert (full.reason, full.retry_after_ms) == (RejectReason.TARGET_FULL, 7)
    large = no_room(
        "n1", CapacityExhausted("big", reason="STATE_TOO_LARGE"), RejectReason.TARGET_FULL
    )
    assert (large.reason, large.retry_after_ms) == (RejectReason.STATE_TOO_LARGE, 0)
