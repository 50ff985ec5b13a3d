"""Moves: each test's reject, their order, and the numbers and waits that come with them."""

from __future__ import annotations

import re

import pytest

from services.admission.core import Admission
from services.admission.policy import Policy
from worldline.admissibility.path_rate import TransferSample
from worldline.errors import CapacityExhausted, Conflict
from worldline.verdict import RejectReason

from .builders import GBIT_PER_S, STATE_BYTES, measured, move, probe, report, sample


def test_a_measured_path_is_admitted_with_its_arithmetic() -> None:
    answer = measured().admit_move(move(), "ticket-1", 1.0)
    assert answer.verdict.admitted
    numbers = answer.verdict.numbers
    assert numbers["state_bytes"] == STATE_BYTES
    assert numbers["horizon_ms"] == 400.0
    assert numbers["rate_mean_bytes_per_s"] == pytest.approx(12.5e9, rel=0.01)
    # 8 % more than the mean is the least that is charged.
    assert numbers["rate_bytes_per_s"] == pytest.approx(12.5e9 / 1.08, rel=0.01)
    assert numbers["t_migrate_ms"] == pytest.approx(133.6 * 1.08, rel=0.01)
    assert numbers["l_star_ms"] == pytest.approx(133.6 * 1.08, rel=0.01)
    assert numbers["wire_wait_max_ms"] == pytest.approx(400 - 133.6 * 1.08, rel=0.01)
    assert numbers["required_rate_bytes_per_s"] == pytest.approx(4.175e9, rel=0.001)
    assert (numbers["moves_into_receiver"], numbers["fan_in_max"]) == (0, 1)


@pytest.mark.parametrize("rate", [25 * GBIT_PER_S, 100 * GBIT_PER_S])
def test_the_explanation_adds_up(rate: float) -> None:
    text = measured(rate=rate).admit_move(move(), "t", 0.0).verdict.explanation
    parts = re.match(
        r"([\d.]+) MB: ([\d.]+) ms set-up \+ ([\d.]+) ms at ([\d.]+) MB/s = ([\d.]+)", text
    )
    assert parts is not None, text
    size_mb, setup_ms, transfer_ms, rate_mb_per_s, total_ms = map(float, parts.groups())
    assert total_ms == pytest.approx(setup_ms + transfer_ms, abs=0.2)
    assert transfer_ms == pytest.approx(size_mb / rate_mb_per_s * 1e3, rel=0.01)


def test_the_ticket_says_what_was_asked() -> None:
    request = move(7)
    claims = measured().admit_move(request, "ticket-7", 12.3456).claims
    assert claims is not None
    assert claims.ticket_id == "ticket-7"
    assert claims.move_id == request.move_id
    assert claims.session_id == request.session_id
    assert claims.epoch == request.epoch
    assert (claims.source_node_id, claims.target_node_id) == ("a", "b")
    assert claims.extent_bytes_max == STATE_BYTES
    assert claims.topology_hash == request.topology_hash
    assert claims.purpose is request.purpose
    assert claims.issued_at_ms == 12_345


def test_an_unmeasured_path_is_not_believed() -> None:
    admission = Admission(Policy())
    verdict = admission.admit_move(move(), "t", 0.0).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED
    assert verdict.retry_after_ms == admission.policy.probe_retry_ms
    assert len(admission.holds) == 0


def test_the_other_direction_is_another_path() -> None:
    verdict = measured(("a", "b")).admit_move(move(1, "b", "a"), "t", 0.0).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED


def test_a_path_measured_too_long_ago_is_measured_again() -> None:
    admission = measured(path_age_max_ms=1_000)
    late = admission.admit_move(move(), "t", 1.001).verdict
    assert late.reason is RejectReason.PATH_UNMEASURED
    assert late.numbers["path_age_ms"] == pytest.approx(1_001)
    assert admission.admit_move(move(), "t", 1.0).verdict.admitted


def test_old_estimates_do_not_colour_the_new_measurement() -> None:
    admission = measured(rate=1e9, path_age_max_ms=1_000)
    path = admission.paths.teach(("a", "b"), sample(8e9), 10.0, 1_000)
    assert path.samples == 1
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(8e9)


def test_a_horizon_too_short_for_the_path() -> None:
    verdict = measured(rate=25 * GBIT_PER_S).admit_move(move(), "t", 0.0).verdict
    assert verdict.reason is RejectReason.HORIZON_TOO_SHORT
    assert verdict.numbers["t_migrate_ms"] == pytest.approx(534.4 * 1.08, rel=0.01)
    assert verdict.retry_after_ms == 0


def test_a_path_that_generation_outruns() -> None:
    live = move(dirty_rate_bytes_per_s=0.93e9)
    verdict = measured(rate=37 * GBIT_PER_S).admit_move(live, "t", 0.0).verdict
    assert verdict.reason is RejectReason.BANDWIDTH_TOO_LOW
    assert verdict.numbers["required_rate_bytes_per_s"] == pytest.approx(5.105e9, rel=0.001)
    assert measured(rate=37 * GBIT_PER_S).admit_move(move(), "t", 0.0).verdict.admitted


def test_doubt_from_few_samples_asks_for_more_and_not_for_a_longer_horizon() -> None:
    # One sample: charged half again, 534 ms become 801, while the mean would do.
    admission = measured(rate=25 * GBIT_PER_S, samples=1)
    verdict = admission.admit_move(move(horizon_ms=700.0), "t", 0.0).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED
    assert verdict.retry_after_ms > 0
    # Where not even the mean would do, no measurement is needed to say no.
    hopeless = admission.admit_move(move(horizon_ms=500.0), "t", 0.0).verdict
    assert hopeless.reason is RejectReason.HORIZON_TOO_SHORT


def test_a_chain_is_no_duplex_pair() -> None:
    admission = measured(("a", "b"), ("b", "c"))
    assert admission.admit_move(move(1), "t1", 0.0).verdict.admitted
    assert admission.admit_move(move(2, "b", "c"), "t2", 0.0).verdict.admitted


def test_a_probe_needs_no_measured_path_but_obeys_every_cap() -> None:
    admission = Admission(Policy())
    answer = admission.admit_move(probe(1), "t1", 0.0)
    assert answer.verdict.admitted
    assert answer.claims is not None
    reasons = [
        admission.admit_move(probe(2, "c", "b"), "t2", 0.0).verdict.reason,
        admission.admit_move(probe(3, "a", "c"), "t3", 0.0).verdict.reason,
        admission.admit_move(probe(4, "b", "a"), "t4", 0.0).verdict.reason,
    ]
    assert reasons == [
        RejectReason.RECEIVER_BUSY,
        RejectReason.SENDER_BUSY,
        RejectReason.DUPLEX_PAIR,
    ]


def test_who_waits_for_a_running_probe_is_told_when_it_ends() -> None:
    admission = Admission(Policy(unmeasured_rate_bytes_per_s=64 << 20))
    assert admission.admit_move(probe(), "t1", 0.0).verdict.admitted  # expected to take 1 s
    verdict = admission.admit_move(move(), "t2", 0.25).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED
    assert verdict.retry_after_ms == 751  # a millisecond past it


@pytest.mark.parametrize(
    ("rate", "lease_ms"),
    [(1e9, 6_680), (1e15, 1_000), (1e7, 20_000)],
)
def test_a_lease_is_a_multiple_of_the_prediction_within_bounds(rate: float, lease_ms: int) -> None:
    admission = measured(rate=rate, lease_factor=4.0, lease_min_ms=1_000, lease_max_ms=20_000)
    claims = admission.admit_move(move(horizon_ms=1e7), "t", 0.0).claims
    assert claims is not None
    assert claims.lease_ms == pytest.approx(lease_ms, abs=1)


def test_asking_again_gives_the_same_answer_and_no_second_hold() -> None:
    admission = measured()
    first = admission.admit_move(move(), "t1", 0.0)
    again = admission.admit_move(move(), "t2", 0.05)
    assert again == first
    assert again.claims is not None
    assert again.claims.ticket_id == "t1"
    assert len(admission.holds) == 1
    assert admission.verdicts["admitted"] == 1


def test_a_move_id_for_another_request_is_refused_and_overwrites_nothing() -> None:
    admission = measured()
    first = admission.admit_move(move(), "t1", 0.0)
    for other in (move(epoch=2), move(extent_bytes=1), probe(move_id="move-1")):
        with pytest.raises(Conflict) as caught:
            admission.admit_move(other, "t2", 0.0)
        assert caught.value.reason == "MOVE_ID_REUSED"
    assert admission.admit_move(move(), "t3", 0.0) == first


def test_a_reject_is_decided_anew() -> None:
    admission = Admission(Policy())
    assert not admission.admit_move(move(), "t1", 0.0).verdict.admitted
    for _ in range(10):
        admission.paths.teach(("a", "b"), sample(12.5e9), 0.0, 1e9)
    assert admission.admit_move(move(), "t2", 0.0).verdict.admitted


def test_holds_are_bounded() -> None:
    admission = Admission(Policy(holds_max=1))
    admission.admit_move(probe(1, "a", "b"), "t1", 0.0)
    with pytest.raises(CapacityExhausted) as caught:
        admission.admit_move(probe(2, "c", "d"), "t2", 0.0)
    assert caught.value.reason == "HOLDS_FULL"


def test_finishing_frees_the_hold_and_teaches_the_path() -> None:
    admission = Admission(Policy())
    answer = admission.admit_move(probe(), "t1", 0.0)
    assert answer.claims is not None
    finished = admission.finish_move(
        report(probe(), ticket_id="t1", sample=sample(8e9, 64 << 20)), 1.0
    )
    assert finished is not None
    assert finished.taught is not None
    assert len(admission.holds) == 0
    path = admission.paths.get("a", "b")
    assert path is not None
    assert path.mean_cost.rate_bytes_per_s == pytest.approx(8e9)


def test_finishing_twice_changes_nothing() -> None:
    admission = measured(samples=1)
    admission.admit_move(move(horizon_ms=1e4), "t1", 0.0)
    done = report(move(), ticket_id="t1", sample=sample(8e9), verified=True, committed=True)
    assert admission.finish_move(done, 1.0) is not None
    known = admission.paths.get("a", "b")
    assert admission.finish_move(done, 2.0) is None
    assert admission.paths.get("a", "b") == known
    assert known is not None
    assert known.samples == 2


def test_a_repeated_finish_does_not_end_the_move_that_came_after() -> None:
    admission = measured(("a", "b"))
    admission.admit_move(move(1), "t1", 0.0)
    admission.finish_move(report(move(1), ticket_id="t1"), 0.1)
    assert admission.admit_move(move(1), "t2", 0.2).verdict.admitted
    assert admission.finish_move(report(move(1), ticket_id="t1"), 0.3) is None
    assert len(admission.holds) == 1


def test_a_lost_ticket_is_finished_by_its_move() -> None:
    admission = measured()
    admission.admit_move(move(), "t1", 0.0)
    assert admission.finish_move(report(move()), 0.1) is not None
    assert len(admission.holds) == 0


def test_a_ticket_of_another_move_is_refused() -> None:
    admission = measured()
    admission.admit_move(move(), "t1", 0.0)
    with pytest.raises(Conflict) as caught:
        admission.finish_move(report(move(2), ticket_id="t1"), 0.1)
    assert caught.value.reason == "TICKET_MISMATCH"
    assert len(admission.holds) == 1


def test_a_session_move_that_was_not_verified_teaches_nothing() -> None:
    admission = measured()
    before = admission.paths.get("a", "b")
    admission.admit_move(move(), "t1", 0.0)
    finished = admission.finish_move(report(move(), sample=sample(1e6), verified=False), 0.1)
    assert finished is not None
    assert finished.taught is None
    assert admission.paths.get("a", "b") == before


def test_what_a_committed_move_cost_around_the_wire_is_charged_to_the_next() -> None:
    admission = measured(rate=12.5e9)
    admission.admit_move(move(), "t1", 0.0)
    transfer_ms = STATE_BYTES / 12.5e9 * 1e3
    slow = TransferSample(STATE_BYTES, transfer_ms, frozen_ms=transfer_ms + 300)
    admission.finish_move(report(move(), sample=slow, verified=True, committed=True), 0.5)
    verdict = admission.admit_move(move(2), "t2", 1.0).verdict
    assert not verdict.admitted
    assert verdict.numbers["setup_ms"] == pytest.approx(450)


def test_paths_are_bounded_and_the_stalest_goes_first() -> None:
    admission = measured(("a", "b"), ("b", "c"), samples=1, paths_max=2)
    admission.paths.teach(("a", "b"), sample(1e9), 0.0, 1e9)
    admission.paths.teach(("c", "d"), sample(1e9), 0.0, 1e9)
    assert [pair for pair, _ in admission.paths.sorted()] == [("a", "b"), ("c", "d")]


def test_a_settled_doubt_is_a_reject_until_the_estimate_ages_out() -> None:
    admission = measured(rate=8e9, samples=20, path_age_max_ms=60_000)
    horizon_ms = STATE_BYTES / 8e9 * 1e3 * 1.05  # the mean would do, what is charged does not
    verdict = admission.admit_move(move(horizon_ms=horizon_ms), "t", 10.0).verdict
    assert verdict.reason is RejectReason.HORIZON_TOO_SHORT
    assert verdict.retry_after_ms == 50_000
    again = admission.admit_move(move(horizon_ms=horizon_ms), "t", 60.001).verdict
    assert again.reason is RejectReason.PATH_UNMEASURED


def test_a_move_is_charged_more_as_its_path_is_not_confirmed() -> None:
    admission = measured(path_age_max_ms=60_000)
    charged_ms = [
        admission.admit_move(move(number), f"t{number}", at_s).verdict.numbers["t_migrate_ms"]
        for number, at_s in enumerate((0.0, 30.0, 59.0))
    ]
    assert charged_ms == sorted(charged_ms)
    assert charged_ms[2] > 1.3 * charged_ms[0]


def test_an_expired_hold_frees_its_receiver_and_its_finish_teaches_nothing() -> None:
    admission = measured(("a", "b"), ("c", "b"))
    assert admission.admit_move(move(1), "t1", 0.0).claims is not None
    (hold,) = admission.holds.all()
    assert admission.expire(hold.deadline_s - 0.001) == []
    assert admission.expire(hold.deadline_s) == [hold]
    assert admission.holds_expired == 1
    assert len(admission.holds) == 0
    before = admission.paths.get("a", "b")
    late = report(move(1), ticket_id="t1", sample=sample(1e9), verified=True)
    assert admission.finish_move(late, hold.deadline_s) is None
    assert admission.paths.get("a", "b") == before


def test_a_finish_at_the_deadline_is_late_whether_or_not_the_reaper_ran() -> None:
    admission = measured()
    assert admission.admit_move(move(), "t1", 0.0).claims is not None
    (hold,) = admission.holds.all()
    before = admission.paths.get("a", "b")
    late = report(move(), ticket_id="t1", sample=sample(1e9), verified=True)
    assert admission.finish_move(late, hold.deadline_s) is None
    assert admission.paths.get("a", "b") == before
    assert admission.holds_expired == 1


def test_two_slow_moves_in_a_row_ask_for_a_probe_and_do_not_shut_the_path() -> None:
    admission = measured()
    for _ in range(2):
        admission.paths.teach(("a", "b"), sample(2.5e9), 0.0, 1e9)
    verdict = admission.admit_move(move(), "t1", 1.0).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED
    assert verdict.retry_after_ms > 0


def test_what_moves_take_around_their_wires_is_charged_on_a_path_that_is_new_or_old() -> None:
    admission = measured(("a", "b"), ("a", "c"), samples=20, path_age_max_ms=1_000)
    around = TransferSample(STATE_BYTES, 134.0, frozen_ms=134.0 + 60.0)
    for _ in range(10):
        admission.paths.teach(("a", "b"), around, 0.0, 1_000)
    admission.paths.teach(("a", "d"), sample(12.5e9), 0.0, 1_000)  # probed, never moved over
    admission.paths.teach(("a", "b"), sample(12.5e9), 9.0, 1_000)  # aged out, and probed again
    for target in "db":
        path = admission.paths.get("a", target)
        assert path is not None
        assert path.mean_cost.setup_ms == pytest.approx(60.0, abs=1.0)
