"""Arriving: worlds that come to this engine: made anew, or in a slot that a move has filled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from services.engine import events as ev
from services.engine.attach import check_manifest
from services.engine.boundary import BOUNDARY_TIMEOUT_S
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.making import check_quality, made, memory_for, new_world
from services.engine.memory import Memory
from services.engine.models import Loaded, Models
from services.engine.parse import WorldSpec
from services.engine.peers import Slots
from services.engine.session import Session
from services.engine.signal import Signal, wait_for_change
from services.engine.slotmap import SlotMap
from services.engine.unmapping import UNMAP_TIMEOUT_S, begin_unmapping
from services.engine.world import WorldModel
from worldline.contract import Contract
from worldline.errors import Conflict, DeadlineExceeded, WorldlineError
from worldline.state.layout import Layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)


class Arriving:
    """Makes worlds on one engine, each by one call at a time. Called on the event loop only.

    `repeats` is asked before a world is made: whether one of that contract may be here.
    """

    def __init__(
        self,
        *,
        sessions: dict[str, Session],
        models: Models,
        chores: Chores,
        slots: Slots,
        fingerprint: Fingerprint,
        repeats: Callable[[Contract, Loaded], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._chores = chores
        self._slots = slots
        self._fingerprint = fingerprint
        self._repeats = repeats
        #: Sessions that an open, an attach or a fork is under way for.
        self.under_way: set[str] = set()
        #: Notified when a call has made its worlds, or has undone them.
        self._ended = Signal()

    @contextmanager
    def coming(self, session_id: str) -> Iterator[None]:
        """Keeps two calls from making one session at once.

        Raises:
            Conflict: the session is here, or on its way here.
        """
        known = self._sessions.get(session_id)
        if known is not None or session_id in self.under_way:
            phase = Phase.OPENING if known is None else known.world.phase
            raise Conflict(
                f"session {session_id} is on this engine already, {phase}",
                reason="SESSION_PRESENT",
            )
        self.under_way.add(session_id)
        try:
            yield
        finally:
            self.under_way.discard(session_id)
            self._ended.notify()

    async def ended(self, session_id: str) -> None:
        """Until no open, attach or fork is under way for the session: its slot may be written until
        then, and what nobody can name yet nobody can close.

        Raises:
            DeadlineExceeded: not within `BOUNDARY_TIMEOUT_S`, which a fork may wait for its parent.
        """
        deadline = time.monotonic() + BOUNDARY_TIMEOUT_S
        while self._comes(session_id):
            token = self._ended.token()
            if not await wait_for_change(token, deadline - time.monotonic()):
                raise DeadlineExceeded(
                    f"session {session_id} is on its way to this engine for {BOUNDARY_TIMEOUT_S:g} "
                    "s already: ask again",
                    field="session_id",
                )

    def _comes(self, session_id: str) -> bool:
        known = self._sessions.get(session_id)
        is_made = known is not None and known.world.phase is Phase.OPENING
        return is_made or session_id in self.under_way

    async def open(
        self, session_id: str, epoch: int, contract: Contract, spec: WorldSpec
    ) -> Session:
        """Make a new world in a new slot. What fails leaves nothing behind.

        Raises:
            Conflict: the session is here already; or NOT_DETERMINISTIC, at T0.
            InvalidInput: no such preset; a quality floor that it does not reach.
        """
        with self.coming(session_id):
            loaded = await self._models.get(spec.preset)
            check_quality(contract, loaded)
            await self._repeats(contract, loaded)
            slot = await self._slots.allocate(session_id, loaded.layout.extent_bytes)
            world = new_world(session_id, epoch, Phase.OPENING, contract)
            session = Session(world, contract, loaded.model, slot)
            self._sessions[session_id] = session
        try:
            mapped = await self._slots.map(slot, session_id)
            session.memory = memory = memory_for(loaded.model, mapped, loaded.layout)
            await self._chores.run(made(loaded.model, memory, spec.seed))
        except BaseException:
            await self._undo_open(session)
            raise
        session.owned_since = time.monotonic()
        session.apply(ev.Opened(), time.monotonic())
        self._ended.notify()
        return session

    async def _undo_open(self, session: Session) -> None:
        """Also after a cancellation: the slot must not outlive a failed open."""
        session.unmap()
        try:
            await session.unmapped(UNMAP_TIMEOUT_S)
        except WorldlineError as error:
            # Not given back: it is mapped.
            _log.error("open.not_undone", session_id=session.session_id, error=str(error))
            return
        finally:
            del self._sessions[session.session_id]
            self._ended.notify()
        try:
            await asyncio.shield(self._slots.release(session.slot, session.session_id))
        except WorldlineError as error:
            # The mover reaps slots that no session of the directory owns.
            _log.warning("slot.release_failed", session_id=session.session_id, error=str(error))

    async def attach(
        self,
        session_id: str,
        move_id: str,
        contract: Contract,
        spec: WorldSpec,
        manifest: Manifest,
        slot: move_pb2.SlotRef,
    ) -> None:
        """Map a staged slot and make the world in it; it generates nothing yet. Idempotent.

        Raises:
            InvalidInput: the manifest is not one that this engine's model continues.
            Conflict: FINGERPRINT_MISMATCH or NOT_DETERMINISTIC at T0; or the session is here
                already.
        """
        known = self._sessions.get(session_id)
        if known is not None and _is_staged(known, move_id, slot):
            return
        with self.coming(session_id):
            loaded = await self._models.get(spec.preset)
            check_quality(contract, loaded)
            check_manifest(manifest, session_id, loaded.layout, self._fingerprint, contract)
            await self._models.warm(spec.preset)
            await self._repeats(contract, loaded)
            mapped = await self._slots.map(slot, session_id)
            world = new_world(
                session_id,
                manifest.epoch,
                Phase.ATTACHED,
                contract,
                block_index=manifest.block_index,
                move_id=move_id,
                heard_at=time.monotonic(),
            )
            memory = await self._loaded(loaded.model, mapped, manifest.layout)
            session = Session(world, contract, loaded.model, slot)
            session.memory = memory
            self._sessions[session_id] = session

    async def _loaded(self, model: WorldModel, mapped: SlotMap, layout: Layout) -> Memory:
        """The state in the slot, made the model's. What fails leaves nothing behind."""
        memory = memory_for(model, mapped, layout)
        if memory.copies:
            try:
                await self._chores.run(memory.loading(), stands=True)
            except BaseException:
                await begin_unmapping(memory).wait()
                raise
        return memory


def _is_staged(session: Session, move_id: str, slot: move_pb2.SlotRef) -> bool:
    world = session.world
    return world.phase is Phase.ATTACHED and world.move_id == move_id and session.slot == slot
