"""Waiting: moves admitted to a wire that is free later, and what is in the way of the others."""

from __future__ import annotations

import dataclasses

import pytest

from services.admission.core import Admission
from services.admission.policy import Policy
from worldline.contract import ServiceClass
from worldline.verdict import RejectReason

from .builders import GBIT_PER_S, STATE_BYTES, measured, move, probe, receiver, report, sample

#: What a move is charged at 100 Gb/s: 8 % more than it takes; its wires are booked for 4 % more.
MOVE_S = STATE_BYTES / 12.5e9 * 1.08
BOOKED_S = STATE_BYTES / 12.5e9 * 1.04


def _begin_s(admission: Admission, number: int) -> float:
    hold = admission.holds.of_move(f"move-{number}")
    assert hold is not None
    return hold.wire.begin_s


def test_a_second_move_into_one_receiver_is_planned_behind_the_first() -> None:
    admission = measured(("a", "b"), ("c", "b"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    verdict = admission.admit_move(move(2, "c", "b"), "t2", 0.1).verdict
    assert verdict.admitted
    assert verdict.numbers["moves_into_receiver"] == 1
    assert verdict.numbers["wire_wait_ms"] == pytest.approx((BOOKED_S - 0.1) * 1e3, abs=1)
    assert "the wire is free in 39" in verdict.explanation
    assert _begin_s(admission, 2) == pytest.approx(BOOKED_S, abs=1e-3)


def test_the_ticket_says_how_long_it_may_wait() -> None:
    claims = measured().admit_move(move(), "t1", 0.0).claims
    assert claims is not None
    assert claims.horizon_ms == 400.0
    assert claims.move_ms == pytest.approx(MOVE_S * 1e3, abs=1)
    assert claims.wire_ms == pytest.approx(STATE_BYTES / 12.5e9 * 1e3, abs=1)
    assert not claims.bulk
    bulk = measured().admit_move(move(service_class=ServiceClass.C3_BULK), "t1", 0.0).claims
    assert bulk is not None
    assert bulk.bulk


def test_a_probe_waits_for_nothing_and_has_no_horizon() -> None:
    claims = Admission(Policy()).admit_move(probe(), "t1", 0.0).claims
    assert claims is not None
    assert (claims.horizon_ms, claims.bulk) == (0.0, True)


def test_what_cannot_wait_is_told_when_it_need_not() -> None:
    admission = measured(("a", "b"), ("c", "b"), ("d", "b"))
    for number, source in enumerate("ac"):
        assert admission.admit_move(move(number, source, "b"), f"t{number}", 0.0).verdict.admitted
    verdict = admission.admit_move(move(9, "d", "b"), "t9", 0.0).verdict
    assert verdict.reason is RejectReason.RECEIVER_BUSY
    assert verdict.numbers["wire_wait_ms"] == pytest.approx(2 * BOOKED_S * 1e3, abs=1)
    # Asked then, and nothing else meanwhile, it is admitted.
    at_s = verdict.retry_after_ms / 1e3 + 0.001
    assert admission.admit_move(move(9, "d", "b"), "t9", at_s).verdict.admitted


def test_a_wait_that_takes_the_whole_horizon_is_too_long() -> None:
    """Strict, as condition (1) is."""
    admission = measured(("a", "b"), ("c", "b"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    (hold,) = admission.holds.all()
    exactly_ms = hold.wire.length_s * 1e3 + hold.claims.move_ms
    late = move(2, "c", "b", horizon_ms=exactly_ms)
    assert admission.admit_move(late, "t2", 0.0).verdict.reason is RejectReason.RECEIVER_BUSY
    in_time = move(3, "c", "b", horizon_ms=exactly_ms + 0.01)
    assert admission.admit_move(in_time, "t3", 0.0).verdict.admitted


def test_a_sender_sends_one_at_a_time() -> None:
    admission = measured(("a", "b"), ("a", "c"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "a", "c"), "t2", 0.0).verdict.admitted
    assert _begin_s(admission, 2) == pytest.approx(BOOKED_S, abs=1e-3)
    verdict = admission.admit_move(move(3, "a", "c", horizon_ms=200.0), "t3", 0.0).verdict
    assert verdict.reason is RejectReason.SENDER_BUSY
    assert verdict.numbers["moves_out_of_sender"] == 2


def test_no_duplex_pair() -> None:
    admission = measured(("a", "b"), ("b", "a"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    verdict = admission.admit_move(move(2, "b", "a", horizon_ms=200.0), "t2", 0.0).verdict
    assert verdict.reason is RejectReason.DUPLEX_PAIR
    assert verdict.numbers["moves_in_opposite_direction"] == 1
    assert admission.admit_move(move(3, "b", "a"), "t3", 0.0).verdict.admitted
    assert _begin_s(admission, 3) == pytest.approx(BOOKED_S, abs=1e-3)


def test_a_chain_is_no_duplex_pair() -> None:
    admission = measured(("a", "b"), ("b", "c"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "b", "c"), "t2", 0.0).verdict.admitted
    assert _begin_s(admission, 2) == 0.0


def test_a_gap_before_a_planned_wire_is_used_and_the_plan_kept() -> None:
    admission = measured(("a", "b"), ("a", "c"), ("d", "c"), ("e", "b"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "a", "c"), "t2", 0.0).verdict.admitted
    planned_s = _begin_s(admission, 2)
    # c is idle until a has sent its first: another sender's move fits in between.
    assert admission.admit_move(move(3, "d", "c"), "t3", 0.0).verdict.admitted
    assert _begin_s(admission, 3) == 0.0
    assert _begin_s(admission, 2) == planned_s


def test_whoever_waits_begins_earlier_when_a_move_is_over_early() -> None:
    admission = measured(("a", "b"), ("c", "b"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "c", "b"), "t2", 0.0).verdict.admitted
    admission.finish_move(report(move(1)), 0.05)
    assert _begin_s(admission, 2) == 0.05


def test_two_receivers_share_what_verifies() -> None:
    """K* = B_crc / B_wire (paper, section 6.5)."""
    admission = measured(("a", "b"), ("c", "d"), ("e", "f"))
    on_host = {"host_id": "h", "digest_rate_bytes_per_s": 2.5 * 12.5e9}

    def ask(number: int, source: str, target: str) -> RejectReason | None:
        request = move(number, source, horizon_ms=200.0)
        request = dataclasses.replace(request, targets=(receiver(target, **on_host),))
        return admission.admit_move(request, f"t{number}", 0.0).verdict.reason

    assert ask(1, "a", "b") is None
    assert ask(2, "c", "d") is None
    assert ask(3, "e", "f") is RejectReason.VERIFIER_BUSY
    admission.finish_move(report(move(1)), 0.0)
    assert ask(3, "e", "f") is None


def test_the_last_slot_is_leased_once() -> None:
    """Opposite or not: no move waits for a slot, so that none can wait for another's."""
    admission = measured(("a", "b"), ("c", "b"))
    one = (receiver("b", slots_free=1),)
    first = dataclasses.replace(move(1), targets=one)
    second = dataclasses.replace(move(2, "c"), targets=one)
    assert admission.admit_move(first, "t1", 0.0).verdict.admitted
    verdict = admission.admit_move(second, "t2", 0.0).verdict
    assert verdict.reason is RejectReason.TARGET_FULL
    assert verdict.numbers["slots_free"] == 0
    assert verdict.retry_after_ms == pytest.approx(BOOKED_S * 1e3, abs=2)
    admission.finish_move(report(move(1)), 0.0)
    assert admission.admit_move(second, "t2", 0.0).verdict.admitted


def test_a_probe_leases_no_slot() -> None:
    """It gives way at its mover; a move has its slot to itself, also before probes."""
    admission = measured(("a", "b"), ("c", "b"))
    one = (receiver("b", slots_free=1),)
    probing = dataclasses.replace(probe(1, extent_bytes=1 << 20), targets=one)
    assert admission.admit_move(probing, "t1", 0.0).verdict.admitted
    moving = dataclasses.replace(move(2, "c"), targets=one)
    assert admission.admit_move(moving, "t2", 0.0).verdict.admitted
    admission.finish_move(report(probing), 0.0)
    again = dataclasses.replace(probe(3, "d"), targets=one)
    assert admission.admit_move(again, "t3", 0.0).verdict.reason is RejectReason.TARGET_FULL


def test_the_queue_of_one_receiver_is_bounded() -> None:
    admission = measured(*[(name, "b") for name in "acde"], queue_max=2)
    for number, source in enumerate("ac"):
        asked = move(number, source, "b", horizon_ms=1e6)
        assert admission.admit_move(asked, f"t{number}", 0.0).verdict.admitted
    verdict = admission.admit_move(move(9, "d", "b", horizon_ms=1e6), "t9", 0.0).verdict
    assert verdict.reason is RejectReason.RECEIVER_BUSY
    assert verdict.retry_after_ms == pytest.approx(BOOKED_S * 1e3, abs=2)


# --- which receiver ------------------------------------------------------------------------------


def _chosen(admission: Admission, *targets: str, number: int = 1, source: str = "a") -> str:
    answer = admission.admit_move(move(number, source, *targets), f"t{number}", 0.0)
    assert answer.claims is not None, answer.verdict.explanation
    assert answer.claims.target_node_id == answer.target.node_id
    return answer.target.node_id


def test_moves_spread_over_receivers_by_when_they_are_free() -> None:
    pairs = [(source, target) for source in "aef" for target in "bcd"]
    admission = measured(*pairs)
    chosen = [_chosen(admission, *"bcd", number=n, source=s) for n, s in enumerate("aef")]
    assert chosen == ["b", "c", "d"]


def test_the_receiver_where_the_move_is_over_soonest_is_taken_and_of_equals_the_nearest() -> None:
    admission = measured(("a", "b"), ("a", "c"), ("x", "c"))
    for _ in range(20):
        admission.paths.teach(("a", "d"), sample(200 * GBIT_PER_S), 0.0, 1e9)
    assert _chosen(admission, "c", "b", number=1) == "c"
    admission.finish_move(report(move(1)), 0.0)
    assert _chosen(admission, "c", "b", "d", number=2) == "d"
    admission.finish_move(report(move(2)), 0.0)
    # A nearer one whose wire is not free is later than a farther one whose is.
    assert admission.admit_move(move(3, "x", "c"), "t3", 0.0).verdict.admitted
    assert _chosen(admission, "c", "b", number=4) == "b"


def test_the_measured_receiver_is_taken_and_the_other_not_believed() -> None:
    assert _chosen(measured(("a", "c")), "b", "c") == "c"


def test_of_many_noes_the_one_that_waiting_cures_soonest_explains() -> None:
    admission = measured(("a", "b"), ("a", "c"), ("x", "b"), rate=100 * GBIT_PER_S)
    for _ in range(20):
        admission.paths.teach(("a", "c"), sample(1e9), 0.0, 1e9)  # never within the horizon
    assert admission.admit_move(move(1, "x", "b"), "t1", 0.0).verdict.admitted
    answer = admission.admit_move(move(2, "a", "c", "b", horizon_ms=200.0), "t2", 0.0)
    assert answer.target.node_id == "b"
    assert answer.verdict.reason is RejectReason.RECEIVER_BUSY
    assert answer.verdict.numbers["candidates"] == 2


def test_a_receiver_that_can_be_measured_at_once_goes_before_one_to_wait_for() -> None:
    admission = measured(("a", "b"), ("x", "b"))
    assert admission.admit_move(move(1, "x", "b"), "t1", 0.0).verdict.admitted
    answer = admission.admit_move(move(2, "a", "b", "c", horizon_ms=200.0), "t2", 0.0)
    assert answer.verdict.reason is RejectReason.PATH_UNMEASURED
    assert answer.target.node_id == "c"


def test_a_receiver_whose_probe_would_have_to_wait_is_no_better() -> None:
    admission = measured(("a", "b"), ("x", "b"), ("y", "c"))
    assert admission.admit_move(move(1, "x", "b"), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(3, "y", "c"), "t3", 0.0).verdict.admitted
    answer = admission.admit_move(move(2, "a", "b", "c", horizon_ms=200.0), "t2", 0.0)
    assert answer.verdict.reason is RejectReason.RECEIVER_BUSY
    assert answer.target.node_id == "b"


def test_the_queue_of_one_sender_is_bounded() -> None:
    admission = measured(*[("a", name) for name in "bcde"], queue_max=2)
    for number, target in enumerate("bc"):
        asked = move(number, "a", target, horizon_ms=1e6)
        assert admission.admit_move(asked, f"t{number}", 0.0).verdict.admitted
    verdict = admission.admit_move(move(9, "a", "d", horizon_ms=1e6), "t9", 0.0).verdict
    assert verdict.reason is RejectReason.SENDER_BUSY
    assert verdict.retry_after_ms > 0


def test_a_probe_is_bulk_whatever_contract_it_brings() -> None:
    asked = probe(contract=move().contract)
    claims = Admission(Policy()).admit_move(asked, "t1", 0.0).claims
    assert claims is not None
    assert claims.bulk


def test_a_move_must_save_more_than_it_costs() -> None:
    admission = measured()
    verdict = admission.admit_move(move(saves_ms=MOVE_S * 1e3 * 1.05), "t1", 0.0).verdict
    assert verdict.reason is RejectReason.SAVES_TOO_LITTLE
    assert verdict.retry_after_ms == 0
    assert "costs 144" in verdict.explanation
    assert len(admission.holds) == 0
    assert admission.admit_move(move(saves_ms=MOVE_S * 1e3 * 1.2), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, saves_ms=0.0), "t2", 0.0).verdict.admitted


# --- bulk ----------------------------------------------------------------------------------------


def test_bulk_that_waits_gives_way_to_an_interactive_move() -> None:
    admission = measured(("a", "b"), ("c", "b"), ("d", "b"))
    kinds = {"service_class": ServiceClass.C3_BULK, "horizon_ms": 60_000.0}
    for number, source in enumerate("ac"):
        asked = move(number, source, "b", **kinds)
        assert admission.admit_move(asked, f"t{number}", 0.0).verdict.admitted
    # The first bulk move is on its wire and cannot be stopped; the second is not.
    assert admission.admit_move(move(9, "d", "b"), "t9", 0.0).verdict.admitted
    assert _begin_s(admission, 9) == pytest.approx(BOOKED_S, abs=1e-3)
    assert _begin_s(admission, 1) == pytest.approx(2 * BOOKED_S, abs=1e-3)


def test_bulk_gives_way_again_when_an_interactive_move_can_begin_earlier() -> None:
    admission = measured(("a", "b"), ("c", "b"), ("d", "b"), ("d", "e"))
    bulk = {"service_class": ServiceClass.C3_BULK, "horizon_ms": 60_000.0}
    long = move(4, "d", "e", extent_bytes=2 * STATE_BYTES, horizon_ms=1e3)
    for request in (move(1), long, move(2, "c", "b", **bulk), move(3, "d", "b", horizon_ms=1e3)):
        assert admission.admit_move(request, request.move_id, 0.0).verdict.admitted
    assert _begin_s(admission, 2) == pytest.approx(BOOKED_S, abs=1e-3)
    assert _begin_s(admission, 3) == pytest.approx(2 * BOOKED_S, abs=1e-3)
    admission.finish_move(report(long), 0.01)
    assert _begin_s(admission, 3) == pytest.approx(BOOKED_S, abs=1e-3)
    assert _begin_s(admission, 2) == pytest.approx(2 * BOOKED_S, abs=1e-3)


def test_bulk_gives_way_to_an_interactive_move_of_another_node_of_its_host() -> None:
    admission = measured(("a", "b"), ("c", "d"), ("e", "b"))
    on_host = {"host_id": "h", "digest_rate_bytes_per_s": 1.5 * 12.5e9}
    bulk = {"service_class": ServiceClass.C3_BULK, "horizon_ms": 60_000.0}
    for request, node_id in ((move(1), "b"), (move(2, "c", **bulk), "d"), (move(3, "e"), "b")):
        asked = dataclasses.replace(request, targets=(receiver(node_id, **on_host),))
        assert admission.admit_move(asked, asked.move_id, 0.0).verdict.admitted
    assert _begin_s(admission, 3) == pytest.approx(BOOKED_S, abs=1e-3)
    assert _begin_s(admission, 2) == pytest.approx(2 * BOOKED_S, abs=1e-3)


def test_bulk_does_not_get_before_an_interactive_move_that_waits() -> None:
    admission = measured(("a", "b"), ("c", "b"), ("d", "b"))
    assert admission.admit_move(move(1, "a", "b"), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "c", "b"), "t2", 0.0).verdict.admitted
    bulk = move(3, "d", "b", service_class=ServiceClass.C3_BULK, horizon_ms=60_000.0)
    assert admission.admit_move(bulk, "t3", 0.0).verdict.admitted
    assert _begin_s(admission, 3) == pytest.approx(2 * BOOKED_S, abs=1e-3)


def test_a_move_that_nobody_waits_for_may_wait_longer_than_its_world_may_stand_still() -> None:
    admission = measured(("a", "b"), ("c", "b"), ("d", "b"))
    for number, source in enumerate("ac"):
        assert admission.admit_move(move(number, source, "b"), f"t{number}", 0.0).verdict.admitted
    ordered = move(9, "d", "b", bulk_wait_ms=60_000.0)
    claims = admission.admit_move(ordered, "t9", 0.0).claims
    assert claims is not None
    assert claims.bulk
    assert claims.horizon_ms == pytest.approx(MOVE_S * 1e3 + 60_000, abs=1)
    assert _begin_s(admission, 9) == pytest.approx(2 * BOOKED_S, abs=1e-3)
    # What its world stands still for is bounded as anybody's.
    strict = move(8, "d", "b", bulk_wait_ms=60_000.0, horizon_ms=100.0)
    verdict = admission.admit_move(strict, "t8", 0.0).verdict
    assert verdict.reason is RejectReason.HORIZON_TOO_SHORT


def test_bulk_that_was_refused_keeps_nobody_off_the_receiver() -> None:
    admission = measured(("a", "b"), ("c", "b"), queue_max=1)
    assert admission.admit_move(move(1), "t1", 0.0, "player").verdict.admitted
    ordered = move(2, "c", "b", bulk_wait_ms=60_000.0)
    refused = admission.admit_move(ordered, "t2", 0.0, "drain").verdict
    assert refused.reason is RejectReason.RECEIVER_BUSY
    admission.finish_move(report(move(1)), 0.01)
    assert admission.admit_move(move(3), "t3", 0.02, "player").verdict.admitted


def test_the_order_of_the_tests() -> None:
    """Everything is in the way at once; each cure reveals the next."""
    busy = {("b", "a"), ("c", "b"), ("a", "d")}
    admission = measured(*busy)
    for number, (source, target) in enumerate([("c", "b"), ("a", "d"), ("b", "a")]):
        answer = admission.admit_move(move(number, source, target), f"t{number}", 0.0)
        assert answer.verdict.admitted
    wanted = dataclasses.replace(
        move(9, "a", "b", horizon_ms=200.0), targets=(receiver("b", slots_free=1),)
    )

    def reason() -> RejectReason | None:
        return admission.admit_move(wanted, "t9", 0.0).verdict.reason

    def teach(rate: float, samples: int) -> None:
        for _ in range(samples):
            admission.paths.teach(("a", "b"), sample(rate), 0.0, 1e9)

    assert reason() is RejectReason.PATH_UNMEASURED
    teach(25 * GBIT_PER_S, 20)
    assert reason() is RejectReason.HORIZON_TOO_SHORT
    teach(100 * GBIT_PER_S, 60)
    assert reason() is RejectReason.TARGET_FULL
    wanted = dataclasses.replace(wanted, targets=(receiver("b"),))
    assert reason() is RejectReason.RECEIVER_BUSY
    admission.finish_move(report(move(0)), 0.0)
    assert reason() is RejectReason.SENDER_BUSY
    admission.finish_move(report(move(1)), 0.0)
    assert reason() is RejectReason.DUPLEX_PAIR
    admission.finish_move(report(move(2)), 0.0)
    assert reason() is None
