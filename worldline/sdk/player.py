"""Player: runs one `play` over as many streams as it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)

from worldline.errors import DeadlineExceeded, WorldlineError
from worldline.rpc.channel import ChannelPool
from worldline.sdk.actions import Action
from worldline.sdk.block import Block
from worldline.sdk.calls import Caller
from worldline.sdk.playback import Playback
from worldline.sdk.records import SessionInfo
from worldline.sdk.route import Join, Resolve, Route
from worldline.sdk.stream import Event, PlayStream
from worldline.v1 import engine_pb2

Actions = Iterable[Action] | AsyncIterable[Action]


class Player:
    """One `play` of one session. Decisions are `Playback`'s and `Route`'s; here is the I/O."""

    def __init__(
        self,
        *,
        session_id: str,
        caller: Caller,
        channels: ChannelPool,
        playback: Playback,
        route: Route,
        resolve: Callable[[float], Awaitable[SessionInfo]],
        block_timeout_s: float,
        digests: bool,
        frames: bool,
        window: int,
    ) -> None:
        self._session_id = session_id
        self._caller = caller
        self._channels = channels
        self._playback = playback
        self._route = route
        self._resolve = resolve
        self._block_timeout_s = block_timeout_s
        self._digests = digests
        self._frames = frames
        self._window = window
        self._stream: PlayStream | None = None
        self._draining = False

    async def run(self, actions: Actions) -> AsyncGenerator[Block, None]:
        """Blocks, one per action, in order.

        An action is only taken from `actions` once fewer than `window` blocks are outstanding: a
        player that looks at block i before it decides on action i+1 works with the default of 1.
        """
        source = _Source(actions)
        pull: asyncio.Task[Action | None] | None = None
        read: asyncio.Task[Event] | None = None
        try:
            await self._follow(self._route.begin(time.monotonic()))
            while True:
                if pull is None and not source.exhausted and self._has_room():
                    pull = asyncio.ensure_future(source.next())
                if read is None and self._playback.outstanding:
                    read = asyncio.ensure_future(self._joined_stream().read())
                if pull is None and read is None:
                    return
                done = await self._first_of(pull, read)
                if read is not None and read in done:
                    finished, read = read, None
                    block = await self._take(finished)
                    if block is not None:
                        yield block
                elif pull is not None and pull in done:
                    action, pull = pull.result(), None
                    if action is not None:
                        await self._send(action)
        finally:
            self._keep(pull)
            await _end(pull)
            await _end(read)
            await source.close()
            await self._leave()

    def _keep(self, pull: asyncio.Task[Action | None] | None) -> None:
        """What was taken from the player's source has a block, if not of this play, of the next."""
        if pull is None or not pull.done() or pull.cancelled() or pull.exception() is not None:
            return
        action = pull.result()
        if action is not None:
            self._playback.take(action)

    def _has_room(self) -> bool:
        return self._playback.outstanding < self._window

    async def _first_of(
        self, pull: asyncio.Task[Action | None] | None, read: asyncio.Task[Event] | None
    ) -> set[asyncio.Task[Action | None] | asyncio.Task[Event]]:
        # Waiting for the player's own next action has no deadline; waiting for a block has.
        limit_s = self._block_timeout_s if read is not None else None
        tasks = {task for task in (pull, read) if task is not None}
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise DeadlineExceeded(
                f"block {self._playback.next_block_index} did not come within "
                f"{self._block_timeout_s:g} s; the session may be frozen, its engine paused, or "
                "its cohort waiting for a member that nobody plays",
                reason="BLOCK_TIMEOUT",
            )
        return done

    async def _send(self, action: Action) -> None:
        numbered = self._playback.take(action)
        if not self._draining:
            await self._joined_stream().send(*numbered)

    async def _take(self, finished: asyncio.Task[Event]) -> Block | None:
        """The block to deliver, or None where there was none or it was delivered before."""
        try:
            event = finished.result()
        except WorldlineError as error:
            await self._follow(self._route.broken(error, time.monotonic()))
            return None
        if isinstance(event, engine_pb2.Moved):
            await self._follow(self._route.moved(event.epoch, time.monotonic()))
            return None
        if isinstance(event, engine_pb2.Joined):
            return None
        if not self._playback.received(event.index, event.epoch):
            return None
        self._route.progressed()
        return event

    async def _follow(self, step: Join | Resolve) -> None:
        """Take the steps that the route asks for until a stream is joined."""
        await self._leave()
        while True:
            await asyncio.sleep(step.delay_s)
            try:
                if isinstance(step, Join):
                    return await self._join(step.address)
            except WorldlineError as error:
                await self._leave()
                step = self._route.broken(error, time.monotonic())
                continue
            left_s = self._route.left_s(time.monotonic())
            info = await self._resolve(max(left_s, 0.1))
            step = self._route.resolved(
                info.epoch, info.engine_address, info.state, time.monotonic()
            )

    async def _join(self, address: str) -> None:
        join = engine_pb2.Join(
            session_id=self._session_id,
            next_block_index=self._playback.next_block_index,
            digests_wanted=self._digests,
            frames_wanted=self._frames,
        )
        channel = self._channels.get(address)
        self._stream = stream = PlayStream(channel, join, self._caller.metadata())
        joined = await stream.join(self._caller.timeout_s)
        self._draining = joined is None
        if joined is None:
            return
        for numbered in self._playback.joined(joined.epoch, joined.next_block_index):
            await stream.send(*numbered)

    def _joined_stream(self) -> PlayStream:
        if self._stream is None:
            raise RuntimeError("no stream: _follow returns only with one")
        return self._stream

    async def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


class _Source:
    """The player's actions, from a sync or an async iterable."""

    def __init__(self, actions: Actions) -> None:
        self.exhausted = False
        self._async: AsyncIterator[Action] | None = None
        if isinstance(actions, AsyncIterable):
            self._async = aiter(actions)
        else:
            self._sync = iter(actions)

    async def next(self) -> Action | None:
        """The next action; None when there is none left."""
        try:
            if self._async is not None:
                return await anext(self._async)
            return next(self._sync)
        except (StopIteration, StopAsyncIteration):
            self.exhausted = True
            return None

    async def close(self) -> None:
        """Close the player's generator, if it is one, so that its own `finally` runs now."""
        if isinstance(self._async, AsyncGenerator):
            await self._async.aclose()


async def _end(task: asyncio.Task[Action | None] | asyncio.Task[Event] | None) -> None:
    """Cancel a task and wait for it; what it had to say no longer matters."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
