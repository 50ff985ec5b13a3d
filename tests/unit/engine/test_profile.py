"""Profile: rows learned in band: their quantiles, their age, their binding."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.profile import WINDOW, Profiles
from services.engine.world import WorldModel
from tests.unit.engine.support import tiny_world
from worldline.admissibility.profile_row import ROW_AGE_MAX_MS, RequestShape, shape_of
from worldline.contract import Contract, DecodeTier, ServiceClass
from worldline.numa import Binding

TINY = RequestShape("tiny")
HALF = RequestShape("tiny", DecodeTier.HALF)
NEAR, FAR = Binding(frozenset({0, 1}), 0), Binding(frozenset({2, 3}), 1)
AGE_MAX_S = ROW_AGE_MAX_MS / 1e3


@dataclass
class _OneQuantum:
    """Of a model only what a row needs."""

    quanta_per_block: int = 1
    denoising_steps: int = 3


@pytest.fixture(scope="module")
def model() -> WorldModel:
    return tiny_world()


def block(profiles: Profiles, model: WorldModel, quanta: tuple[float, ...], now: float) -> None:
    for index, quantum_ms in enumerate(quanta):
        closing = index == len(quanta) - 1
        profiles.add(TINY, model, quantum_ms, closing=closing, now=now)


def test_a_row_is_there_after_a_whole_block(model: WorldModel) -> None:
    profiles = Profiles("cpu", NEAR)
    assert profiles.quantum_s(TINY) == 0.0
    profiles.add(TINY, model, 10.0, closing=False, now=0.0)
    assert profiles.row(TINY, 0.0) is None, "what ends a block is not known yet"
    assert profiles.quantum_s(TINY) == pytest.approx(0.010)
    block(profiles, model, (12.0, 11.0, 19.0), now=1.0)
    row = profiles.row(TINY, 3.0)
    assert row is not None
    assert (row.device, row.binding, row.shape) == ("cpu", NEAR, TINY)
    assert (row.quanta_per_block, row.denoising_steps) == (4, 3)
    assert row.step is not None
    assert (row.step.samples, row.step.p50_ms, row.step.p95_ms) == (3, 11.0, 12.0)
    assert (row.closing.samples, row.closing.p50_ms) == (1, 19.0)
    assert row.age_ms == pytest.approx(2_000.0)
    assert profiles.quantum_s(TINY) == pytest.approx(0.019), "the longer of the two kinds"
    assert row.charge.block_ms(3) == pytest.approx(3 * 12.0 + 19.0)
    assert row.charge.block_ms(1) == pytest.approx(12.0 + 19.0)


def test_a_block_of_one_quantum_makes_a_row_too() -> None:
    profiles = Profiles()
    profiles.add(TINY, _OneQuantum(), 50.0, closing=True, now=0.0)  # type: ignore[arg-type]
    row = profiles.row(TINY, 0.0)
    assert row is not None
    assert row.step is None
    assert [row.charge.block_ms(steps) for steps in (1, 2, 3)] == [50.0, 50.0, 50.0]


def test_shapes_do_not_mix(model: WorldModel) -> None:
    profiles = Profiles()
    block(profiles, model, (10.0, 10.0, 10.0, 10.0), now=0.0)
    assert profiles.row(HALF, 0.0) is None
    assert profiles.quantum_s(HALF) == 0.0
    profiles.add(HALF, model, 5.0, closing=False, now=0.0)
    profiles.add(HALF, model, 5.0, closing=True, now=0.0)
    assert [row.shape for row in profiles.rows(0.0)] == [TINY, HALF]
    contract = Contract(ServiceClass.C1_INTERACTIVE, 400.0, decode_tier=DecodeTier.HALF)
    assert shape_of("tiny", contract) == HALF


def test_one_stall_moves_neither_the_median_nor_the_percentile(model: WorldModel) -> None:
    profiles = Profiles()
    for _ in range(30):
        block(profiles, model, (10.0, 10.0, 10.0, 10.0), now=0.0)
    profiles.add(TINY, model, 1_000.0, closing=False, now=0.0)
    row = profiles.row(TINY, 0.0)
    assert row is not None
    assert row.step is not None
    assert (row.step.p50_ms, row.step.p95_ms) == (10.0, 10.0)


def test_a_slower_device_is_believed_within_a_window(model: WorldModel) -> None:
    profiles = Profiles()
    for _ in range(WINDOW):
        profiles.add(TINY, model, 10.0, closing=False, now=0.0)
        profiles.add(TINY, model, 10.0, closing=True, now=0.0)
    for _ in range(WINDOW // 10):
        profiles.add(TINY, model, 20.0, closing=False, now=0.0)
    assert profiles.quantum_s(TINY) == pytest.approx(0.020)


def test_a_row_grows_stale_and_begins_anew(model: WorldModel) -> None:
    profiles = Profiles()
    block(profiles, model, (10.0, 10.0, 10.0, 10.0), now=0.0)
    assert profiles.row(TINY, AGE_MAX_S) is not None
    assert profiles.row(TINY, AGE_MAX_S + 0.001) is None
    assert profiles.rows(AGE_MAX_S + 0.001) == ()
    block(profiles, model, (40.0, 40.0, 40.0, 40.0), now=AGE_MAX_S + 1.0)
    row = profiles.row(TINY, AGE_MAX_S + 1.0)
    assert row is not None
    assert row.step is not None
    assert (row.step.samples, row.step.p50_ms) == (3, 40.0), "nothing of the old ones is left"


def test_another_binding_knows_nothing_of_this_one(model: WorldModel) -> None:
    """The far NUMA node is a third slower (section 6.6): a row must never cross over."""
    profiles = Profiles("cuda:0", NEAR)
    block(profiles, model, (10.0, 10.0, 10.0, 10.0), now=0.0)
    assert not profiles.bind(NEAR)
    assert profiles.row(TINY, 0.0) is not None
    assert profiles.bind(FAR)
    assert profiles.row(TINY, 0.0) is None
    assert profiles.quantum_s(TINY) == 0.0
    block(profiles, model, (13.0, 13.0, 13.0, 13.0), now=1.0)
    row = profiles.row(TINY, 1.0)
    assert row is not None
    assert row.binding == FAR


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_clock_that_stands_still_measures_nothing(model: WorldModel, bad: float) -> None:
    profiles = Profiles()
    block(profiles, model, (bad, bad, bad, bad), now=0.0)
    assert profiles.rows(0.0) == ()
    assert profiles.quantum_s(TINY) == 0.0


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=3 * WINDOW))
def test_quantiles_are_those_of_the_latest(durations_ms: list[float]) -> None:
    profiles = Profiles()
    for duration_ms in durations_ms:
        profiles.add(TINY, _OneQuantum(), duration_ms, closing=True, now=0.0)  # type: ignore[arg-type]
    row = profiles.row(TINY, 0.0)
    assert row is not None
    latest = sorted(durations_ms[-WINDOW:])
    assert row.closing.samples == len(durations_ms)
    assert row.closing.p50_ms == statistics.median_low(latest)
    not_above = sum(one <= row.closing.p95_ms for one in latest)
    below = sum(one < row.closing.p95_ms for one in latest)
    assert below < 0.95 * len(latest) <= not_above
