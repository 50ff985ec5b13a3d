"""Verdicts round-trip, and say either yes or why not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import InvalidInput
from worldline.v1 import move_pb2
from worldline.verdict import RejectReason, Verdict, verdict_from_proto, verdict_to_proto

NUMBERS = st.dictionaries(
    st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), max_size=5
)


@given(
    st.one_of(
        st.builds(Verdict.admit, st.text(), NUMBERS),
        st.builds(
            Verdict.reject,
            st.sampled_from(RejectReason),
            st.text(),
            NUMBERS,
            st.integers(0, 2**63 - 1),
        ),
    )
)
def test_round_trips(verdict: Verdict) -> None:
    wire = verdict_to_proto(verdict).SerializeToString()
    back = verdict_from_proto(move_pb2.Verdict.FromString(wire))
    assert back == verdict
    assert list(back.numbers) == sorted(verdict.numbers)


def test_later_changes_of_the_callers_numbers_do_not_show() -> None:
    numbers = {"state_bytes": 1.0}
    verdict = Verdict.admit("yes", numbers)
    numbers["state_bytes"] = 2.0
    assert verdict.numbers == {"state_bytes": 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_refuses_numbers_that_are_none(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Verdict.admit("yes", {"l_star_ms": bad})
    assert caught.value.field == "verdict.numbers[l_star_ms]"


@pytest.mark.parametrize(
    "message",
    [
        move_pb2.Verdict(admitted=True, reason=move_pb2.REJECT_REASON_NO_TARGET),
        move_pb2.Verdict(admitted=False),
        move_pb2.Verdict(admitted=False, reason=99),  # type: ignore[arg-type]
    ],
)
def test_refuses_a_yes_with_a_reason_and_a_no_without(message: move_pb2.Verdict) -> None:
    with pytest.raises(InvalidInput) as caught:
        verdict_from_proto(message)
    assert caught.value.field == "verdict.reason"


def test_refuses_an_admit_with_something_to_retry() -> None:
    with pytest.raises(InvalidInput) as caught:
        verdict_from_proto(move_pb2.Verdict(admitted=True, retry_after_ms=1))
    assert caught.value.field == "verdict.retry_after_ms"


def test_labels() -> None:
    assert Verdict.admit("yes").label == "admitted"
    assert Verdict.reject(RejectReason.DEVICE_FULL, "no").label == "DEVICE_FULL"


def test_reasons_agree_with_the_proto() -> None:
    ours = {f"REJECT_REASON_{reason.name}": int(reason) for reason in RejectReason}
    assert ours | {"REJECT_REASON_UNSPECIFIED": 0} == dict(move_pb2.RejectReason.items())
