"""Player: the client of one session, which has its next actions there before they are needed."""

from __future__ import annotations

import time

from bench.fabric.streams import stream
from bench.serving.real.outcome import Seen
from services.engine import events as ev
from services.engine.core import PENDING_MAX
from services.engine.session import Session, Stream
from services.engine.signal import Signal, wait_for_change
from services.engine.world import KEYBOARD_BITS, Action

#: Looks again this often although nothing woke it.
_LOOK_AGAIN_S = 60.0


class Player:
    """Plays until its job is done or it is cancelled. The same seed, the same actions."""

    def __init__(
        self, session: Session, wake: Signal, seed: int, blocks: int | None = None
    ) -> None:
        self.seen: list[Seen] = []
        self._session = session
        self._wake = wake
        self._blocks = blocks
        self._drawn = stream(seed, f"actions of {session.session_id}")
        self._asked = 0
        self._stream = Stream(0, digests_wanted=False)
        session.stream = self._stream

    async def play(self) -> None:
        """Block after block.

        Raises:
            WorldlineError: the world has failed.
        """
        session = self._session
        while self._blocks is None or len(self.seen) < self._blocks:
            self._ask()
            token = session.changed.token()
            if session.ending is not None and session.ending.error is not None:
                raise session.ending.error
            if not self._read():
                await wait_for_change(token, _LOOK_AGAIN_S)

    def _ask(self) -> None:
        while len(self._session.world.pending) < PENDING_MAX and not self._asked_all:
            keyboard = self._drawn.randrange(1 << KEYBOARD_BITS)
            action = Action(self._asked, keyboard)
            self._session.apply(ev.ActionArrived(action), time.monotonic())
            self._asked += 1
            self._wake.notify()

    @property
    def _asked_all(self) -> bool:
        return self._blocks is not None and self._asked >= self._blocks

    def _read(self) -> bool:
        record = self._session.outbox.get(self._stream.cursor)
        if record is None:
            return False
        self.seen.append(
            Seen(
                at=time.monotonic(),
                block_index=record.block_index,
                late_ms=record.late_ms,
                releases_skipped=record.releases_skipped,
                degraded=record.quality.degraded,
            )
        )
        self._stream.cursor += 1
        self._wake.notify()
        return True
