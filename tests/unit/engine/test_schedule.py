"""Schedule, lease, outbox, actions: the engine's other pure parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.core import Pending, Phase, World
from services.engine.lease import Lease
from services.engine.outbox import BlockRecord, Outbox
from services.engine.profile import Profiles
from services.engine.schedule import Candidate, candidate_of, next_release, pick
from services.engine.world import NO_FRAMES, Action
from worldline.errors import IntegrityError, InvalidInput, InvariantBroken


def waiting(session_id: str, arrived_at: float, **facts: object) -> World:
    facts = {"phase": Phase.RUNNING, "release_at": arrived_at, **facts}
    return World(session_id, epoch=1, pending=(Pending(Action(0), arrived_at),), **facts)


def claim(world: World, **facts: object) -> Candidate | None:
    return candidate_of(world, **{"begun_at": 0.0, "room": True, "held": False, **facts})


def test_earliest_deadline_first_then_arrival_then_name() -> None:
    soon = claim(waiting("z", 10.0, horizon_s=1.0))
    late = claim(waiting("a", 5.0, horizon_s=60.0))
    assert soon is not None
    assert late is not None
    assert pick([late, soon], 20.0) == soon
    tied = [Candidate("b", 0, 9, 2), Candidate("c", 0, 9, 1), Candidate("a", 0, 9, 2)]
    assert pick(tied, 5.0) == tied[1]
    assert pick([tied[0], tied[2]], 5.0) == tied[2]


def test_a_period_is_the_deadline_where_there_is_one() -> None:
    paced = claim(waiting("a", 10.0, period_s=0.5, horizon_s=60.0))
    assert paced is not None
    assert paced.deadline_at == 10.5


def test_nothing_is_picked_before_its_release() -> None:
    early = Candidate("a", release_at=7.0, deadline_at=8.0, arrived_at=1.0)
    assert pick([early], 6.9) is None
    assert next_release([early], 6.9) == 7.0
    assert pick([early], 7.0) == early
    assert next_release([early], 7.0) is None
    assert pick([], 0.0) is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"room": False}, "the client must read first"),
        ({"held": True}, "somebody reads the state"),
    ],
)
def test_a_world_between_blocks_can_be_kept_there(facts: dict, why: str) -> None:
    assert claim(waiting("a", 1.0)) is not None
    assert claim(waiting("a", 1.0), **facts) is None, why
    # A block in flight goes to its boundary all the same.
    assert claim(waiting("a", 1.0, phase=Phase.FREEZING), **facts) is not None


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.FROZEN, Phase.ATTACHED, Phase.RELEASED])
def test_only_running_worlds_begin_blocks(phase: Phase) -> None:
    assert claim(waiting("a", 1.0, phase=phase)) is None


def test_a_world_without_an_action_waits() -> None:
    assert claim(World("a", 1, Phase.RUNNING)) is None


def test_a_lease_counts_from_sending_and_is_nothing_before_the_first_answer() -> None:
    lease = Lease()
    assert not lease.holds(0.0)
    assert lease.renew_at() == 0.0
    lease = lease.renewed(sent_at=100.0, lease_ms=3000)
    assert lease.holds(102.9)
    assert not lease.holds(103.0)
    assert lease.holds(102.0, work_s=0.9)
    assert not lease.holds(102.0, work_s=1.0)
    assert lease.renew_at() == 101.0


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    lease = Lease().renewed(100.0, 3000).renewed(99.0, 3000)
    assert lease.sent_at == 100.0


def record(block_index: int) -> BlockRecord:
    return BlockRecord(block_index, 1, NO_FRAMES, 0, None, 1.0)


def test_outbox_replays_in_order_and_says_what_is_lost() -> None:
    outbox = Outbox(5, capacity=3)
    assert outbox.get(5) is None
    for block in range(5, 10):
        outbox.put(record(block))
    assert [outbox.get(block).block_index for block in (7, 8, 9)] == [7, 8, 9]
    assert outbox.get(10) is None
    with pytest.raises(IntegrityError) as lost:
        outbox.get(6)
    assert lost.value.reason == "BLOCKS_LOST"
    with pytest.raises(InvalidInput) as ahead:
        outbox.get(11)
    assert ahead.value.field == "join.next_block_index"


def test_outbox_refuses_gaps_and_repeats() -> None:
    outbox = Outbox(0)
    outbox.put(record(0))
    for wrong in (0, 2):
        with pytest.raises(InvariantBroken):
            outbox.put(record(wrong))


@given(st.integers(0, 50), st.integers(0, 40), st.integers(1, 8), st.integers(0, 100))
def test_outbox_gives_the_block_asked_for_or_none_or_an_error(
    start: int, count: int, capacity: int, asked: int
) -> None:
    outbox = Outbox(start, capacity)
    for block in range(start, start + count):
        outbox.put(record(block))
    end = start + count
    kept = range(max(start, end - capacity), end)
    if asked in kept:
        assert outbox.get(asked).block_index == asked
    elif asked == end:
        assert outbox.get(asked) is None
    else:
        with pytest.raises((IntegrityError, InvalidInput)):
            outbox.get(asked)


@given(
    st.integers(-5, 40),
    st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -1.0, 1.0, 1.0000001])),
)
def test_an_action_that_exists_is_valid(keyboard: int, mouse: float) -> None:
    valid_mouse = -1.0 <= mouse <= 1.0
    if 0 <= keyboard < 16 and valid_mouse:
        assert Action(0, keyboard, mouse, mouse).mouse_dx == float(np.float32(mouse))
        return
    with pytest.raises(InvalidInput) as refused:
        Action(0, keyboard, mouse, mouse)
    assert refused.value.field in ("action.keyboard", "action.mouse_dx")


def test_profiles_average_and_forget_slowly() -> None:
    profiles = Profiles()
    assert profiles.quantum_s("tiny") == 0.0
    profiles.add("tiny", 4, 10.0)
    profiles.add("tiny", 4, 20.0)
    (row,) = profiles.rows()
    assert row.preset == "tiny"
    assert row.quanta_per_block == 4
    assert 10.0 < row.quantum_ms < 20.0
