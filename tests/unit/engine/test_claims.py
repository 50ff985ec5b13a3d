"""Claims and quality: what a session asks of the schedule, and what its block then gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from services.engine.claims import Standing, bulk_waits, claim_of, wave_member
from services.engine.core import Pending, Phase, World
from services.engine.expected import Expected
from services.engine.model.config import TINY
from services.engine.model.dirty import DirtyWorld
from services.engine.pace import Pace, pace_of
from services.engine.quality import (
    choose_quality,
    full_quality,
    ladder_of,
    replayed_quality,
)
from services.engine.schedule import (
    Band,
    Choice,
    Claim,
    Firm,
    Guard,
    Idle,
    QualityHistory,
    Release,
    ReleaseGrid,
    Wait,
    pick,
    wave_floors,
)
from services.engine.world import Action
from tests.unit.engine.support import contract_of
from worldline.contract import Contract, ServiceClass

#: Trusts rows to the bit, so that sums are exact.
GUARD = Guard(overrun=0.0, handover_s=0.0)
BULK = ServiceClass.C3_BULK


class Model:
    """The ladder of a model of three steps and a context pass; nothing else of it is asked."""

    preset = "model"
    quanta_per_block = 4
    denoising_steps = 3


MODEL: Any = Model()
EVEN = Expected(0.1, 0.1)


def standing(contract: Contract, **facts: Any) -> Standing:
    ladder = ladder_of(MODEL, contract)
    return Standing(contract, MODEL, ladder, **{"expected": EVEN, "played": True, **facts})


def idle(contract: Contract, *, anchor_at: float | None = None, **facts: Any) -> World:
    """A running world without an action; with `anchor_at` its grid is open."""
    pace = pace_of(contract)
    if anchor_at is not None and pace.grid is not None:
        pace = replace(pace, grid=pace.grid.opened(anchor_at))
    return World("s", **{"epoch": 1, "phase": Phase.RUNNING, "pace": pace, **facts})


def asked(contract: Contract, at: float, **facts: Any) -> World:
    """With one, that came at `at`."""
    world = idle(contract, **facts)
    return replace(world, pending=(Pending(Action(0), at),), pace=world.pace.asked(at))


def flying(contract: Contract, at: float, phase: Phase = Phase.GENERATING, **facts: Any) -> World:
    return replace(asked(contract, at, **facts), phase=phase, pending=())


def claimed(world: World, standing: Standing, now: float = 0.0) -> Claim:
    claim = claim_of(world, standing, now, GUARD)
    assert claim is not None
    return claim


def test_a_period_is_the_deadline_where_there_is_one_and_the_horizon_where_not() -> None:
    client_paced = contract_of(horizon_ms=60_000.0)
    assert claimed(asked(client_paced, 10.0), standing(client_paced)).due_at == 70.0
    paced = contract_of(horizon_ms=60_000.0, period_ms=500.0)
    first = claimed(asked(paced, 10.0), standing(paced))
    assert (first.release_at, first.due_at) == (10.0, 70.0), "its grid is closed"
    later = claimed(asked(paced, 10.25, anchor_at=10.0), standing(paced))
    assert (later.release_at, later.due_at) == (10.5, 11.0)


def test_bulk_is_held_to_no_deadline_whatever_its_contract_says() -> None:
    bulk = contract_of(service_class=BULK, period_ms=500.0)
    assert claimed(asked(bulk, 10.25, anchor_at=10.0), standing(bulk)).due_at == math.inf


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"room": False}, "the client must read first"),
        ({"held": True}, "somebody reads the state"),
    ],
)
def test_a_world_between_blocks_can_be_kept_there(facts: dict[str, bool], why: str) -> None:
    contract = contract_of()
    assert isinstance(pick([claimed(asked(contract, 1.0), standing(contract))], 1.0), Choice)
    kept = claim_of(asked(contract, 1.0), standing(contract, **facts), 1.0, GUARD)
    assert isinstance(pick([] if kept is None else [kept], 1.0), Idle), why
    # A block in flight goes to its boundary all the same.
    mid = claimed(flying(contract, 1.0, Phase.FREEZING), standing(contract, **facts))
    assert isinstance(pick([mid], 1.0), Choice)


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.FROZEN, Phase.ATTACHED, Phase.RELEASED])
def test_only_running_worlds_begin_blocks(phase: Phase) -> None:
    contract = contract_of()
    world = replace(asked(contract, 1.0), phase=phase)
    assert claim_of(world, standing(contract), 1.0, GUARD) is None


def test_a_block_claims_all_its_quanta_and_then_what_is_left_of_them() -> None:
    contract = contract_of()
    assert claimed(asked(contract, 1.0), standing(contract)).left_s == pytest.approx(0.4)
    mid = claimed(flying(contract, 1.0), standing(contract, quanta_left=2, begun_at=0.5))
    assert (mid.left_s, mid.arrived_at, mid.mid_block) == (pytest.approx(0.2), 0.5, True)


def test_the_blocks_that_follow_are_claimed_while_a_client_is_there() -> None:
    paced = contract_of(period_ms=350.0, quality_floor_steps=1)
    world = asked(paced, 10.25, anchor_at=10.0)
    claims = [
        claimed(world, standing(paced)),
        claimed(replace(world, phase=Phase.GENERATING), standing(paced, quanta_left=1)),
        claimed(idle(paced, anchor_at=10.0), standing(paced), now=10.25),
    ]
    assert [claim.period_s for claim in claims] == [0.35] * 3
    assert [claim.block_s for claim in claims] == [pytest.approx(0.3)] * 3
    assert claims[1].left_s == pytest.approx(0.1)
    assert claimed(world, standing(paced, played=False)).period_s == 0.0
    assert claimed(asked(paced, 10.25), standing(paced)).period_s == 0.0, "its grid is closed"
    assert claimed(asked(contract_of(), 10.25), standing(contract_of())).period_s == 0.0


def test_a_floor_keeps_no_more_than_what_its_period_has_room_for() -> None:
    tight = contract_of(period_ms=350.0, quality_floor_steps=1)
    assert claimed(asked(tight, 1.0), standing(tight)).left_s == pytest.approx(0.3)
    full = contract_of(period_ms=350.0)
    assert claimed(asked(full, 1.0), standing(full)).left_s == pytest.approx(0.4)


def test_time_is_kept_for_an_action_that_is_about_to_come() -> None:
    paced = contract_of(period_ms=500.0)
    world = idle(paced, anchor_at=10.0)
    kept = claimed(world, standing(paced), now=10.25)
    assert (kept.release_at, kept.due_at, kept.prospective) == (10.5, 11.0, True)
    residual = contract_of(service_class=BULK)
    bulk = claimed(asked(residual, 9.0), standing(residual))
    # 0.75 s until it is due, 0.4 s for it: 0.35 s may be somebody else's, across its release.
    assert isinstance(pick([kept, bulk._replace(quantum_s=0.3)], 10.25, guard=GUARD), Choice)
    waits = pick([kept, bulk._replace(quantum_s=0.4)], 10.25, guard=GUARD)
    assert isinstance(waits, Idle)
    assert (waits.reason, waits.until) == (Wait.GUARDED, 10.5)


@pytest.mark.parametrize(
    ("facts", "now", "why"),
    [
        ({"played": False}, 10.25, "no client is there"),
        ({}, 11.25, "the client has paused"),
        ({"room": False}, 10.25, "the client must read first"),
    ],
)
def test_no_time_is_kept_for_who_is_away(facts: dict[str, bool], now: float, why: str) -> None:
    paced = contract_of(period_ms=500.0)
    assert claim_of(idle(paced, anchor_at=10.0), standing(paced, **facts), now, GUARD) is None, why


def test_no_time_is_kept_without_a_grid_or_outside_c1() -> None:
    for contract in (
        contract_of(),
        contract_of(period_ms=500.0, service_class=ServiceClass.C2A_PLANNER),
    ):
        world = idle(contract, anchor_at=10.0)
        assert claim_of(world, standing(contract), 10.25, GUARD) is None
    closed = contract_of(period_ms=500.0)
    assert claim_of(idle(closed), standing(closed), 10.25, GUARD) is None


def test_a_freeze_in_mid_block_is_not_starved() -> None:
    """Bulk that somebody waits for is hard, and due when they want it."""
    bulk, playing = contract_of(service_class=BULK), contract_of(horizon_ms=9_000.0)
    mid = flying(bulk, 0.0, Phase.FREEZING)
    other = claimed(asked(playing, 0.0), standing(playing))._replace(session_id="c1")
    waited_for = claimed(mid, standing(bulk, quanta_left=3, boundary_by=5.0))
    choice = pick([waited_for, other], 1.0, guard=GUARD)
    assert isinstance(choice, Choice)
    assert (choice.session_id, choice.band) == ("s", Band.HARD)
    choice = pick([claimed(mid, standing(bulk, quanta_left=3)), other], 1.0, guard=GUARD)
    assert isinstance(choice, Choice)
    assert choice.session_id == "c1"


def test_a_cohort_goes_block_by_block() -> None:
    wave = contract_of(service_class=ServiceClass.C2B_COHORT, cohort="w")
    ahead = replace(asked(wave, 1.0), session_id="ahead", block_index=6)
    behind = replace(asked(wave, 2.0), session_id="behind", block_index=5)
    claims = [claimed(world, standing(wave)) for world in (ahead, behind)]
    members = [wave_member(world, wave) for world in (ahead, behind)]
    floors = wave_floors(member for member in members if member is not None)
    choice = pick(claims, 3.0, floors=floors)
    assert isinstance(choice, Choice)
    assert choice.session_id == "behind"
    alone = pick(claims[:1], 3.0, floors=floors)
    assert isinstance(alone, Idle)
    assert alone.reason is Wait.BARRIER


@pytest.mark.parametrize("phase", list(Phase))
def test_who_holds_up_a_cohort(phase: Phase) -> None:
    """Whoever may still come to the barrier: a frozen world does, one that ends does not."""
    wave = contract_of(service_class=ServiceClass.C2B_COHORT, cohort="w")
    member = wave_member(replace(idle(wave), phase=phase, block_index=3), wave)
    gone = phase in (Phase.ATTACHED, Phase.CLOSING, Phase.RELEASED)
    assert member == (None if gone else ("w", 3))
    assert wave_member(idle(contract_of()), contract_of()) is None


def due(contract: Contract, left_ms: float) -> Claim:
    """A claim whose block is due in so long from 0."""
    return claimed(asked(contract, 0.0), standing(contract))._replace(deadline_at=left_ms / 1e3)


def chosen(
    contract: Contract,
    left_ms: float,
    *others: Claim,
    degraded: int = 0,
    expected: Expected = EVEN,
    gives: bool = False,
) -> Any:
    limit = contract.degraded_consecutive_max
    history = QualityHistory(Firm(1, limit + 1) if limit else Firm())
    for _ in range(degraded):
        history = history.after(True)
    claim = due(contract, left_ms)
    return choose_quality(
        MODEL,
        ladder_of(MODEL, contract),
        claim,
        [claim, *others],
        0.0,
        expected=expected,
        guard=GUARD,
        history=history,
        gives=gives,
    )


@pytest.mark.parametrize(
    ("left_ms", "floor", "steps", "why"),
    [
        (401.0, 1, 3, ""),
        (399.0, 1, 2, "DEGRADED_TO_FIT: 3 steps take up to 400.0 ms, 399.0 ms are left"),
        (299.0, 1, 1, "DEGRADED_TO_FIT: 3 steps take up to 400.0 ms, 299.0 ms are left"),
        (99.0, 1, 1, "FLOOR_TOO_LATE: the floor takes up to 200.0 ms, 99.0 ms are left"),
        (99.0, 2, 2, "FLOOR_TOO_LATE: the floor takes up to 300.0 ms, 99.0 ms are left"),
        (99.0, 3, 3, ""),
        (99.0, 0, 3, ""),
    ],
)
def test_as_many_steps_as_the_slack_has_room_for(
    left_ms: float, floor: int, steps: int, why: str
) -> None:
    quality = chosen(contract_of(period_ms=500.0, quality_floor_steps=floor), left_ms)
    assert (quality.steps, quality.because) == (steps, why)
    assert quality.degraded == (steps < 3) == bool(why)


def test_another_ones_deadline_leaves_less() -> None:
    contract = contract_of(period_ms=500.0, quality_floor_steps=1)
    other = due(contract, 600.0)._replace(session_id="other", left_s=0.25)
    assert chosen(contract, 450.0).steps == 3
    assert chosen(contract, 450.0, other).steps == 2


def test_a_limit_of_degraded_blocks_in_a_row_is_kept_and_the_block_is_late() -> None:
    limited = contract_of(period_ms=500.0, quality_floor_steps=1, degraded_consecutive_max=2)
    assert [chosen(limited, 99.0, degraded=before).steps for before in (0, 1, 2)] == [1, 1, 3]


def test_without_a_period_or_a_floor_or_rungs_nothing_is_degraded() -> None:
    floor = {"quality_floor_steps": 1}
    assert ladder_of(MODEL, contract_of(period_ms=1.0, **floor)) is not None
    assert ladder_of(MODEL, contract_of(**floor)) is None
    assert ladder_of(MODEL, contract_of(period_ms=1.0)) is None
    # A block of one quantum is not faster for a step less.
    assert ladder_of(DirtyWorld(TINY), contract_of(period_ms=1.0, **floor)) is None
    assert chosen(contract_of(**floor), 1.0) == full_quality(MODEL)


def test_what_was_not_measured_is_not_degraded() -> None:
    contract = contract_of(period_ms=1.0, quality_floor_steps=1)
    assert chosen(contract, 1.0, expected=Expected()) == full_quality(MODEL)
    assert claimed(asked(contract, 0.0), standing(contract, expected=Expected())).left_s == 0.0


def test_the_last_quantum_of_a_block_has_a_time_of_its_own() -> None:
    """It decodes: 0.1 s a step, 0.25 s at the end. Two steps take 0.45 s, three 0.55."""
    uneven = Expected(0.1, 0.25)
    contract = contract_of(period_ms=500.0, quality_floor_steps=1)
    left = [(551.0, 3), (549.0, 2), (451.0, 2), (449.0, 1), (349.0, 1)]
    for left_ms, steps in left:
        assert chosen(contract, left_ms, expected=uneven).steps == steps
    assert "up to 550.0 ms" in chosen(contract, 549.0, expected=uneven).because
    last = claimed(flying(contract, 1.0), standing(contract, expected=uneven, quanta_left=1))
    assert (last.quantum_s, last.left_s) == (0.25, 0.25)
    before = claimed(flying(contract, 1.0), standing(contract, expected=uneven, quanta_left=2))
    assert (before.quantum_s, before.left_s) == (0.1, pytest.approx(0.35))
    # Kept for the next block: as many steps as the period has room for.
    kept = claimed(asked(contract, 1.0), standing(contract, expected=uneven))
    assert kept.left_s == pytest.approx(0.45)


def test_an_operator_may_give_bulk_what_contracts_do_not_promise() -> None:
    contract = contract_of(period_ms=500.0, quality_floor_steps=1, degraded_consecutive_max=2)
    quality = chosen(contract, 450.0, gives=True)
    assert (quality.steps, quality.because[:18]) == (1, "DEGRADED_FOR_BULK:")
    assert chosen(contract, 450.0).steps == 3
    # Never what they do promise: their limits, and quality where there is no floor.
    assert chosen(contract, 450.0, gives=True, degraded=2).steps == 3
    assert chosen(contract_of(period_ms=500.0), 450.0, gives=True).steps == 3
    planner = contract_of(
        period_ms=500.0, quality_floor_steps=1, service_class=ServiceClass.C2A_PLANNER
    )
    assert chosen(planner, 450.0, gives=True).steps == 3, "whose deadlines bulk never waits for"
    # And the time that is kept for the next block is that of the floor, or of a whole one.
    world = idle(contract, anchor_at=10.0)
    assert claimed(world, standing(contract, gives=True), 10.25).left_s == pytest.approx(0.2)
    for _ in range(2):
        world = replace(world, pace=world.pace.begun(degraded=True))
    assert claimed(world, standing(contract, gives=True), 10.25).left_s == pytest.approx(0.4)


@pytest.mark.parametrize("phase", list(Phase))
def test_which_bulk_waits(phase: Phase) -> None:
    bulk = contract_of(service_class=BULK)
    world = replace(asked(bulk, 1.0), phase=phase)
    waiting = phase in (Phase.RUNNING, Phase.GENERATING, Phase.FREEZING, Phase.CLOSING)
    assert bulk_waits(world, bulk) == waiting
    assert not bulk_waits(world, contract_of())
    assert not bulk_waits(idle(bulk), bulk)


def test_a_replay_has_the_steps_of_what_it_replays() -> None:
    assert replayed_quality(MODEL, 3) == full_quality(MODEL)
    assert replayed_quality(MODEL, 2).degraded
    assert replayed_quality(MODEL, 2).because.startswith("REPLAYED")


def test_a_pace_without_a_release_claims_nothing() -> None:
    contract = contract_of(period_ms=500.0)
    pace = Pace(grid=ReleaseGrid(0.5), release=Release(1.0, 2.0))
    assert claim_of(idle(contract, pace=pace), standing(contract), 1.0, GUARD) is None
