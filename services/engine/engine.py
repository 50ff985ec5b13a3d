"""Engine: the verbs of one engine over its sessions; everything torch goes to the worker."""

from __future__ import annotations

import asyncio
import time

import structlog

from services.engine import events as ev
from services.engine.arriving import Arriving
from services.engine.boundary import (
    BOUNDARY_TIMEOUT_S,
    boundary,
    check_frozen,
    frozen,
    manifest_of,
)
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.fork_order import ForkOrder
from services.engine.forking import Forked, Forking
from services.engine.generation import Generation
from services.engine.inspecting import Inspecting
from services.engine.lease import Lease
from services.engine.measuring import measure
from services.engine.models import Loaded, Models
from services.engine.parse import WorldSpec
from services.engine.peers import Slots
from services.engine.profile import Profiles
from services.engine.reading import to_the_end
from services.engine.selfcheck import SelfCheck, SelfChecks
from services.engine.session import Session
from services.engine.tombstones import Tombstones
from services.engine.unmapping import UNMAP_TIMEOUT_S
from worldline.admissibility.profile_row import ProfileRow, RequestShape
from worldline.contract import Contract
from worldline.errors import NotFound
from worldline.numa import binding_of_process
from worldline.state.granulation import check_granule_bytes
from worldline.state.manifest import Fingerprint, Manifest
from worldline.telemetry import current_traceparent
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)


class Engine:
    """Sessions of one device. Called on the event loop only."""

    def __init__(
        self,
        *,
        chores: Chores,
        models: Models,
        slots: Slots,
        fingerprint: Fingerprint,
        profiles: Profiles | None = None,
        self_checks: SelfChecks | None = None,
        degrade_for_bulk: bool = False,
    ) -> None:
        self.fingerprint = fingerprint
        self.profiles = profiles or Profiles(binding=binding_of_process())
        #: None takes every world at its word: for tests of something else.
        self.self_checks = self_checks
        self.sessions: dict[str, Session] = {}
        self.tombstones = Tombstones()
        self.lease = Lease()
        self.generation = Generation(
            self.sessions,
            chores.worker,
            self.profiles,
            lambda: self.lease,
            degrade_for_bulk=degrade_for_bulk,
            chores=chores,
        )
        self._chores = chores
        self._models = models
        #: One at a time: each takes memory for a session.
        self._measuring = asyncio.Lock()
        self.inspecting = Inspecting(
            sessions=self.sessions,
            tombstones=self.tombstones,
            chores=chores,
            wake=self.generation.wake,
        )
        self.arriving = Arriving(
            sessions=self.sessions,
            models=models,
            chores=chores,
            slots=slots,
            fingerprint=fingerprint,
            repeats=self._check_repeats,
        )
        self._forking = Forking(
            sessions=self.sessions,
            models=models,
            chores=chores,
            slots=slots,
            coming=self.arriving.coming,
            wake=self.generation.wake,
        )

    def session(self, session_id: str) -> Session:
        """The live session.

        Raises:
            NotFound: this engine has no such session.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id} on this engine", reason="SESSION_UNKNOWN")
        return session

    async def close(self, session_id: str, epoch: int) -> None:
        """End a session at its next boundary; one that is on its way here once it is. Idempotent.

        Raises:
            DeadlineExceeded: it does not come, or not to a boundary, in time: ask again.
        """
        await self.arriving.ended(session_id)
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.press(time.monotonic())
        session.apply(ev.CloseAsked(epoch), time.monotonic())
        self.generation.wake.notify()
        await self._gone(session)

    async def fork(self, order: ForkOrder) -> Forked:
        """Branch a live world at its next boundary; see `Forking.fork`.

        Raises:
            Conflict: NOT_DETERMINISTIC, at T0, where the model does not repeat itself here.
        """
        parent = self.session(order.session_id)
        await self._check_repeats(order.contract, await self._models.get(parent.model.preset))
        return await self._forking.fork(parent, order)

    async def register(
        self, session_id: str, granule_bytes: int = 0
    ) -> tuple[Manifest, move_pb2.SlotRef]:
        """The manifest at a block boundary, digests included; in granules of 1 MiB unless told.

        Raises:
            InvalidInput: a granule that does not suit the state.
        """
        session = self.session(session_id)
        with session.hold() as memory:
            if granule_bytes:
                check_granule_bytes(granule_bytes, memory.topology)
            await boundary(session)
            digests = await to_the_end(lambda: memory.digests(granule_bytes))
            return manifest_of(session, memory, self.fingerprint, digests), session.slot

    async def freeze(
        self, session_id: str, epoch: int, move_id: str
    ) -> tuple[Manifest, move_pb2.SlotRef]:
        """Stop at the next boundary; returns the manifest without digests. Idempotent per move.

        Raises:
            Conflict: another move holds the world, or this one was taken back meanwhile.
        """
        session = self.session(session_id)
        session.apply(ev.FreezeAsked(epoch, move_id), time.monotonic())
        session.press(time.monotonic())
        # A block paused by a lost lease still has to reach its boundary.
        self.generation.wake.notify()
        await frozen(session, move_id)
        session.note_move("frozen", move_id)
        with session.hold() as memory:
            if memory.copies:
                await self._chores.run(memory.storing(), stands=True)
                check_frozen(session, move_id)
            return manifest_of(session, memory, self.fingerprint, None), session.slot

    def thaw(self, session_id: str, epoch: int, move_id: str) -> int:
        """Continue after a move that did not commit; returns the next block. Idempotent."""
        session = self.session(session_id)
        session.apply(ev.ThawAsked(epoch, move_id), time.monotonic())
        session.note_move("thawed", move_id)
        self.generation.wake.notify()
        return session.world.block_index

    async def warm(self, spec: WorldSpec) -> tuple[int, SelfCheck]:
        """Build a preset's weights, run its first-block transient, check that it repeats itself.

        Returns its state's bytes, and what came of the self-check.

        Raises:
            CapacityExhausted: there is no memory, or no tensors of the model's, for the check.
        """
        loaded = await self._models.warm(spec.preset)
        found = SelfCheck(spec.preset)
        if self.self_checks is not None:
            found = await self.self_checks.of(loaded)
        return loaded.layout.extent_bytes, found

    async def _check_repeats(self, contract: Contract, loaded: Loaded) -> None:
        if self.self_checks is not None:
            await self.self_checks.admit(loaded, contract)

    async def measure(self, shape: RequestShape) -> ProfileRow | None:
        """Time quanta of that shape; its row, None where a clock stood still.

        Raises:
            InvalidInput: no such preset.
            CapacityExhausted: the model has no tensors for one more session.
        """
        loaded = await self._models.warm(shape.preset)
        async with self._measuring:
            await measure(self._chores, loaded, shape, self.profiles)
        return self.profiles.row(shape, time.monotonic())

    def activate(self, session_id: str, move_id: str, epoch: int) -> int:
        """Own the world from `epoch` on; returns the next block. Idempotent."""
        session = self.session(session_id)
        session.apply(ev.ActivateAsked(move_id, epoch), time.monotonic())
        session.owned_since = time.monotonic()
        session.came_in = current_traceparent()
        self.generation.wake.notify()
        return session.world.block_index

    async def detach(
        self,
        session_id: str,
        move_id: str,
        engine_address: str,
        epoch: int,
        *,
        suspended: bool = False,
    ) -> None:
        """Drop a staged, moved-away or suspended world; its slot is unmapped then. Idempotent."""
        session = self.sessions.get(session_id)
        if session is None:
            return
        event = ev.DetachAsked(move_id, engine_address, epoch, suspended)
        session.apply(event, time.monotonic())
        # Its cohort waits for it no more.
        self.generation.wake.notify()
        await self._gone(session)

    def lose(self, session: Session) -> None:
        """The directory no longer has this engine as the session's owner."""
        session.apply(ev.OwnershipLost(), time.monotonic())
        self.generation.wake.notify()

    def bury_ended(self) -> None:
        """Bury worlds that ended by themselves: failed, or no longer owned."""
        for session in list(self.sessions.values()):
            if session.world.phase is Phase.RELEASED and not session.is_mapped:
                self.bury(session)

    def bury(self, session: Session) -> None:
        """Keep an ended session's outbox for its client, and nothing else."""
        if self.sessions.get(session.session_id) is session:
            del self.sessions[session.session_id]
            self.tombstones.add(session)

    async def shut_down(self) -> None:
        """Unmap everything, as long as that takes at most. The worker must have ended; slots stay
        the mover's.
        """
        sessions = list(self.sessions.values())
        for session in sessions:
            session.unmap()
        leaving = (session.unmapped(UNMAP_TIMEOUT_S) for session in sessions)
        await asyncio.gather(*leaving, return_exceptions=True)  # who failed has said so
        self.sessions.clear()
        self.tombstones.clear()

    async def _gone(self, session: Session) -> None:
        await session.unmapped(BOUNDARY_TIMEOUT_S)
        self.bury(session)
