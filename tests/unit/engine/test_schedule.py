"""Lease, outbox, actions, profiles: the engine's other pure parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.lease import Lease
from services.engine.outbox import BlockRecord, Outbox
from services.engine.quality import Quality
from services.engine.world import NO_FRAMES, Action
from worldline.errors import IntegrityError, InvalidInput, InvariantBroken


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
    return BlockRecord(block_index, 1, NO_FRAMES, 0, None, 1.0, Quality(3, 3))


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
