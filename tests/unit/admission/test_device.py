"""Sessions on a device: slot, state, period."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.core import Admission
from services.admission.device import decide_session
from services.admission.policy import Policy
from worldline.verdict import RejectReason

from .builders import STATE_BYTES, session

POLICY = Policy()


def test_the_papers_own_engine_is_admitted_once_and_not_twice() -> None:
    first = decide_session(session(), POLICY)
    assert first.admitted
    assert first.numbers["block_ms"] == pytest.approx(375.6)
    second = decide_session(session(utilization=0.939), POLICY)
    assert second.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert second.retry_after_ms > 0
    assert second.numbers["utilization_wanted"] == pytest.approx(1.878)


def test_a_device_too_slow_when_empty_is_not_worth_waiting_for() -> None:
    verdict = decide_session(session(period_ms=300.0), POLICY)
    assert verdict.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert verdict.retry_after_ms == 0
    assert "even when empty" in verdict.explanation


def test_the_guard_band_is_kept_and_its_edge_is_inside() -> None:
    exact = {"quantum_ms": 95.0, "quanta_per_block": 4}
    assert decide_session(session(**exact), Policy(guard_band=0.05)).admitted
    assert not decide_session(session(**exact), Policy(guard_band=0.051)).admitted


def test_a_client_paced_world_has_no_period_to_fit() -> None:
    verdict = decide_session(session(period_ms=0.0, utilization=5.0), POLICY)
    assert verdict.admitted
    assert "client paces" in verdict.explanation


@pytest.mark.parametrize("unmeasured", [{"quantum_ms": 0.0}, {"quanta_per_block": 0}])
def test_an_unmeasured_quantum_is_admitted_and_said(unmeasured: dict[str, float]) -> None:
    verdict = decide_session(session(**unmeasured), POLICY)
    assert verdict.admitted
    assert "unmeasured" in verdict.explanation
    assert "assumed" in verdict.explanation


def test_a_full_device() -> None:
    verdict = decide_session(session(slots_used=4), POLICY)
    assert verdict.reason is RejectReason.DEVICE_FULL
    assert verdict.retry_after_ms == POLICY.device_retry_ms
    assert decide_session(session(slots_used=3), POLICY).admitted


def test_a_state_larger_than_a_slot_is_hopeless_even_on_a_full_device() -> None:
    verdict = decide_session(session(state_bytes=STATE_BYTES + 1, slots_used=4), POLICY)
    assert verdict.reason is RejectReason.STATE_TOO_LARGE
    assert verdict.retry_after_ms == 0


@given(
    quantum_ms=st.floats(1e-3, 1e3),
    quanta=st.integers(1, 64),
    period_ms=st.floats(1e-3, 1e5),
    resident=st.integers(0, 50),
)
def test_admitting_until_the_first_reject_never_overcommits(
    quantum_ms: float, quanta: int, period_ms: float, resident: int
) -> None:
    share = quantum_ms * quanta / period_ms
    utilization = resident * share
    verdict = decide_session(
        session(
            quantum_ms=quantum_ms,
            quanta_per_block=quanta,
            period_ms=period_ms,
            utilization=min(utilization, 1e6),
        ),
        POLICY,
    )
    assert verdict.admitted == (min(utilization, 1e6) + share <= 1 - POLICY.guard_band)


def test_verdicts_are_counted() -> None:
    admission = Admission(POLICY)
    admission.admit_session(session())
    admission.admit_session(session())
    admission.admit_session(session(slots_used=4))
    assert dict(admission.verdicts) == {"admitted": 2, "DEVICE_FULL": 1}
