"""Draining: which nodes are drained, on record, and how far; what operators ask of that.

A node is closed (`Fleet.cordon`) for as long as it has a record. One task empties all that are to
be (`drain_task`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from services.placement import drain_table
from services.placement.drain_record import DrainRecord, DrainReport
from services.placement.drain_task import DrainTask
from services.placement.drain_values import DrainState, Dropped, Left, Ordered
from services.placement.open_moves import OpenMoves
from services.placement.runtime import Runtime

_log = structlog.get_logger(__name__)

#: A bug in the task is met by beginning anew from the records, this often.
_REVIVALS_MAX = 10
_REVIVAL_S = 1.0


class Drains:
    """Every drain of this directory; its nodes are one demand."""

    def __init__(self, runtime: Runtime, moves: OpenMoves, deadline_s: float) -> None:
        """`deadline_s` is for drains that nobody gave one."""
        self._runtime = runtime
        self._moves = moves
        self._deadline_s = deadline_s
        self._records: dict[str, DrainRecord] = {}
        self._task = DrainTask(runtime, moves, self)
        self._running = False
        self._stopping = False
        self._changed = asyncio.Condition()
        self._process = secrets.token_hex(4)
        self._version = 0
        #: What watchers were told last.
        self._told: object = None
        moves.on_change(lambda: self._task.touch())

    # --- start and end ---

    async def start(self) -> None:
        """Go on with what a restart left: before anything may go to the nodes again."""
        for record in await self._runtime.directory.do(drain_table.all_drains):
            self._records[record.node_id] = record
            self._runtime.fleet.cordon(record.node_id)
        self._order(self._under_way())

    def stop(self) -> None:
        """Ask for nothing more; the records stay, and the next start goes on with them."""
        self._stopping = True
        self._task.stop()
        self._runtime.owner.start(self.looked(), "drain watchers")

    # --- what operators ask for ---

    async def drain(self, node_ids: Sequence[str], deadline_ms: int) -> tuple[DrainReport, ...]:
        """Drain these nodes; those that are being drained get another deadline.

        Raises:
            NotFound: no such node, and none is drained. Unavailable: placement is stopping.
        """
        self._runtime.refuse_when_stopping()
        for node_id in node_ids:
            self._runtime.fleet.node(node_id)
        # A caller that goes away half-way leaves a drain, or none.
        work = self._begin(tuple(dict.fromkeys(node_ids)), deadline_ms / 1e3 or self._deadline_s)
        await asyncio.shield(self._runtime.owner.start(work, "begin drain"))
        return self.reports(node_ids)

    async def undrain(self, node_ids: Sequence[str]) -> tuple[str, ...]:
        """Let sessions come again; which of the nodes were drained.

        Raises:
            NotFound: no such node.
        """
        for node_id in node_ids:
            self._runtime.fleet.node(node_id)
        drained = tuple(one for one in dict.fromkeys(node_ids) if one in self._records)
        await asyncio.shield(self._runtime.owner.start(self._end(drained), "undrain"))
        return drained

    def reports(self, node_ids: Sequence[str] = ()) -> tuple[DrainReport, ...]:
        """How far the drains of these nodes are, or of all, by name."""
        now = asyncio.get_running_loop().time()
        return tuple(
            self._report(record, now)
            for node_id, record in sorted(self._records.items())
            if not node_ids or node_id in node_ids
        )

    def state_of(self, node_id: str) -> str:
        """The state of a node's drain; empty where it takes sessions."""
        record = self._records.get(node_id)
        return "" if record is None else record.state.value

    @property
    def version(self) -> str:
        """Of what `reports` says."""
        return f"{self._process}-{self._version}"

    async def until_changed(self, seen: str, wait_s: float) -> None:
        """Wait until the version is another than `seen`, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.version != seen or self._stopping)

    # --- the book of its task ---

    async def moved(self, node_id: str, count: int) -> None:
        """So many sessions were moved off that node up to now."""
        record = self._records.get(node_id)
        if record is not None and record.moved != count:
            await self._write(replace(record, moved=count))

    async def ended(self, node_id: str, state: DrainState, left: tuple[Left, ...]) -> None:
        """The drain of that node has ended so."""
        record = self._records.get(node_id)
        if record is None or record.state is not DrainState.DRAINING:
            return  # undrained meanwhile
        _log.info("drain.ended", node_id=node_id, state=state.value, left=len(left))
        await self._write(replace(record, state=state, ended_unix_s=time.time(), left=left))

    async def looked(self) -> None:
        """Tell whoever watches, where more has changed than the time."""
        news = [one.gist for one in self.reports()]
        if news != self._told:
            self._told = news
            self._version += 1
        async with self._changed:
            self._changed.notify_all()

    # --- inside ---

    async def _begin(self, node_ids: Sequence[str], lasts_s: float) -> None:
        before = {node_id: self._records.get(node_id) for node_id in node_ids}
        ordered = [_ordered(node_id, known, lasts_s) for node_id, known in before.items()]
        for one in ordered:
            # Whoever looks for a target from now on finds it closed; who came before is seen.
            self._runtime.fleet.cordon(one.node_id)
            self._records[one.node_id] = one
        try:
            await self._runtime.directory.do(drain_table.put_drains, ordered)
        except BaseException:
            self._restore(before)
            raise
        _log.info("drain.ordered", node_ids=node_ids, deadline_s=lasts_s)
        self._order(ordered)
        await self.looked()

    def _restore(self, before: Mapping[str, DrainRecord | None]) -> None:
        for node_id, record in before.items():
            if record is None:
                self._records.pop(node_id, None)
                self._runtime.fleet.uncordon(node_id)
            else:
                self._records[node_id] = record

    async def _end(self, node_ids: Sequence[str]) -> None:
        # First, so that nothing is written of them behind their end.
        before = {one: self._records.pop(one) for one in node_ids if one in self._records}
        try:
            await self._runtime.directory.do(drain_table.drop_drains, node_ids)
        except BaseException:
            self._records = before | self._records
            raise
        for node_id in node_ids:
            self._runtime.fleet.uncordon(node_id)
        _log.info("drain.undrained", node_ids=node_ids)
        self._task.post(*map(Dropped, node_ids))
        await self.looked()

    def _order(self, records: Sequence[DrainRecord]) -> None:
        """Have the task take these drains up, and run."""
        now_s, now = time.time(), asyncio.get_running_loop().time()
        self._task.post(
            *(Ordered(one.node_id, now + one.remaining_s(now_s), one.moved) for one in records)
        )
        if records and not self._running:
            self._running = True
            self._runtime.owner.start(self._supervise(), "drain")

    def _under_way(self) -> list[DrainRecord]:
        return [one for one in self._records.values() if one.state is DrainState.DRAINING]

    async def _supervise(self) -> None:
        """Run until nothing is left to drain; a bug is met as a restart would be."""
        try:
            for _ in range(_REVIVALS_MAX):
                try:
                    await self._task.run()
                    return
                except Exception:
                    _log.exception("drain.task_failed")
                # Its moves go on by themselves, and are waited for as anybody's.
                self._task = DrainTask(self._runtime, self._moves, self)
                await asyncio.sleep(_REVIVAL_S)
                self._order(self._under_way())
            for one in self._under_way():
                await self.ended(one.node_id, DrainState.INCOMPLETE, ())
        finally:
            self._running = False

    async def _write(self, record: DrainRecord) -> None:
        self._records[record.node_id] = record
        await self._runtime.directory.do(drain_table.put_drains, [record])

    def _report(self, record: DrainRecord, now: float) -> DrainReport:
        if record.state is not DrainState.DRAINING:
            return DrainReport(record, record.left, {}, 0)
        drain = self._task.drain
        left = drain.left(record.node_id, now)
        return DrainReport(record, left, self._task.move_ids, drain.rounds_left)


def _ordered(node_id: str, known: DrainRecord | None, lasts_s: float) -> DrainRecord:
    """A new drain; or the one that is under way, with another deadline."""
    now_s = time.time()
    if known is None or known.state is not DrainState.DRAINING:
        return DrainRecord(node_id, DrainState.DRAINING, now_s, now_s + lasts_s)
    return replace(known, deadline_unix_s=now_s + lasts_s)
