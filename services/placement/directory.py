"""Directory: the durable truth about nodes, engines, sessions and moves, with one writer.

One thread owns the one connection; everything that reads or writes runs there, in order. The
tables' own functions (`node_table`, `session_table`, `move_table`) are plain and synchronous.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from services.placement.schema import open_directory
from worldline.telemetry import carried

P = ParamSpec("P")
T = TypeVar("T")


class Directory:
    """The directory's file, open. `await do(function, ...)` runs `function(db, ...)` there.

    A caller that is cancelled stops waiting; what it asked for still happens.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="directory")
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file and check its schema.

        Raises:
            VersionSkew, Conflict, InvalidInput: as `schema.open_directory`.
        """

        def work() -> sqlite3.Connection:
            db = open_directory(self._path)
            db.row_factory = sqlite3.Row
            return db

        try:
            self._db = await asyncio.get_running_loop().run_in_executor(self._writer, work)
        except BaseException:
            self._writer.shutdown(wait=False)
            raise

    async def do(
        self,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one of the tables' functions on the writer's thread."""
        return await self.submit(function, *args, **kwargs)

    def submit(
        self,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Future[T]:
        """As `do`, without waiting: it runs after everything that was asked for before."""
        db = self._db
        if db is None:
            raise RuntimeError("the directory is not open")
        return asyncio.get_running_loop().run_in_executor(
            self._writer, carried(lambda: function(db, *args, **kwargs))
        )

    def ask(self, function: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """As `submit`, for threads other than the event loop's."""
        db = self._db
        if db is None:
            raise RuntimeError("the directory is not open")
        return self._writer.submit(function, db)

    async def close(self) -> None:
        """Finish what was asked, fold the log into the file, close it."""
        db, self._db = self._db, None
        if db is not None:
            await asyncio.get_running_loop().run_in_executor(self._writer, db.close)
        self._writer.shutdown(wait=True)


@contextmanager
def transaction(db: sqlite3.Connection, *, durable: bool) -> Iterator[None]:
    """All or nothing. `durable`: on the disk when it returns, and with it all before it.

    Not durable means that a power cut (not a crash of this process) may lose the latest such
    transactions, in order. Recovery undoes the same whatever phase before the commit it finds, so
    that no move waits for the disk between freeze and commit.
    """
    db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite rolls some failures back itself, a full disk among them. Where it did not, an
        # open transaction would refuse every later one, and show as done what is on no disk.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
