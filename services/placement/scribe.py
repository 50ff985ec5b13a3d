"""Scribe: writes one move's phases behind its steps, in the order in which they were entered.

Behind, because nobody needs them before the steps: recovery undoes every phase before the commit
alike, whichever it finds, and the commit writes everything itself. What a move must not outrun,
its commit and its end, waits until the scribe has `settled`; and where admission chose another
target than the one on record, whatever is asked of that target waits until it is the one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

import structlog

from services.placement import move_table
from services.placement.directory import Directory
from services.placement.phases import MovePhase
from services.placement.records import MoveEntry

_log = structlog.get_logger(__name__)

#: How far the record of a move under way may be behind it. A short move is over by then, and none
#: of its phases competes with its steps for the directory's thread.
BEHIND_S = 0.05
#: The ticket that admission holds time for, which a restarted one is told of, and why a move rolls
#: back.
_AT_ONCE = frozenset({MovePhase.ADMITTED, MovePhase.ROLLING_BACK})


class Scribe:
    """The writes of one open move. `on_failure` is called for each that failed."""

    def __init__(self, directory: Directory, on_failure: Callable[[], None]) -> None:
        self._directory = directory
        self._on_failure = on_failure
        self._writing: set[asyncio.Future[None]] = set()
        self._refused = False
        #: What is to be written next, and when.
        self._noted: MoveEntry | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bug: BaseException | None = None

    def note(self, entry: MoveEntry) -> None:
        """Have the move's phase written within `BEHIND_S`; a later note by then takes its place.

        What a restart could not find out is written at once.
        """
        self._noted = entry
        if entry.move.phase in _AT_ONCE:
            self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEHIND_S, self._write)

    def _write(self) -> None:
        entry = self._noted
        self._forget()
        if entry is not None:
            self._follow(self._directory.submit(move_table.save_move, entry))

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._noted = None

    def _follow(self, writing: asyncio.Future[None]) -> None:
        self._writing.add(writing)
        writing.add_done_callback(self._written)

    async def target_recorded(self, entry: MoveEntry) -> bool:
        """Have the move's target on the disk, as `settled`: recovery undoes what it finds there."""
        self._follow(self._directory.submit(move_table.save_target, entry))
        return await self.settled()

    async def settled(self) -> bool:
        """Nothing noted is written from here on, but by the caller. False: some was refused.

        Raises:
            InvariantBroken: a phase was noted that could not follow what is on record.
        """
        self._forget()
        while self._writing:
            await asyncio.wait(self._writing)
        if self._bug is not None:
            raise self._bug
        return not self._refused

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        if writing.cancelled():
            return
        error = writing.exception()
        if error is None:
            return
        _log.error("move.unrecorded", exc_info=error)
        if isinstance(error, sqlite3.Error):
            self._refused = True
        else:
            self._bug = self._bug or error
        self._on_failure()
