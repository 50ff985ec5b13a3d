"""Session admission: memory, periods, guard band, quality floor; against a simulated device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.admissibility.device_profile import DeviceProfile, ShapeProfile
from worldline.admissibility.sessions import SessionDemand, SessionFit
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvalidInput
from worldline.verdict import RejectReason

#: Paper, section 3.1: "Per-session state is 5.32 GB of KV caches".
RESIDENT_BYTES = 5_320_000_000
#: Section 3.1: "quantum cost tracks the request's conditioning window (85.8 vs 93.3 ms for
#: interactive- vs bulk-shaped requests)"; "four uniform quanta of 93.9 ms p50".
SHAPES = {
    "interactive": ShapeProfile(85.8, 3),
    "bulk": ShapeProfile(93.3, 3),
    "solo": ShapeProfile(93.9, 3),
}


def _device(guard_band: float = 0.05, memory_bytes: int = 32_000_000_000) -> DeviceProfile:
    return DeviceProfile(memory_bytes, guard_band, SHAPES)


def _session(
    shape: str = "interactive",
    period_ms: float = 400.0,
    steps: int = 3,
    resident_bytes: int = RESIDENT_BYTES,
) -> SessionDemand:
    contract = Contract(
        ServiceClass.C1_INTERACTIVE, 400.0, period_ms=period_ms, quality_floor_steps=steps
    )
    return SessionDemand(shape, resident_bytes, contract)


def test_the_papers_block_has_6_percent_slack() -> None:
    # Section 3.1: "375.6 ms blocks ... against a 400 ms release period with 6% slack".
    assert SHAPES["solo"].block_ms(3) == pytest.approx(375.6)
    assert SessionFit(_session("solo"), (), _device(0.06)).reason is None
    fit = SessionFit(_session("solo"), (), _device(0.07))
    assert fit.reason is RejectReason.DEVICE_OVERCOMMITTED


def test_a_two_step_block_costs_three_quarters_of_a_three_step_one() -> None:
    # Appendix D (i).
    shape = SHAPES["solo"]
    assert shape.block_ms(2) == pytest.approx(0.75 * shape.block_ms(3))


def test_capacity_keys_on_the_request_shape() -> None:
    device = _device(0.1)
    assert SessionFit(_session("interactive"), (), device).reason is None
    fit = SessionFit(_session("bulk"), (), device)
    assert fit.reason is RejectReason.DEVICE_OVERCOMMITTED


def test_placement_alone_turns_a_feasible_contract_infeasible() -> None:
    # Section 6.6: "runs every forward at ~202 instead of ~152 ms ... enough to turn an
    # otherwise-feasible 600 ms contract into a ~90% miss rate"; at the 2-step floor.
    session = _session("forward", period_ms=600.0, steps=2)
    right = DeviceProfile(10**11, 0.0, {"forward": ShapeProfile(152.0, 3)})
    wrong = DeviceProfile(10**11, 0.0, {"forward": ShapeProfile(202.0, 3)})
    assert SessionFit(session, (), right).reason is None
    assert SessionFit(session, (), wrong).reason is RejectReason.DEVICE_OVERCOMMITTED


def test_admission_is_at_the_quality_floor() -> None:
    device = _device(0.2)
    assert SessionFit(_session(steps=2), (), device).reason is None
    assert SessionFit(_session(steps=3), (), device).reason is RejectReason.DEVICE_OVERCOMMITTED


def test_a_session_without_a_floor_is_charged_for_full_quality() -> None:
    device = _device(0.2)
    unset, full = _session(steps=0), _session(steps=3)
    assert SessionFit(unset, (), device).reason is RejectReason.DEVICE_OVERCOMMITTED
    assert SessionFit(unset, (), device).numbers() == SessionFit(full, (), device).numbers()
    resident = SessionFit(_session(steps=1), (unset,), device)
    assert (
        resident.utilization_wanted
        == SessionFit(_session(steps=1), (full,), device).utilization_wanted
    )


def test_a_quantum_is_waited_for() -> None:
    # Section 7: "a 94 ms non-preemptible quantum turns 24 ms of nominal slack into zero usable
    # bulk": next to a session that uses 375.6 of 400 ms nothing with a deadline fits, be it ever
    # so rare.
    device, busy = _device(0.0), _session("solo")
    rare = _session("solo", period_ms=86_400_000.0)
    assert SessionFit(busy, (), device).fits_periods
    assert not SessionFit(rare, (busy,), device).fits_periods
    assert not SessionFit(busy, (rare,), device).fits_periods
    assert SessionFit(rare, (busy,), device).utilization_wanted == pytest.approx(
        (375.6 + 93.9) / 400
    )


def test_one_device_by_hand() -> None:
    # Shares 171.6/400 and 257.4/1,000; the first waits for a quantum of the second.
    first, second = _session(steps=1), _session(period_ms=1_000.0, steps=2)
    fit = SessionFit(second, (first,), _device(0.2))
    assert fit.utilization_wanted == pytest.approx(
        max((171.6 + 85.8) / 400, 171.6 / 400 + 257.4 / 1_000)
    )
    assert fit.utilization_max == pytest.approx(0.8)
    assert fit.reason is None
    assert fit.numbers() == {
        "state_bytes": 5.32e9,
        "resident_bytes": 10.64e9,
        "memory_bytes": 32e9,
        "guard_band": 0.2,
        "utilization_wanted": fit.utilization_wanted,
        "utilization_max": fit.utilization_max,
        "period_ms": 1_000.0,
        "quantum_ms": 85.8,
        "steps": 2.0,
        "block_ms": pytest.approx(257.4),
        "utilization_alone": pytest.approx(0.2574),
    }


def test_memory_comes_before_time_and_what_never_fits_first() -> None:
    device = _device(memory_bytes=2 * RESIDENT_BYTES)
    residents = (_session(steps=1, period_ms=10_000.0), _session(period_ms=0.0))
    assert SessionFit(_session(), residents[:1], device).fits_memory
    assert SessionFit(_session(), residents, device).reason is RejectReason.DEVICE_FULL
    large = _session(resident_bytes=2 * RESIDENT_BYTES + 1)
    assert SessionFit(large, (), device).reason is RejectReason.STATE_TOO_LARGE
    exact = _session(resident_bytes=2 * RESIDENT_BYTES)
    assert SessionFit(exact, (), device).reason is None


def test_a_session_without_a_period_needs_only_memory() -> None:
    full = (_session("solo"), _session("solo"))
    bulk = _session("unmeasured", period_ms=0.0)
    fit = SessionFit(bulk, full, _device())
    assert fit.utilization_wanted > 1
    assert fit.reason is None
    assert "block_ms" not in fit.numbers()
    # And it takes no time from those that have one.
    assert SessionFit(_session("solo"), (bulk,), _device()).utilization_wanted == pytest.approx(
        0.939
    )
    assert SessionFit(bulk, (), _device()).utilization_wanted == 0.0


def test_no_other_shape_stands_in_for_one_that_was_not_measured() -> None:
    unmeasured = _session("panorama")
    for candidate, residents in ((unmeasured, ()), (_session(), (unmeasured,))):
        with pytest.raises(InvalidInput) as caught:
            SessionFit(candidate, residents, _device())
        assert caught.value.field == "shape"
        assert "bulk, interactive, solo" in caught.value.message


def test_a_profile_keeps_its_rows() -> None:
    rows = {"interactive": ShapeProfile(10.0, 3)}
    device = DeviceProfile(1, 0.0, rows)
    rows.clear()
    assert device.shape("interactive").quantum_ms == 10.0


def _misses(sessions: Sequence[SessionDemand], quantum: int, offsets: Sequence[int]) -> bool:
    """Whether any block ends late: quanta of whole ticks, earliest deadline first.

    Blocks are released period after period from each session's offset.
    """
    blocks = []
    for index, session in enumerate(sessions):
        period, steps = int(session.contract.period_ms), session.contract.quality_floor_steps
        for at in range(offsets[index], 120, period):
            blocks.append([at + period, at, steps])
    now = 0
    while blocks:
        released = [block for block in blocks if block[1] <= now]
        if not released:
            now = min(block[1] for block in blocks)
            continue
        block = min(released)
        now += quantum
        block[2] -= 1
        if block[2] == 0:
            if now > block[0]:
                return True
            blocks.remove(block)
    return False


ticks = st.builds(
    lambda steps, period: _session("tick", float(period), steps, 1),
    st.integers(1, 4),
    st.integers(2, 30),
)


@given(st.lists(ticks, min_size=1, max_size=3), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_what_is_admitted_is_never_late(sessions: list[SessionDemand], quantum: int) -> None:
    shape = ShapeProfile(float(quantum), 8, context_quanta=0)
    *residents, candidate = sessions
    fit = SessionFit(candidate, tuple(residents), DeviceProfile(10, 0.0, {"tick": shape}))
    late = any(
        _misses(sessions, quantum, offsets) for offsets in product(range(3), repeat=len(sessions))
    )
    if fit.fits_periods:
        assert not late
    # More than all the time there is cannot be served in any order.
    if (
        sum(shape.block_ms(s.contract.quality_floor_steps) / s.contract.period_ms for s in sessions)
        > 1
    ):
        assert not fit.fits_periods


demands = st.builds(
    _session,
    st.sampled_from(sorted(SHAPES)),
    st.just(0.0) | st.floats(1.0, 1e6),
    st.integers(1, 8),
    st.integers(1, 10**11),
)
residents_lists = st.lists(demands, max_size=4).map(tuple)


@given(demands, residents_lists, demands, st.floats(0.0, 0.9))
def test_a_resident_more_never_helps(
    candidate: SessionDemand,
    residents: tuple[SessionDemand, ...],
    other: SessionDemand,
    guard_band: float,
) -> None:
    device = _device(guard_band)
    fewer = SessionFit(candidate, residents, device)
    more = SessionFit(candidate, (*residents, other), device)
    assert more.utilization_wanted >= fewer.utilization_wanted * (1 - 1e-9)
    assert more.resident_bytes == fewer.resident_bytes + other.resident_bytes
    if more.reason is None and fewer.reason is not None:
        # Only by a rounding of the last bit.
        assert fewer.utilization_wanted == pytest.approx(fewer.utilization_max)


@given(demands, residents_lists, st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_a_wider_guard_band_never_admits_more(
    candidate: SessionDemand, residents: tuple[SessionDemand, ...], one: float, other: float
) -> None:
    narrow, wide = sorted((one, other))
    if SessionFit(candidate, residents, _device(wide)).reason is None:
        assert SessionFit(candidate, residents, _device(narrow)).reason is None


@given(demands, residents_lists)
def test_numbers_are_finite_and_agree_with_the_reason(
    candidate: SessionDemand, residents: tuple[SessionDemand, ...]
) -> None:
    fit = SessionFit(candidate, residents, _device())
    numbers = fit.numbers()
    assert all(math.isfinite(number) for number in numbers.values())
    assert fit.fits_memory == (numbers["resident_bytes"] <= numbers["memory_bytes"])
    admitted = fit.fits_memory and (
        candidate.contract.period_ms == 0
        or numbers["utilization_wanted"] <= numbers["utilization_max"]
    )
    assert admitted == (fit.reason is None)


@given(demands)
def test_alone_a_session_is_as_busy_as_its_block_in_its_period(candidate: SessionDemand) -> None:
    fit = SessionFit(candidate, (), _device())
    if candidate.contract.period_ms:
        numbers = fit.numbers()
        assert fit.utilization_wanted == pytest.approx(numbers["block_ms"] / numbers["period_ms"])


@given(st.floats(1e-6, 8.64e7), st.integers(0, 1_000), st.integers(1, 999))
def test_a_step_more_costs_a_quantum(quantum_ms: float, context: int, steps: int) -> None:
    shape = ShapeProfile(quantum_ms, 3, context)
    assert shape.block_ms(steps + 1) - shape.block_ms(steps) == pytest.approx(quantum_ms)
    assert shape.block_ms(steps) >= quantum_ms


def test_the_last_quantum_of_a_block_may_cost_something_else() -> None:
    shape = ShapeProfile(10.0, 3, closing_ms=18.0)
    assert [shape.block_ms(steps) for steps in (1, 2, 3)] == [28.0, 38.0, 48.0]
    assert shape.longest_ms == 18.0
    assert ShapeProfile(10.0, 3, closing_ms=4.0).longest_ms == 10.0
    # It is the longest quantum that a session with a nearer deadline waits for.
    device = DeviceProfile(10**12, 0.0, {"fast": ShapeProfile(1.0, 3), "slow": shape})
    fast, slow = _session("fast", 20.0, 3), _session("slow", 1_000.0, 3)
    fit = SessionFit(fast, (slow,), device)
    assert fit.utilization_wanted == pytest.approx((4.0 + 18.0) / 20.0)


def test_one_quantum_for_all_steps() -> None:
    """A model that does three steps in one pass: nothing is saved by leaving some out."""
    shape = ShapeProfile(10.0, 3, context_quanta=-2)
    assert [shape.block_ms(steps) for steps in (1, 2, 3)] == [10.0, 10.0, 10.0]


def test_a_cap_on_degraded_blocks_is_charged_for_the_whole_one() -> None:
    shape = SHAPES["solo"]
    plain, floored = _session(steps=0).contract, _session(steps=1).contract
    capped = replace(floored, degraded_consecutive_max=2)
    assert [shape.steps_at_floor(one) for one in (plain, floored, capped)] == [3, 1, 3]
    assert shape.steps_at_floor(_session(steps=9).contract) == 3, "no block has more"


def test_what_is_taken_already_is_no_room() -> None:
    device = _device(memory_bytes=3 * RESIDENT_BYTES)
    assert SessionFit(_session(), (), device, 2 * RESIDENT_BYTES).fits_memory
    assert SessionFit(_session(), (), device, 2 * RESIDENT_BYTES + 1).reason is (
        RejectReason.DEVICE_FULL
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_values_are_named(bad: float) -> None:
    for call, field in (
        (lambda: ShapeProfile(bad, 3), "quantum_ms"),
        (lambda: ShapeProfile(1.0, 3, closing_ms=bad), "closing_ms"),
        (lambda: DeviceProfile(1, bad, {}), "guard_band"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize("bad", [-1, 2**63, 1.5])
def test_bad_counts_are_named(bad: int) -> None:
    for call, field in (
        (lambda: ShapeProfile(1.0, bad), "denoising_steps"),
        (lambda: ShapeProfile(1.0, 3, bad if bad > 0 else -1_001), "context_quanta"),
        (lambda: ShapeProfile(1.0, 3).block_ms(bad), "steps"),
        (lambda: SessionFit(_session(), (), _device(), bad), "taken_bytes"),
        (lambda: DeviceProfile(bad, 0.0, {}), "memory_bytes"),
        (lambda: _session(resident_bytes=bad), "resident_bytes"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


def test_bad_edges_are_named() -> None:
    for call, field in (
        (lambda: ShapeProfile(0.0, 3), "quantum_ms"),
        (lambda: ShapeProfile(1.0, 3).block_ms(0), "steps"),
        (lambda: DeviceProfile(0, 0.0, {}), "memory_bytes"),
        (lambda: DeviceProfile(1, 0.91, {}), "guard_band"),
        (lambda: _session(shape=""), "shape"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field
