"""Relearning: gathers what is under way and tells an admission that has restarted."""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from services.placement import node_table
from services.placement.directory import Directory
from services.placement.fleet import Fleet
from services.placement.open_moves import OpenMoves
from services.placement.owner import TaskOwner
from services.placement.peers import Deadlines, Peers
from services.placement.relearn import (
    OwnMove,
    RunningMove,
    WireSeen,
    holds_wire,
    relearn_request,
    what_runs,
)
from worldline.errors import WorldlineError
from worldline.rpc.channel import call
from worldline.telemetry import span
from worldline.v1 import admission_pb2, mover_pb2

_log = structlog.get_logger(__name__)

#: Paths told, the latest first: one message must hold them.
_PATHS_MAX = 10_000


class Relearning:
    """Tells admission, once for all who wait for it."""

    def __init__(
        self,
        directory: Directory,
        fleet: Fleet,
        peers: Peers,
        deadlines: Deadlines,
        moves: OpenMoves,
        owner: TaskOwner,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._peers = peers
        self._deadlines = deadlines
        self._moves = moves
        self._owner = owner
        self._telling: asyncio.Task[None] | None = None
        #: How often admission was told.
        self.told = 0

    async def tell(self, told: int) -> None:
        """Tell admission what is under way; whoever else asks meanwhile waits for the same call.

        Nothing where it was told since `told` was read: whoever was rejected before that need only
        ask again.

        Raises:
            WorldlineError: admission could not be told.
        """
        if self.told != told:
            return
        if self._telling is None:
            self._telling = self._owner.start(self._tell(), "relearn")
        # One that waits and is cancelled takes nothing from the others.
        await asyncio.shield(self._telling)

    async def _tell(self) -> None:
        try:
            with span("relearn") as active:
                before = frozenset(one.move_id for one in self._moves.moves())
                wires = await self._wires()
                paths = await self._directory.do(node_table.latest_paths, _PATHS_MAX)
                own = self._own()
                running = what_runs(own, before | {one.move.move_id for one in own}, wires)
                hosts = {name: node.host_id for name, node in self._fleet.nodes.items()}
                answer: admission_pb2.RelearnResponse = await call(
                    self._peers.admission().Relearn,
                    relearn_request(running, paths, hosts, time.time()),
                    timeout_s=self._deadlines.quick_s,
                )
                self.told += 1
                active.set(moves=len(running), paths=len(paths), holds=answer.holds)
            _log.info(
                "admission.relearned", moves=len(running), paths=len(paths), holds=answer.holds
            )
            await self._finish_ended(running, own)
        finally:
            self._telling = None

    def _own(self) -> tuple[OwnMove, ...]:
        now = asyncio.get_running_loop().time()
        return tuple(
            OwnMove(
                move=task.entry.move,
                extent_bytes=task.context.session.extent_bytes,
                age_ms=0.0 if (at_s := task.context.ticket_at_s) is None else (now - at_s) * 1e3,
            )
            for task in self._moves.tasks()
        )

    async def _wires(self) -> list[WireSeen]:
        """What every mover that is alive and answers says of its wires."""
        now = asyncio.get_running_loop().time()
        alive = [name for name in sorted(self._fleet.nodes) if self._fleet.node_alive(name, now)]
        found = await asyncio.gather(*(self._wires_of(name) for name in alive))
        return [wire for wires in found for wire in wires]

    async def _wires_of(self, node_id: str) -> list[WireSeen]:
        try:
            answer: mover_pb2.DescribeMoverResponse = await call(
                self._peers.mover(node_id).DescribeMover,
                mover_pb2.DescribeMoverRequest(),
                timeout_s=self._deadlines.describe_s,
            )
        except WorldlineError as error:
            # Its wires are its own to grant: what admission does not know of waits there.
            _log.warning("relearn.mover_silent", node_id=node_id, reason=error.reason)
            return []
        extents = {slot.session_id: slot.extent_bytes for slot in answer.slots}
        return [
            WireSeen(
                ticket_id=one.ticket_id,
                move_id=one.move_id,
                source_node_id=one.source_node_id,
                target_node_id=one.target_node_id,
                remaining_ms=one.remaining_ms,
                # A probe's session bears its move's name.
                extent_bytes=extents.get(one.move_id) or answer.slot_bytes,
            )
            for one in answer.wires
        ]

    async def _finish_ended(
        self, running: tuple[RunningMove, ...], own: tuple[OwnMove, ...]
    ) -> None:
        """Say the end of those that ended while they were told: what they said was not heard."""
        ours = {one.move.move_id for one in own}
        for one in running:
            task = self._moves.get(one.move_id)
            if one.move_id not in ours or (task is not None and holds_wire(task.entry.move)):
                continue
            request = admission_pb2.FinishMoveRequest(
                ticket_id=one.ticket_id, move_id=one.move_id, reason="ENDED_WHILE_TOLD"
            )
            with contextlib.suppress(WorldlineError):  # then its time ends it
                await call(
                    self._peers.admission().FinishMove,
                    request,
                    timeout_s=self._deadlines.quick_s,
                )
