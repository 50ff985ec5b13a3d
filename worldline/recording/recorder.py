"""Recorder: plays a session and writes down each block with what decided it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from worldline.errors import Conflict, InvalidInput
from worldline.recording.directory import RunWriter, check_free
from worldline.recording.run import Run, RunBlock, RunHeader
from worldline.sdk.actions import Action
from worldline.sdk.block import Block
from worldline.sdk.player import Actions
from worldline.sdk.session import Session
from worldline.state.digest import GRANULE_BYTES
from worldline.state.manifest import Digests, Manifest

#: A session in a move cannot be read: how long its end is waited for, and how often one looks.
_READ_TIMEOUT_S = 120.0
_READ_AGAIN_S = 0.1
#: Granules of a run: twenty bytes of its log each, for every block.
_FINEST_BYTES, _GRANULES_MAX = 4096, 1024
_PASSING = ("MOVE_IN_PROGRESS", "SESSION_SUSPENDING", "SESSION_RESUMING")

OnBlock = Callable[[RunBlock], None]


async def record(
    session: Session, actions: Actions, out: Path, on_block: OnBlock | None = None
) -> Run:
    """Play the session, one block per action, and write the run into directory `out`.

    The state is read behind every block, while the world waits for its next action: its digests
    per leaf and granule cost one reading of the slot. Moves meanwhile are nothing to a run.

    Raises:
        InvalidInput: `out` is there already.
        Conflict: somebody else plays the session at the same time (OTHER_PLAYER).
    """
    check_free(out)
    header = await begin(session)
    blocks = []
    with RunWriter(out, header) as writer:
        async with aclosing(play_blocks(session, header, actions)) as played:
            async for block in played:
                writer.append(block)
                blocks.append(block)
                if on_block is not None:
                    on_block(block)
    return Run(header, tuple(blocks))


async def play_blocks(
    session: Session, header: RunHeader, actions: Actions
) -> AsyncGenerator[RunBlock, None]:
    """Blocks of a run that begins with that header, as they are generated.

    Raises:
        Conflict: OTHER_PLAYER.
    """
    played: deque[Action] = deque()
    blocks = session.play(_noted(actions, played), digests=True, frames=False)
    async with aclosing(blocks):
        index = header.block_index
        async for block in blocks:
            manifest = await read_state(session, header.digests.granule_bytes)
            _check_still(block, manifest, index)
            yield _run_block(header, block, played.popleft(), manifest)
            index += 1


async def _noted(actions: Actions, played: deque[Action]) -> AsyncGenerator[Action, None]:
    """The same actions; each is put into `played` before it is."""
    if isinstance(actions, AsyncIterable):
        async for action in actions:
            played.append(action)
            yield action
        return
    for action in actions:
        played.append(action)
        yield action


async def read_state(session: Session, granule_bytes: int) -> Manifest:
    """The session's manifest with digests of that granule, when no move has it.

    Raises:
        Conflict: it does not run, or a move has it for too long.
    """
    deadline_s = time.monotonic() + _READ_TIMEOUT_S
    while True:
        try:
            return await session.register_state(granule_bytes)
        except Conflict as error:
            if error.reason not in _PASSING or time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(_READ_AGAIN_S)


async def begin(session: Session, granule_bytes: int = 0) -> RunHeader:
    """How a run of that session begins, from its state now; 0: the granule that suits it.

    Raises:
        Conflict: as `read_state`.
    """
    manifest = await read_state(session, granule_bytes)
    if granule_bytes == 0:
        manifest = await read_state(session, run_granule_bytes(manifest.layout.extent_bytes))
    return RunHeader(
        session_id=session.session_id,
        epoch=manifest.epoch,
        world=session.info.world,
        contract=session.info.contract,
        fingerprint=manifest.fingerprint,
        block_index=manifest.block_index,
        layout=manifest.layout,
        digests=digests_of(manifest),
    )


def run_granule_bytes(extent_bytes: int) -> int:
    """The finest granule, from 4 KiB, of which a state has at most 1024; at most that of moves."""
    granule_bytes = _FINEST_BYTES
    while granule_bytes < GRANULE_BYTES and extent_bytes > _GRANULES_MAX * granule_bytes:
        granule_bytes *= 2
    return granule_bytes


def digests_of(manifest: Manifest) -> Digests:
    """A manifest's digests.

    Raises:
        InvalidInput: it has none.
    """
    if manifest.digests is None:
        raise InvalidInput("the manifest has no digests: nothing was read", field="digests")
    return manifest.digests


def _check_still(block: Block, manifest: Manifest, index: int) -> None:
    """The state that was read is the one behind this block, which is the one that was asked for."""
    same = block.state_digest in (None, digests_of(manifest).whole)
    if block.index == index and manifest.block_index == index + 1 and same:
        return
    raise Conflict(
        f"the world went on to block {manifest.block_index} while block {block.index} was read: "
        "somebody else plays this session; record one that is yours alone",
        reason="OTHER_PLAYER",
        field="session_id",
    )


def _run_block(header: RunHeader, block: Block, action: Action, manifest: Manifest) -> RunBlock:
    moved = manifest.fingerprint != header.fingerprint
    return RunBlock(
        block_index=block.index,
        epoch=block.epoch,
        action=replace(action, steps=0),
        steps=block.steps,
        steps_full=block.steps_full,
        frames_digest=block.frames_digest,
        digests=digests_of(manifest),
        scalars=manifest.layout.scalar_values(),
        fingerprint=manifest.fingerprint if moved else None,
    )
