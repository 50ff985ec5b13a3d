"""Inspecting: the digests of a live world's state at its block boundaries, for who asks.

An inspection belongs to the call that asked for it and ends with it; a world that nobody inspects
does nothing for it. At each boundary the world is held for one digest, as for any reader of its
slot (`Session.hold`): a block does not begin meanwhile, none is interrupted, and a freeze that
comes then is granted at once. Of boundaries no more is kept than the digests of the last one, and
the flags that wait to be sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from services.engine.baseline import initial_crcs, zero_crcs
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.inspect_order import InspectOrder
from services.engine.reading import to_the_end
from services.engine.session import Session
from services.engine.signal import Signal, wait_for_change
from services.engine.tombstones import Tombstones
from worldline.errors import Conflict, DeadlineExceeded, InvalidInput, NotFound
from worldline.state.boundary import Baseline, Boundary
from worldline.state.granulation import check_granule_bytes
from worldline.state.layout import Layout
from worldline.state.tracer import Tracer

#: Boundaries that a slow caller may have waiting, each of two flags a segment.
WAITING_MAX = 8


@dataclass(frozen=True, slots=True)
class Begun:
    """What the boundaries that follow are flags of."""

    layout: Layout
    granule_bytes: int
    epoch: int
    baseline: Baseline


@dataclass(slots=True)
class _Seen:
    """Boundaries that were read and wait for the caller."""

    waiting: deque[Boundary] = field(default_factory=deque)
    changed: Signal = field(default_factory=Signal)

    async def add(self, boundary: Boundary, wait_s: float) -> None:
        """Once there is room.

        Raises:
            DeadlineExceeded: the caller took none for so long.
        """
        while len(self.waiting) >= WAITING_MAX:
            if not await wait_for_change(self.changed.token(), wait_s):
                raise DeadlineExceeded(
                    f"{WAITING_MAX} boundaries wait and none was taken within {wait_s:g} s",
                    reason="BOUNDARIES_WAITING",
                )
        self.waiting.append(boundary)
        self.changed.notify()


class Inspecting:
    """Inspections of the worlds of one engine, one at a time of each. On the event loop only.

    `wake` is notified when a world may go on.
    """

    def __init__(
        self,
        *,
        sessions: Mapping[str, Session],
        tombstones: Tombstones,
        chores: Chores,
        wake: Signal,
    ) -> None:
        self._sessions = sessions
        self._tombstones = tombstones
        self._chores = chores
        self._wake = wake
        self._inspected: set[str] = set()

    async def run(self, order: InspectOrder) -> AsyncGenerator[Begun | Boundary, None]:
        """`Begun`, then each boundary as it is reached.

        Raises:
            NotFound: the session is not on this engine.
            Conflict: it moved away (SESSION_MOVED, the message says where), ended, is arriving, or
                is being inspected by another call (INSPECTED_ALREADY).
            InvalidInput: it is of another preset, or the granule does not suit its state.
            DeadlineExceeded: no boundary came in time (NO_BOUNDARY); the message says why.
        """
        with self._alone(order.session_id):
            session = self._session(order.session_id)
            begun, tracer = await self._begin(session, order)
            yield begun
            seen = _Seen()
            looking = asyncio.create_task(self._look(session, begun, tracer, order, seen))
            looking.add_done_callback(lambda _: seen.changed.notify())
            try:
                while True:
                    token = seen.changed.token()
                    if seen.waiting:
                        yield seen.waiting.popleft()
                        seen.changed.notify()
                    elif looking.done():
                        looking.result()
                        return
                    else:
                        await wait_for_change(token, order.wait_s)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _look(
        self, session: Session, begun: Begun, tracer: Tracer, order: InspectOrder, seen: _Seen
    ) -> None:
        """Read every boundary, however slowly the caller takes them, as long as a few may wait.

        After that boundaries are missed, and the world plays on.
        """
        first_at: float | None = None
        after = -1
        for _ in range(order.boundaries):
            await _until(partial(_is_behind, session, after), session, order.wait_s)
            boundary = await self._boundary(session, begun, tracer, order, first_at)
            first_at = time.monotonic() - boundary.read_ms / 1e3 if first_at is None else first_at
            after = boundary.block_index
            await seen.add(boundary, order.wait_s)

    async def _begin(self, session: Session, order: InspectOrder) -> tuple[Begun, Tracer]:
        model, layout = session.model, session.open_memory().topology
        if order.world.preset != model.preset:
            raise InvalidInput(
                f"world.preset is {order.world.preset!r}, but session {session.session_id} is "
                f"{model.preset!r}",
                field="world.preset",
            )
        granule_bytes = check_granule_bytes(order.granule_bytes, layout)
        seed = order.world.seed
        initial = await initial_crcs(self._chores, model, layout, seed, granule_bytes)
        baseline = Baseline.ZEROS if initial is None else Baseline.INITIAL_STATE
        begun = Begun(layout, granule_bytes, session.world.epoch, baseline)
        return begun, Tracer(zero_crcs(layout, granule_bytes) if initial is None else initial)

    async def _boundary(
        self,
        session: Session,
        begun: Begun,
        tracer: Tracer,
        order: InspectOrder,
        first_at: float | None,
    ) -> Boundary:
        """The boundary that the world is at, or that the block in flight leads to."""
        _check_here(session)
        try:
            with session.hold() as memory:
                await _until(lambda: not session.world.mid_block, session, order.wait_s)
                reached_at = time.monotonic()
                block_index = session.world.block_index
                crcs = await to_the_end(partial(memory.segment_crcs, begun.granule_bytes))
                read_ms = (time.monotonic() - reached_at) * 1e3
        finally:
            self._wake.notify()
        at_ms = 0.0 if first_at is None else (reached_at - first_at) * 1e3
        return tracer.boundary(block_index, at_ms, read_ms, crcs)

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id) or self._tombstones.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id} on this engine", reason="SESSION_UNKNOWN")
        _check_here(session)
        return session

    @contextmanager
    def _alone(self, session_id: str) -> Iterator[None]:
        if session_id in self._inspected:
            raise Conflict(
                f"session {session_id} is being inspected already; wait until that is over",
                reason="INSPECTED_ALREADY",
                field="session_id",
            )
        self._inspected.add(session_id)
        try:
            yield
        finally:
            self._inspected.discard(session_id)


def _is_behind(session: Session, seen: int) -> bool:
    """Whether another boundary than that of block `seen` is there or ahead."""
    return session.world.mid_block or session.world.block_index > seen


def _check_here(session: Session) -> None:
    """The world can be looked at here.

    Raises:
        Conflict: it moved away, or is not here yet.
        WorldlineError: why it ended.
    """
    ending, session_id = session.ending, session.session_id
    if ending is not None and ending.error is not None:
        raise ending.error
    if ending is not None:
        raise Conflict(
            f"session {session_id} moved to {ending.engine_address} in epoch {ending.epoch}: "
            "inspect it again, it is found there",
            reason="SESSION_MOVED",
            field="session_id",
        )
    if session.world.phase in (Phase.OPENING, Phase.ATTACHED):
        raise Conflict(
            f"session {session_id} is arriving here; inspect it in a moment",
            reason=f"WORLD_{session.world.phase.name}",
            field="session_id",
        )


async def _until(holds: Callable[[], bool], session: Session, wait_s: float) -> None:
    """Until it holds for a world that is here.

    Raises:
        DeadlineExceeded: it did not within `wait_s`.
        WorldlineError: as `_check_here`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        token = session.changed.token()
        _check_here(session)
        if holds():
            return
        if not await wait_for_change(token, deadline - time.monotonic()):
            raise DeadlineExceeded(
                f"session {session.session_id} came to no block boundary within {wait_s:g} s: "
                f"{_why_not(session)}",
                reason="NO_BOUNDARY",
                field="session_id",
            )


def _why_not(session: Session) -> str:
    world = session.world
    if world.phase is Phase.FROZEN:
        return f"it stands still for {world.move_id}; inspect it when that is over"
    if world.mid_block:
        return f"block {world.block_index} is still being generated; wait longer"
    if world.pending:
        return "its next block has an action and was not begun; its client may not read its blocks"
    return (
        f"nobody sends an action for block {world.block_index}; play it meanwhile "
        f"(`worldline play {session.session_id}`, or Session.play)"
    )
