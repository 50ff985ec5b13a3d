"""Fairness: growing waits for who comes back early, and turns between clients of one receiver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.core import Admission, MoveAnswer
from services.admission.patience import Patience
from services.admission.policy import Policy
from services.admission.turns import Turns
from worldline.errors import CapacityExhausted
from worldline.verdict import RejectReason, Verdict

from .builders import measured, move, probe, report

NO = Verdict.reject(RejectReason.RECEIVER_BUSY, "busy", {"a_ms": 1.0}, retry_after_ms=100)
YES = Verdict.admit("go")


def test_who_comes_back_at_once_is_told_to_wait_longer_each_time() -> None:
    patience = Patience(8, 60_000)
    waits_ms = [patience.rejected(NO, "c", "s", 0.0).retry_after_ms for _ in range(5)]
    assert waits_ms == [100, 200, 400, 800, 1_600]


def test_the_verdict_says_that_and_keeps_what_was_computed() -> None:
    patience = Patience(8, 60_000)
    patience.rejected(NO, "c", "s", 0.0)
    again = patience.rejected(NO, "c", "s", 0.0)
    assert again.reason is NO.reason
    assert again.numbers == {"a_ms": 1.0, "asked_early": 1.0, "retry_computed_ms": 100.0}


def test_who_waits_is_told_no_more_than_the_arithmetic() -> None:
    patience = Patience(8, 60_000)
    now_s = 0.0
    for _ in range(5):
        told = patience.rejected(NO, "c", "s", now_s)
        assert told == NO
        now_s += told.retry_after_ms / 1e3


def test_patience_is_bounded_and_forgets_with_an_admit() -> None:
    patience = Patience(2, 1_000)
    for _ in range(50):
        last = patience.rejected(NO, "c", "s", 0.0)
    assert last.retry_after_ms == 1_000
    patience.admitted("c", "s")
    assert patience.rejected(NO, "c", "s", 0.0) == NO
    for number in range(10):
        patience.rejected(NO, "c", f"s{number}", 0.0)
    assert len(patience) == 2


def test_what_asks_to_be_acted_on_at_once_does_not_grow() -> None:
    patience = Patience(8, 60_000)
    for reason in (RejectReason.PATH_UNMEASURED, RejectReason.RELEARNING):
        no = Verdict.reject(reason, "measure", retry_after_ms=200)
        assert [patience.rejected(no, "c", "s", 0.0) for _ in range(3)] == [no] * 3
    never = Verdict.reject(RejectReason.HORIZON_TOO_SHORT, "never")
    assert [patience.rejected(never, "c", "s", 0.0) for _ in range(3)] == [never] * 3


@given(st.lists(st.floats(0.0, 0.5), max_size=30), st.integers(1, 10_000))
def test_a_wait_never_shrinks_below_what_was_computed(gaps_s: list[float], retry_ms: int) -> None:
    patience, now_s = Patience(4, 5_000), 0.0
    no = Verdict.reject(RejectReason.SENDER_BUSY, "busy", retry_after_ms=retry_ms)
    for gap_s in gaps_s:
        told = patience.rejected(no, "c", "s", now_s)
        assert retry_ms <= told.retry_after_ms <= max(retry_ms, 5_000)
        now_s += gap_s


def test_the_client_served_longest_ago_goes_next() -> None:
    turns = Turns(8)
    turns.admitted("b", "flood", 0.0)
    turns.rejected("b", "quiet", 0.1, 500)
    refused = turns.check(YES, "b", "flood", 0.2)
    assert refused.reason is RejectReason.RECEIVER_BUSY
    assert refused.numbers["clients_before"] == 1.0
    assert turns.check(YES, "other", "flood", 0.2) == YES
    assert turns.check(YES, "b", "quiet", 0.6) == YES
    turns.admitted("b", "quiet", 0.6)
    assert turns.check(YES, "b", "flood", 0.6) == YES


def test_a_claim_lapses_when_nobody_comes() -> None:
    turns = Turns(8)
    turns.admitted("b", "flood", 0.0)
    turns.rejected("b", "quiet", 0.0, 500)
    wait_ms = turns.check(YES, "b", "flood", 0.1).retry_after_ms
    assert turns.check(YES, "b", "flood", 0.1 + wait_ms / 1e3) == YES


def test_clients_that_were_never_served_do_not_hold_each_other_up() -> None:
    turns = Turns(8)
    for client in ("one", "two"):
        turns.rejected("b", client, 0.0, 500)
    assert turns.check(YES, "b", "one", 0.1) == YES
    assert turns.check(YES, "b", "two", 0.1) == YES


def test_a_turn_at_one_receiver_leaves_the_others_to_whoever_asks() -> None:
    admission = measured(("a", "b"), ("a", "c"))
    admission.turns.admitted("b", "me", 0.0)
    admission.turns.rejected("b", "other", 0.0, 500)
    answer = admission.admit_move(move(1, "a", "b", "c"), "t1", 0.1, "me")
    assert answer.claims is not None
    assert answer.target.node_id == "c"


def test_a_claim_ends_where_its_client_is_served_elsewhere() -> None:
    turns = Turns(8)
    turns.admitted("b", "flood", 0.0)
    turns.rejected("b", "quiet", 0.1, 500)
    turns.admitted("c", "quiet", 0.2, ["b", "c"])
    assert turns.check(YES, "b", "flood", 0.3) == YES


def test_one_client_cannot_take_every_hold() -> None:
    admission = Admission(Policy(client_holds_max=2))
    for number in range(2):
        asked = probe(number, f"s{number}", f"t{number}")
        assert admission.admit_move(asked, f"t{number}", 0.0, "flood").verdict.admitted
    with pytest.raises(CapacityExhausted) as caught:
        admission.admit_move(probe(9, "x", "y"), "t9", 0.0, "flood")
    assert caught.value.reason == "CLIENT_HOLDS_FULL"
    assert admission.admit_move(probe(9, "x", "y"), "t9", 0.0, "quiet").verdict.admitted
    admission.finish_move(report(probe(0)), 0.1)
    assert admission.admit_move(probe(8, "u", "v"), "t8", 0.1, "flood").verdict.admitted


def test_a_flood_cannot_starve_another_client() -> None:
    """One client asks all the time, another as it is told; both are served in turn."""
    admission = measured(*[(source, "b") for source in ("a", "q")])
    served = {"flood": 0, "quiet": 0}
    running: dict[str, float] = {}
    quiet_at_s, number = 0.0, 0
    for tick in range(4_000):
        now_s = tick / 1e3
        for name in [name for name, end_s in running.items() if end_s <= now_s]:
            admission.finish_move(report(move(int(name))), now_s)
            del running[name]
        for client, source in (("flood", "a"), ("quiet", "q")):
            if client == "quiet" and now_s < quiet_at_s:
                continue
            number += 1
            answer = _ask(admission, number, source, client, now_s)
            if answer.claims is not None:
                served[client] += 1
                hold = admission.holds.of_move(f"move-{number}")
                assert hold is not None
                running[str(number)] = hold.wire.end_s
            if client == "quiet":
                quiet_at_s = now_s + max(0.001, answer.verdict.retry_after_ms / 1e3)
    assert served["quiet"] >= served["flood"] / 2 > 3


def _ask(admission: Admission, number: int, source: str, client: str, now_s: float) -> MoveAnswer:
    # Too short a horizon to wait: whoever is there at the opening has the wire.
    request = move(number, source, "b", horizon_ms=157.0)
    return admission.admit_move(request, f"t{number}", now_s, client)
