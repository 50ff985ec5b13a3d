"""Mover runtime: the one owner of slots, reservations, transfers and their tasks on a node."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import structlog

from services.mover.gate import TicketGate
from services.mover.landing import Landing
from services.mover.memory import SlotMemory
from services.mover.reservation import Reservations
from services.mover.settings import MoverSettings
from services.mover.slots import SlotRef, SlotRole, SlotTable
from services.mover.slotserver import SlotServer, Tokens
from services.mover.tasks import TaskSet
from services.mover.tickets import Subject, TicketBook, Use, check_target
from services.mover.transport.base import Transport
from worldline.errors import DeadlineExceeded, Fenced, TicketRefused, Unavailable, WorldlineError
from worldline.rpc.census import process_census
from worldline.rpc.channel import ChannelPool
from worldline.state.difference import Difference, check_digests, compare
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Manifest
from worldline.telemetry import span
from worldline.ticket import SignedTicket

_log = structlog.get_logger(__name__)

_MAPPABLE = frozenset({SlotRole.LIVE, SlotRole.SHADOW, SlotRole.PARKED})
#: Longest pause of the reaper; it is woken when a nearer deadline appears.
_REAP_S = 1.0
_QUIET_S = 5.0


def generation_start() -> int:
    """Where a process's generations begin: apart from those of every other process of this node.

    Below 2**52 for a million allocations and more, which JSON readers keep exactly.
    """
    return secrets.randbits(31) << 20


class MoverRuntime:
    """Everything a mover holds. Used from one event loop."""

    def __init__(self, settings: MoverSettings, transport: Transport) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.transport = transport
        self.channels = ChannelPool()
        self.gate = TicketGate(settings.admission_address, self.channels)
        self.slots = SlotTable(
            settings.node_id,
            settings.slot_count,
            settings.slot_bytes,
            self.now(),
            generation_start(),
        )
        self.reservations = Reservations(settings.staged_hold_s)
        self.book = TicketBook()
        self.landings: dict[str, Landing] = {}
        self.cleaners = TaskSet()
        self.pool = ThreadPoolExecutor(settings.digest_threads, thread_name_prefix="mover")
        self._tokens = Tokens()
        self._slot_server = SlotServer(settings.socket_path, self._tokens)
        self._memories: list[SlotMemory] = []
        self._registered: set[int] = set()
        self._reap_now = asyncio.Event()
        self._reaper: asyncio.Task[None] | None = None

    @staticmethod
    def now() -> float:
        """Monotonic seconds, the loop's clock."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Bring up transport, slot memory, slot server and reaper.

        Raises:
            Unavailable: one of them cannot work here; `field` names the setting.
        """
        await self.transport.start()
        _start_threads(self.pool, self.settings.digest_threads)
        for index in range(self.settings.slot_count):
            name = f"worldline-{self.node_id}-{index}"
            self._memories.append(SlotMemory(name, self.settings.slot_bytes))
        await self._slot_server.start()
        self._reaper = asyncio.create_task(self._reap(), name="reaper")

    @property
    def loops(self) -> tuple[asyncio.Task[None], ...]:
        """What runs from start to stop and must not end before."""
        return () if self._reaper is None else (self._reaper,)

    async def stop(self) -> None:
        """Give up what is under way, wait for the memory to be quiet, release everything."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self._slot_server.stop()
        for landing in list(self.landings.values()):
            landing.abort(Unavailable("the mover is shutting down", reason="SHUTTING_DOWN"))
        if not await self.cleaners.finish(_QUIET_S):
            _log.warning("mover.requests_not_quiet")
        await self.channels.close()
        await self.transport.stop()
        self.pool.shutdown(wait=True)
        for memory in self._memories:
            memory.close()

    # --- slots -------------------------------------------------------------------------------

    async def allocate(self, session_id: str, extent_bytes: int) -> SlotRef:
        """A LIVE slot of zeros.

        Raises:
            CapacityExhausted: no free slot, or too large a state.
        """
        slot = self.slots.allocate(session_id, extent_bytes, SlotRole.LIVE, self.now())
        await self._prepare(slot, extent_bytes, zero=True)
        return slot

    def map_slot(self, slot: SlotRef, session_id: str) -> bytes:
        """A one-time token for the slot's descriptor.

        Raises:
            Fenced, Conflict, NotFound: the name is stale, of another session, or quarantined.
        """
        self.slots.resolve(slot, session_id, _MAPPABLE)

        def open_slot() -> int:
            # Again: it may have been released since.
            self.slots.resolve(slot, session_id, _MAPPABLE)
            return self._memories[slot.slot_index].descriptor

        return self._tokens.issue(open_slot, self.now())

    def release(self, slot: SlotRef, session_id: str | None) -> bool:
        """Give a slot back, ending whatever is under way on it. False for an old generation.

        Raises:
            NotFound: another node's slot.
            Fenced: another session's slot.
        """
        try:
            self.slots.resolve(slot, session_id)
        except Fenced as error:
            if error.reason == "SLOT_GENERATION_STALE":
                return False
            raise
        reservation = self.reservations.of_slot(slot)
        if reservation is not None:
            cause = TicketRefused("the slot was released", reason="SLOT_RELEASED")
            self.give_up(reservation.reservation_id, cause)
            return True
        return self.slots.release(slot, self.now())

    def slot_view(self, slot: SlotRef, extent_bytes: int) -> memoryview:
        """The first bytes of a slot that the caller has pinned."""
        return self._memories[slot.slot_index].view[:extent_bytes]

    async def _prepare(self, slot: SlotRef, extent_bytes: int, *, zero: bool) -> None:
        """Pages, zeros and registration, before anybody is told about the slot."""
        memory = self._memories[slot.slot_index]
        loop = asyncio.get_running_loop()
        self.slots.pin(slot)
        try:
            # Shielded: a thread cannot be cancelled, so the pin must outlast it.
            work = loop.run_in_executor(self.pool, lambda: memory.prepare(extent_bytes, zero=zero))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait({work})
                raise
            if slot.slot_index not in self._registered:
                # One at a time per slot: nobody else has it while it is pinned here.
                await self.transport.register(memory.view)
                self._registered.add(slot.slot_index)
        except BaseException:
            self.slots.release(slot, self.now())
            raise
        finally:
            self.slots.unpin(slot, self.now())

    # --- moves -------------------------------------------------------------------------------

    async def reserve(self, ticket: SignedTicket, layout: Layout) -> tuple[str, SlotRef]:
        """Redeem a ticket for a SHADOW slot, prefaulted.

        Raises:
            TicketRefused: forged, expired, used, or for something else.
            CapacityExhausted: no free slot; the ticket stays unused.
        """
        admitted = await self.gate.verify(ticket)
        claims = admitted.claims
        with span("mover.reserve", move_id=claims.move_id, bytes=layout.extent_bytes):
            subject = Subject(claims.session_id, layout.topology_hash, layout.extent_bytes)
            check_target(claims, self.node_id, subject)
            now = self.now()
            self.book.check(claims, Use.RESERVE, now)
            slot = self.slots.allocate(claims.session_id, layout.extent_bytes, SlotRole.SHADOW, now)
            self.book.redeem(claims, Use.RESERVE, admitted.grant_by, now)
            reservation = self.reservations.add(
                uuid.uuid4().hex, claims, slot, layout.extent_bytes, admitted.grant_by
            )
            self.wake_reaper()
            try:
                await self._prepare(slot, layout.extent_bytes, zero=False)
            except BaseException:
                self.reservations.end(reservation.reservation_id, "its slot could not be prepared")
                raise
            return reservation.reservation_id, slot

    async def verify(
        self, reservation_id: str, manifest: Manifest
    ) -> tuple[Digests, Difference | None]:
        """Read the staged bytes back and compare them with the source's digests.

        Raises:
            Conflict, NotFound: nothing staged, or never promotable.
            InvalidInput: another state's manifest, or digests that cannot be compared.
        """
        reservation = self.reservations.verifiable(reservation_id, manifest)
        layout, slot = manifest.layout, reservation.slot
        expected = check_digests(layout, manifest.digests, "manifest.digests")
        view = self.slot_view(slot, layout.extent_bytes)
        self.slots.pin(slot)
        try:
            with span("mover.verify", move_id=reservation.claims.move_id) as active:
                threads = self.settings.digest_threads
                work = asyncio.ensure_future(
                    asyncio.to_thread(digest_slot, layout, view, threads=threads)
                )
                try:
                    own = await asyncio.shield(work)
                except asyncio.CancelledError:
                    await asyncio.wait({work})
                    raise
                difference = compare(layout, expected, own)
                active.set(equal=difference is None)
            self.reservations.verified(reservation_id, equal=difference is None)
            return own, difference
        finally:
            del view
            self.slots.unpin(slot, self.now())

    def promote(self, reservation_id: str, slot: SlotRef) -> None:
        """SHADOW to LIVE; repeating it changes nothing.

        Raises:
            Conflict, NotFound, Fenced: not verified, not promotable, ended, or another slot.
        """
        if self.reservations.promote(reservation_id, slot):
            self.slots.promote(slot, self.now())

    def give_up(self, reservation_id: str, cause: WorldlineError) -> None:
        """End a reservation: its landing is aborted, its slot is free once it is quiet."""
        reservation = self.reservations.end(reservation_id, cause.message)
        if reservation is None:
            return
        landing = self.landings.get(reservation_id)
        if landing is not None:
            landing.abort(cause)
        self.slots.release(reservation.slot, self.now())

    def wake_reaper(self) -> None:
        """A new deadline may be nearer than the one the reaper waits for."""
        self._reap_now.set()

    async def _reap(self) -> None:
        while True:
            for reservation in self.reservations.due(self.now()):
                state = reservation.state.value
                _log.info("reservation.reaped", id=reservation.reservation_id, state=state)
                cause = DeadlineExceeded(
                    f"the reservation was {state} for longer than allowed", reason="LEASE_EXPIRED"
                )
                self.give_up(reservation.reservation_id, cause)
            deadline = self.reservations.next_deadline()
            pause_s = _REAP_S if deadline is None else min(_REAP_S, deadline - self.now())
            self._reap_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s)):
                    await self._reap_now.wait()

    def census(self) -> dict[str, int]:
        """What this process holds."""
        states = self.slots.states()
        roles = {
            f"slots_{role.name.lower()}": sum(state.role is role for state in states)
            for role in SlotRole
        }
        return {
            **process_census(),
            **self.transport.census(),
            **roles,
            "reservations": len(self.reservations.ids()),
            "landings": len(self.landings),
            "tickets_remembered": len(self.book),
            "slot_tokens": len(self._tokens),
            "channels": len(self.channels),
        }


def _start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Start every worker now, so that a count of threads means the same before and after."""
    barrier = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(barrier.wait)
    barrier.wait(timeout=5)
