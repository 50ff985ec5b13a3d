"""Recorder: what is written of a play, and when it is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.unit.recording.runs import CONTRACT, FINGERPRINT, LAYOUT, digests
from worldline.contract import DeterminismTier
from worldline.errors import Conflict
from worldline.recording import recorder
from worldline.recording.directory import read_run
from worldline.recording.recorder import record, run_granule_bytes
from worldline.sdk import Action, Block, Session, World
from worldline.sdk.player import Actions
from worldline.state.digest import GRANULE_BYTES
from worldline.state.manifest import Fingerprint, Manifest

MOVED = Fingerprint.of({"threads": "2", "torch": "2"})
FIRST = 2


class FakeSession:
    """A session at block `FIRST`; its states are those of `runs`."""

    session_id = "session-1"

    def __init__(self) -> None:
        self.info = SimpleNamespace(world=World("tiny", 7), contract=CONTRACT)
        self.next_index = FIRST
        #: Blocks that somebody else had generated when the state was read, and other bytes.
        self.ahead = 0
        self.flip: int | None = None
        self.fingerprint = FINGERPRINT
        self.refusals: list[Conflict] = []
        self.granules: list[int] = []

    async def register_state(self, granule_bytes: int = 0) -> Manifest:
        self.granules.append(granule_bytes)
        if self.refusals:
            raise self.refusals.pop(0)
        index = self.next_index + self.ahead
        return Manifest(
            session_id=self.session_id,
            epoch=1,
            block_index=index,
            layout=LAYOUT.with_scalars({"block_index": index}),
            fingerprint=self.fingerprint,
            determinism_tier=DeterminismTier.T0_BITWISE,
            digests=digests(index, flip=self.flip, block_index=index),
        )

    async def play(
        self, actions: Actions, *, digests: bool, frames: bool
    ) -> AsyncGenerator[Block, None]:
        async for _ in cast(Any, actions):
            index, self.next_index = self.next_index, self.next_index + 1
            yield Block(
                index=index,
                epoch=1,
                frames=np.zeros((0, 0, 0, 3), np.uint8),
                frames_digest=index,
                state_digest=state_digest(index + 1),
                generate_ms=1.0,
                steps=2,
                steps_full=3,
                degraded_because="",
                releases_skipped=0,
                late_ms=0.0,
            )


def state_digest(index: int) -> int:
    return digests(index, block_index=index).whole


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


async def recorded(session: FakeSession, path: Path, *actions: Action) -> Any:
    return await record(cast(Session, session), actions, path)


async def test_each_block_is_written_with_what_decided_it(
    session: FakeSession, tmp_path: Path
) -> None:
    actions = (Action.keys("W"), Action(2, 0.5, steps=2))
    made = await recorded(session, tmp_path / "run", *actions)
    assert read_run(tmp_path / "run") == made
    assert (made.header.block_index, made.header.world) == (FIRST, World("tiny", 7))
    assert [block.block_index for block in made.blocks] == [FIRST, FIRST + 1]
    # What a replay asks for is in the block that it got.
    assert [block.action for block in made.blocks] == [Action.keys("W"), Action(2, 0.5)]
    assert {(block.steps, block.steps_full) for block in made.blocks} == {(2, 3)}
    assert [block.digests.whole for block in made.blocks] == [state_digest(3), state_digest(4)]
    assert {block.fingerprint for block in made.blocks} == {None}
    assert session.granules[0] == 0
    assert session.granules[1] == run_granule_bytes(LAYOUT.extent_bytes)


async def test_another_configuration_is_noted_with_the_block(
    session: FakeSession, tmp_path: Path
) -> None:
    async def moving() -> AsyncGenerator[Action, None]:
        yield Action()
        session.fingerprint = MOVED
        yield Action()

    made = await record(cast(Session, session), moving(), tmp_path / "run")
    assert [block.fingerprint for block in made.blocks] == [None, MOVED]


async def test_a_move_is_waited_for(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_READ_AGAIN_S", 0.0)
    session.refusals = [Conflict("moving", reason="MOVE_IN_PROGRESS") for _ in range(3)]
    assert len((await recorded(session, tmp_path / "run", Action())).blocks) == 1
    session.refusals = [Conflict("gone", reason="SESSION_CLOSED")]
    with pytest.raises(Conflict) as caught:
        await recorded(session, tmp_path / "other", Action())
    assert caught.value.reason == "SESSION_CLOSED"
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("ahead", "flip"), [(1, None), (0, 5)])
async def test_a_world_that_went_on_while_it_was_read_is_no_run(
    ahead: int, flip: int | None, session: FakeSession, tmp_path: Path
) -> None:
    async def disturbed() -> AsyncGenerator[Action, None]:
        yield Action()
        session.ahead, session.flip = ahead, flip
        yield Action()

    with pytest.raises(Conflict) as caught:
        await record(cast(Session, session), disturbed(), tmp_path / "run")
    assert caught.value.reason == "OTHER_PLAYER"
    assert len(read_run(tmp_path / "run").blocks) == 1


@pytest.mark.parametrize(
    ("extent_bytes", "granule_bytes"),
    [(0, 4096), (4 << 20, 4096), ((4 << 20) + 1, 8192), (1 << 40, GRANULE_BYTES)],
)
def test_a_run_has_granules_that_a_line_can_hold(extent_bytes: int, granule_bytes: int) -> None:
    assert run_granule_bytes(extent_bytes) == granule_bytes
