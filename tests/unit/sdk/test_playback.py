from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.errors import Fenced, IntegrityError
from worldline.sdk.actions import Action
from worldline.sdk.playback import Playback

ACTION = Action.keys("W")


def test_numbers_actions_from_the_next_block() -> None:
    playback = Playback(5)
    assert [playback.take(ACTION)[0], playback.take(ACTION)[0]] == [5, 6]
    assert playback.outstanding == 2


def test_a_delivered_block_answers_its_action() -> None:
    playback = Playback(0)
    playback.take(ACTION)
    assert playback.received(0, 1)
    assert playback.outstanding == 0
    assert playback.joined(1, 1) == []


def test_a_block_that_was_delivered_is_dropped() -> None:
    playback = Playback(3)
    assert not playback.received(2, 1)
    assert playback.next_block_index == 3


def test_a_gap_is_an_error() -> None:
    with pytest.raises(IntegrityError) as caught:
        Playback(3).received(4, 1)
    assert caught.value.reason == "BLOCKS_LOST"


def test_a_join_sends_only_actions_that_were_not_used() -> None:
    playback = Playback(0)
    taken = [playback.take(ACTION) for _ in range(4)]
    assert playback.joined(2, 2) == taken[2:]
    assert playback.outstanding == 4  # blocks 0 and 1 come from the outbox


def test_actions_of_somebody_else_count_as_used() -> None:
    playback = Playback(0)
    playback.joined(1, 3)
    assert playback.outstanding == 3
    assert playback.take(ACTION)[0] == 3


def test_a_world_behind_what_was_delivered_is_an_error() -> None:
    with pytest.raises(IntegrityError):
        Playback(3).joined(1, 2)


def test_an_older_epoch_is_fenced() -> None:
    with pytest.raises(Fenced):
        Playback(0, epoch=4).joined(3, 0)


@given(
    st.lists(st.sampled_from(["take", "use", "deliver", "rejoin", "repeat"]), max_size=80),
)
def test_nothing_is_lost_or_twice(steps: list[str]) -> None:
    """Against a plain model of an engine with an outbox and a stream that may break anywhere."""
    playback = Playback(0)
    sent: list[int] = []
    engine_next, cursor = 0, 0
    delivered: list[int] = []
    for step in steps:
        if step == "take":
            sent.append(playback.take(ACTION)[0])
        elif step == "use" and sent and sent[0] == engine_next:
            sent.pop(0)
            engine_next += 1
        elif step == "deliver" and cursor < engine_next:
            if playback.received(cursor, 1):
                delivered.append(cursor)
            cursor += 1
        elif step == "repeat" and cursor > 0:
            assert not playback.received(cursor - 1, 1)
        elif step == "rejoin":
            cursor = playback.next_block_index
            sent = [index for index, _ in playback.joined(1, engine_next)]
            assert sent == list(range(engine_next, engine_next + len(sent)))
    assert delivered == list(range(len(delivered)))
