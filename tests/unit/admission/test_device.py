"""Sessions on a device: slot, state, rows, period."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.admission.core import Admission
from services.admission.device import decide_session
from services.admission.policy import Policy
from services.admission.requests import SessionRequest
from tests.rows import row
from worldline.admissibility.device_profile import DeviceProfile
from worldline.admissibility.profile_row import QuantumSpread, RequestShape
from worldline.admissibility.sessions import SessionDemand, SessionFit
from worldline.contract import DecodeTier
from worldline.verdict import RejectReason, Verdict

from .builders import STATE_BYTES, resident, session

POLICY = Policy()


def decide(request: SessionRequest, policy: Policy = POLICY) -> Verdict:
    return decide_session(request, policy).verdict


def test_the_papers_own_engine_is_admitted_once_and_not_twice() -> None:
    first = decide(session())
    assert first.admitted
    assert first.numbers["block_ms"] == pytest.approx(375.6)
    second = decide(session(residents=(resident(),)))
    assert second.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert second.retry_after_ms > 0
    assert second.numbers["utilization_wanted"] == pytest.approx(1.878)


def test_a_device_too_slow_when_empty_is_not_worth_waiting_for() -> None:
    verdict = decide(session(period_ms=300.0))
    assert verdict.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert verdict.retry_after_ms == 0
    assert "even when empty" in verdict.explanation


def test_the_guard_band_is_kept_and_its_edge_is_inside() -> None:
    exact = session(rows=(row("mg2", 95.0),))
    assert decide(exact, Policy(guard_band=0.05)).admitted
    assert not decide(exact, Policy(guard_band=0.051)).admitted


def test_admission_is_at_the_quality_floor() -> None:
    """Paper, section 5. Two of four quanta fit twice where four fit once; unset is all of them."""
    floored = {"quality_floor_steps": 1}
    assert decide(session(residents=(resident(**floored),), **floored)).admitted
    assert not decide(session(residents=(resident(**floored),))).admitted
    assert not decide(session(residents=(resident(),), **floored)).admitted
    verdict = decide(session(**floored))
    assert (verdict.numbers["steps"], verdict.numbers["block_ms"]) == (1.0, pytest.approx(187.8))


def test_a_capped_run_of_degraded_blocks_is_charged_for_the_whole_one_after_it() -> None:
    floored = {"quality_floor_steps": 1, "degraded_consecutive_max": 3}
    assert not decide(session(residents=(resident(**floored),), **floored)).admitted


def test_a_client_paced_world_has_no_period_to_fit_and_needs_no_row() -> None:
    for rows in ((), (row("mg2"),)):
        verdict = decide(session(period_ms=0.0, rows=rows, residents=(resident(), resident())))
        assert verdict.admitted
        assert "client paces" in verdict.explanation


def test_an_unmeasured_quantum_is_never_guessed() -> None:
    decision = decide_session(session(rows=()), POLICY)
    assert decision.verdict.reason is RejectReason.QUANTUM_UNMEASURED
    assert decision.verdict.retry_after_ms > 0
    assert decision.unmeasured == (RequestShape("mg2"),)


def test_a_row_of_another_shape_does_not_stand_in() -> None:
    half = decide_session(session(decode_tier=DecodeTier.HALF), POLICY)
    assert half.unmeasured == (RequestShape("mg2", DecodeTier.HALF),)
    other = decide_session(session(rows=(row("tiny"),)), POLICY)
    assert other.unmeasured == (RequestShape("mg2"),)


def test_who_may_be_delayed_must_be_measured_too() -> None:
    request = session(residents=(resident("tiny"), resident("tiny"), resident("mg2")))
    assert decide_session(request, POLICY).unmeasured == (RequestShape("tiny"),)


def test_a_row_is_believed_for_a_time() -> None:
    policy = Policy(row_age_max_ms=1_000.0)
    assert decide(session(rows=(row("mg2", age_ms=1_000.0),)), policy).admitted
    old = decide(session(rows=(row("mg2", age_ms=1_000.1),)), policy)
    assert old.reason is RejectReason.QUANTUM_UNMEASURED
    assert old.numbers["row_age_ms"] == pytest.approx(1_000.1)
    assert "too long" in old.explanation


def test_the_slow_quanta_keep_a_period_not_the_typical_one() -> None:
    jittery = QuantumSpread(samples=100, p50_ms=80.0, p95_ms=96.0)
    verdict = decide(session(rows=(row("mg2", step=jittery, closing=jittery),)))
    assert verdict.reason is RejectReason.DEVICE_OVERCOMMITTED
    assert verdict.numbers["block_ms"] == pytest.approx(4 * 96.0)


def test_a_quantum_of_a_later_session_is_waited_for() -> None:
    """Paper, section 7: a critical section that no protocol can shorten."""
    rows = (row("mg2", 93.9), row("tiny", 5.0))
    slow = resident("mg2", period_ms=10_000.0)
    request = replace(session(period_ms=100.0, rows=rows, residents=(slow,)), preset="tiny")
    assert decide(request).reason is RejectReason.DEVICE_OVERCOMMITTED
    assert decide(replace(request, device=replace(request.device, residents=()))).admitted


def test_a_full_device() -> None:
    verdict = decide(session(slots_used=4))
    assert verdict.reason is RejectReason.DEVICE_FULL
    assert verdict.retry_after_ms == POLICY.device_retry_ms
    assert decide(session(slots_used=3)).admitted
    assert decide(session(slots_total=0, slots_used=0)).reason is RejectReason.DEVICE_FULL


def test_more_residents_than_slots_in_use_fill_the_device_too() -> None:
    """They are on their way there: their slots are not taken yet."""
    coming = tuple(resident(period_ms=100_000.0) for _ in range(4))
    verdict = decide(session(period_ms=100_000.0, slots_used=1, residents=coming))
    assert verdict.reason is RejectReason.DEVICE_FULL


def test_a_state_larger_than_a_slot_is_hopeless_even_on_a_full_device() -> None:
    verdict = decide(session(state_bytes=STATE_BYTES + 1, slots_used=4))
    assert verdict.reason is RejectReason.STATE_TOO_LARGE
    assert verdict.retry_after_ms == 0


@given(
    quantum_ms=st.floats(1e-3, 1e3),
    period_ms=st.floats(1e-3, 1e5),
    residents=st.lists(st.tuples(st.floats(1.0, 1e5), st.integers(0, 3)), max_size=6),
    floor=st.integers(0, 3),
)
def test_the_service_decides_as_the_pure_arithmetic_does(
    quantum_ms: float, period_ms: float, residents: list[tuple[float, int]], floor: int
) -> None:
    measured = row("mg2", quantum_ms)
    here = tuple(
        resident(period_ms=period, quality_floor_steps=steps) for period, steps in residents
    )
    request = session(
        period_ms=period_ms,
        quality_floor_steps=floor,
        rows=(measured,),
        residents=here,
        slots_total=20,
        slots_used=len(here),
    )
    name = measured.shape.name
    fit = SessionFit(
        SessionDemand(name, 1, request.contract),
        tuple(SessionDemand(name, 1, one.contract) for one in here),
        DeviceProfile(10**9, POLICY.guard_band, {name: measured.charge}),
    )
    verdict = decide(request)
    assert verdict.admitted == fit.fits_periods
    assert verdict.numbers["utilization_wanted"] == pytest.approx(fit.utilization_wanted)


def test_verdicts_are_counted() -> None:
    admission = Admission(POLICY)
    admission.admit_session(session())
    admission.admit_session(session())
    admission.admit_session(session(slots_used=4))
    admission.admit_session(session(rows=()))
    counts = {"admitted": 2, "DEVICE_FULL": 1, "QUANTUM_UNMEASURED": 1}
    assert dict(admission.verdicts) == counts
