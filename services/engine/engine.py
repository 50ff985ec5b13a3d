"""Engine: the verbs of one engine over its sessions; everything torch goes to the worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from services.engine import events as ev
from services.engine.attach import check_manifest
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.fork_order import ForkOrder
from services.engine.forking import Forked, Forking
from services.engine.generation import Generation
from services.engine.inspecting import Inspecting
from services.engine.lease import Lease
from services.engine.making import check_quality, copies, made, memory_for, new_world
from services.engine.measuring import measure
from services.engine.memory import Memory
from services.engine.models import Loaded, Models
from services.engine.parse import WorldSpec
from services.engine.peers import Slots
from services.engine.profile import Profiles
from services.engine.reading import to_the_end
from services.engine.selfcheck import SelfCheck, SelfChecks
from services.engine.session import Session
from services.engine.signal import wait_for_change
from services.engine.slotmap import SlotMap
from services.engine.tombstones import Tombstones
from services.engine.world import WorldModel
from worldline.admissibility.profile_row import ProfileRow, RequestShape
from worldline.contract import Contract
from worldline.errors import Conflict, DeadlineExceeded, NotFound, WorldlineError
from worldline.numa import binding_of_process
from worldline.state.granulation import check_granule_bytes
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Fingerprint, Manifest
from worldline.telemetry import current_traceparent
from worldline.v1 import move_pb2

_log = structlog.get_logger(__name__)

#: A block in flight must reach its boundary within this; `mg2` on a CPU takes about one second.
BOUNDARY_TIMEOUT_S = 30.0


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
        self._slots = slots
        #: One at a time: each keeps the worlds that play here waiting a little.
        self._measuring = asyncio.Lock()
        self.inspecting = Inspecting(
            sessions=self.sessions,
            tombstones=self.tombstones,
            chores=chores,
            wake=self.generation.wake,
        )
        #: Sessions that an open, an attach or a fork is under way for.
        self._arriving: set[str] = set()
        self._forking = Forking(
            sessions=self.sessions,
            models=models,
            chores=chores,
            slots=slots,
            coming=self._coming,
            wake=self.generation.wake,
            boundary_timeout_s=BOUNDARY_TIMEOUT_S,
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

    async def open(
        self, session_id: str, epoch: int, contract: Contract, spec: WorldSpec
    ) -> Session:
        """Make a new world in a new slot. What fails leaves nothing behind.

        Raises:
            Conflict: the session is here already; or NOT_DETERMINISTIC, at T0.
            InvalidInput: no such preset; a quality floor that it does not reach.
        """
        with self._coming(session_id):
            loaded = await self._models.get(spec.preset)
            check_quality(contract, loaded)
            await self._check_repeats(contract, loaded)
            slot = await self._slots.allocate(session_id, loaded.layout.extent_bytes)
            world = new_world(session_id, epoch, Phase.OPENING, contract)
            session = Session(world, contract, loaded.model, slot)
            self.sessions[session_id] = session
        try:
            mapped = await self._slots.map(slot, session_id)
            session.memory = memory = memory_for(loaded.model, mapped, loaded.layout)
            await self._chores.run(made(loaded.model, memory, spec.seed))
        except BaseException:
            await self._undo_open(session)
            raise
        session.owned_since = time.monotonic()
        session.apply(ev.Opened(), time.monotonic())
        return session

    async def _undo_open(self, session: Session) -> None:
        """Also after a cancellation: the slot must not outlive a failed open."""
        del self.sessions[session.session_id]
        session.unmap()
        try:
            await asyncio.shield(self._slots.release(session.slot, session.session_id))
        except WorldlineError as error:
            # The mover reaps slots that no session of the directory owns.
            _log.warning("slot.release_failed", session_id=session.session_id, error=str(error))

    async def close(self, session_id: str, epoch: int) -> None:
        """End a session at its next boundary; idempotent."""
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
            await _while(lambda: session.world.mid_block, session)
            digests = await to_the_end(lambda: memory.digests(granule_bytes))
            return _manifest(session, memory, self.fingerprint, digests), session.slot

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
        await self._until_frozen(session, move_id)
        _check_frozen(session, move_id)
        session.note_move("frozen", move_id)
        with session.hold() as memory:
            if memory.copies:
                await self._chores.run(memory.storing(), stands=True)
                _check_frozen(session, move_id)
            return _manifest(session, memory, self.fingerprint, None), session.slot

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

    async def attach(
        self,
        session_id: str,
        move_id: str,
        contract: Contract,
        spec: WorldSpec,
        manifest: Manifest,
        slot: move_pb2.SlotRef,
        *,
        landing: bool = False,
    ) -> bool:
        """Map a staged slot and make the world in it; it generates nothing yet. Idempotent.

        Whether it did: not where the state is still `landing` and would have to be read.

        Raises:
            InvalidInput: the manifest is not one that this engine's model continues.
            Conflict: FINGERPRINT_MISMATCH or NOT_DETERMINISTIC at T0; or the session is here
                already.
        """
        known = self.sessions.get(session_id)
        if known is not None and _is_staged(known, move_id, slot):
            return True
        with self._coming(session_id):
            loaded = await self._models.get(spec.preset)
            check_quality(contract, loaded)
            check_manifest(manifest, session_id, loaded.layout, self.fingerprint, contract)
            await self._models.warm(spec.preset)
            await self._check_repeats(contract, loaded)
            if landing and copies(loaded.model):
                return False
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
            self.sessions[session_id] = session
            return True

    async def _loaded(self, model: WorldModel, mapped: SlotMap, layout: Layout) -> Memory:
        """The state in the slot, made the model's. What fails leaves nothing behind."""
        memory = memory_for(model, mapped, layout)
        if memory.copies:
            try:
                await self._chores.run(memory.loading(), stands=True)
            except BaseException:
                memory.close()
                raise
        return memory

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
            if session.world.phase is Phase.RELEASED and session.memory is None:
                self.bury(session)

    def bury(self, session: Session) -> None:
        """Keep an ended session's outbox for its client, and nothing else."""
        if self.sessions.get(session.session_id) is session:
            del self.sessions[session.session_id]
            self.tombstones.add(session)

    def shut_down(self) -> None:
        """Unmap everything. The worker must have ended; slots stay the mover's."""
        for session in self.sessions.values():
            session.unmap()
        self.sessions.clear()
        self.tombstones.clear()

    async def _gone(self, session: Session) -> None:
        await session.unmapped(BOUNDARY_TIMEOUT_S)
        self.bury(session)

    async def _until_frozen(self, session: Session, move_id: str) -> None:
        """Until the freeze is reached or taken back: whichever comes, it is no longer freezing."""

        def freezing() -> bool:
            world = session.world
            return world.phase is Phase.FREEZING and world.move_id == move_id

        await _while(freezing, session)

    @contextmanager
    def _coming(self, session_id: str) -> Iterator[None]:
        """Keeps two calls from making one session at once.

        Raises:
            Conflict: the session is here, or on its way here.
        """
        known = self.sessions.get(session_id)
        if known is not None or session_id in self._arriving:
            phase = Phase.OPENING if known is None else known.world.phase
            raise Conflict(
                f"session {session_id} is on this engine already, {phase}",
                reason="SESSION_PRESENT",
            )
        self._arriving.add(session_id)
        try:
            yield
        finally:
            self._arriving.discard(session_id)


async def _while(holds: Callable[[], bool], session: Session) -> None:
    deadline = time.monotonic() + BOUNDARY_TIMEOUT_S
    while holds():
        token = session.changed.token()
        if not await wait_for_change(token, deadline - time.monotonic()):
            raise DeadlineExceeded(
                f"session {session.session_id} did not reach a block boundary within "
                f"{BOUNDARY_TIMEOUT_S:g} s"
            )


def _check_frozen(session: Session, move_id: str) -> None:
    if session.world.phase is not Phase.FROZEN or session.world.move_id != move_id:
        raise Conflict(
            f"the freeze of session {session.session_id} for move {move_id} was taken back",
            reason="FREEZE_DROPPED",
        )


def _is_staged(session: Session, move_id: str, slot: move_pb2.SlotRef) -> bool:
    world = session.world
    return world.phase is Phase.ATTACHED and world.move_id == move_id and session.slot == slot


def _manifest(
    session: Session, memory: Memory, fingerprint: Fingerprint, digests: Digests | None
) -> Manifest:
    return Manifest(
        session_id=session.session_id,
        epoch=session.world.epoch,
        block_index=session.world.block_index,
        layout=memory.layout(),
        fingerprint=fingerprint,
        determinism_tier=session.contract.determinism_tier,
        digests=digests,
    )
