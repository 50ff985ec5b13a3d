"""Play: one client's stream: actions in, blocks out, in order, none lost and none twice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from services.engine import events as ev
from services.engine.core import PENDING_MAX, Phase
from services.engine.engine import Engine
from services.engine.parse import (
    Join,
    action_from_proto,
    block_to_proto,
    join_from_proto,
    steps_from_proto,
)
from services.engine.session import Session, Stream
from services.engine.signal import wait_for_change
from services.engine.world import Action
from worldline.errors import Conflict, InvalidInput, NotFound, Unavailable
from worldline.telemetry import lasting_span
from worldline.v1 import engine_pb2

#: How long a join waits for a world that is being opened or attached.
JOIN_TIMEOUT_S = 10.0
#: A client that opens a stream must join it within this.
FIRST_MESSAGE_TIMEOUT_S = 10.0
#: Streams look at their session this often even when nothing changed.
_LOOK_S = 30.0

Requests = AsyncIterator[engine_pb2.PlayRequest]


async def play(engine: Engine, requests: Requests) -> AsyncIterator[engine_pb2.PlayResponse]:
    """Serve one stream until the client or the world ends it.

    Raises:
        InvalidInput: a message that does not parse or is out of turn.
        NotFound: the session is not on this engine.
        IntegrityError: blocks that the client asks for are gone (BLOCKS_LOST).
        Conflict: a newer stream of the session took over (SUPERSEDED), or the session was closed.
    """
    join = join_from_proto(await _first(requests))
    session = await _joinable(engine, join.session_id)
    session.outbox.get(join.next_block_index)  # refuses what is not to be had, before it answers
    stream = _take_over(session, join)
    epoch, expected = session.world.epoch, session.world.next_action_index
    links, name = (session.came_in,), session.session_id
    with lasting_span("engine.play", links=links, session_id=name, epoch=epoch) as stream.span:
        yield engine_pb2.PlayResponse(
            joined=engine_pb2.Joined(epoch=epoch, next_block_index=expected)
        )
        reader = asyncio.create_task(_read(engine, session, stream, requests, expected))
        try:
            async for response in _write(engine, session, stream, reader, join.frames_wanted):
                yield response
        finally:
            stream.span.set(blocks=stream.cursor - join.next_block_index)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader
            if session.stream is stream:
                session.stream = None
                session.apply(ev.StreamEnded(), time.monotonic())


async def _first(requests: Requests) -> engine_pb2.PlayRequest:
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            return await anext(requests)
    except StopAsyncIteration:
        raise InvalidInput("the stream ended before a join", field="join") from None
    except TimeoutError:
        raise InvalidInput("no join came on the stream", field="join") from None


async def _joinable(engine: Engine, session_id: str) -> Session:
    """The session here, once it can be played; or what is left of one that was here."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        session = engine.sessions.get(session_id)
        if session is None:
            buried = engine.tombstones.get(session_id)
            if buried is None:
                raise NotFound(f"no session {session_id} on this engine", reason="SESSION_UNKNOWN")
            return buried
        if session.world.phase not in (Phase.OPENING, Phase.ATTACHED):
            return session
        token = session.changed.token()
        if not await wait_for_change(token, max(0.0, deadline - time.monotonic())):
            raise Unavailable(
                f"session {session_id} is still {session.world.phase} here",
                reason="WORLD_NOT_READY",
            )


def _take_over(session: Session, join: Join) -> Stream:
    """Make this the session's stream; an older one ends, its waiting actions are forgotten."""
    older = session.stream
    if older is not None:
        older.superseded = True
        session.apply(ev.StreamEnded(), time.monotonic())
    session.stream = Stream(join.next_block_index, join.digests_wanted)
    session.changed.notify()
    return session.stream


async def _read(
    engine: Engine, session: Session, stream: Stream, requests: Requests, expected: int
) -> None:
    """Queue actions as long as there is room; what is not read is the client's back-pressure.

    A client that lost its stream sends unanswered actions again: those below `expected` began
    their block before it joined.
    """
    last: int | None = None
    async for request in requests:
        action, steps = _action(request, session)
        if last is not None and action.block_index != last + 1:
            raise InvalidInput(
                f"action.block_index is {action.block_index} after {last}: actions of a stream "
                "are consecutive",
                field="action.block_index",
            )
        last = action.block_index
        if action.block_index < expected:
            continue
        if not await _room(session, stream):
            return
        session.apply(ev.ActionArrived(action, steps), time.monotonic())
        engine.generation.wake.notify()


def _action(request: engine_pb2.PlayRequest, session: Session) -> tuple[Action, int]:
    if request.WhichOneof("event") != "action":
        raise InvalidInput("after the join only actions may follow", field="action")
    steps = steps_from_proto(request.action, session.contract, session.model.denoising_steps)
    return action_from_proto(request.action), steps


async def _room(session: Session, stream: Stream) -> bool:
    """Wait for room for one more action; False when there will be none any more."""
    while True:
        token = session.changed.token()
        if stream.superseded or session.ending is not None:
            return False
        if session.world.phase is Phase.CLOSING:
            return False
        if len(session.world.pending) < PENDING_MAX:
            return True
        await wait_for_change(token, _LOOK_S)


async def _write(
    engine: Engine,
    session: Session,
    stream: Stream,
    reader: asyncio.Task[None],
    frames_wanted: bool,
) -> AsyncIterator[engine_pb2.PlayResponse]:
    while True:
        token = session.changed.token()
        if stream.superseded:
            raise Conflict(
                f"a newer stream of session {session.session_id} took over", reason="SUPERSEDED"
            )
        record = session.outbox.get(stream.cursor)
        if record is not None:
            yield block_to_proto(record, frames_wanted)
            stream.cursor += 1
            engine.generation.wake.notify()
            continue
        if session.ending is not None:
            if session.ending.error is not None:
                raise session.ending.error
            yield _moved(session.ending)
            return
        if reader.done() and _over(session, reader):
            return
        await _either(token, reader)


def _over(session: Session, reader: asyncio.Task[None]) -> bool:
    """After the client's last message: a bad one ends the stream, else its blocks come first."""
    error = reader.exception()
    if error is not None:
        raise error
    return not session.world.pending and not session.world.mid_block


async def _either(token: asyncio.Event, reader: asyncio.Task[None]) -> None:
    """Wait for a change of the session, or for the reader to end."""
    waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(token.wait())}
    change = next(iter(waiting))
    if not reader.done():
        waiting.add(reader)
    try:
        await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
        # Its cancellation is a result here; ours, should it come now, is not swallowed.
        await asyncio.gather(change, return_exceptions=True)


def _moved(ending: ev.Ending) -> engine_pb2.PlayResponse:
    return engine_pb2.PlayResponse(
        moved=engine_pb2.Moved(epoch=ending.epoch, engine_address=ending.engine_address)
    )
