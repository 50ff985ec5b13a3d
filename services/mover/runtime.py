"""Mover runtime: the one owner of slots, reservations, transfers and their tasks on a node."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog

from services.mover.devices import describe_devices
from services.mover.digesting import SlotDigest, slot_digest
from services.mover.gate import TicketGate
from services.mover.givingway import GAVE_WAY, gave_way
from services.mover.landing import Landing
from services.mover.memory.allocate import allocate_memory
from services.mover.memory.base import Descriptor, Export, SlotMemory
from services.mover.memory.host import HostMemory
from services.mover.memory.pages import HUGE_BYTES, HugePages, PageKind, remedy
from services.mover.parking import Parking
from services.mover.reservation import Reservation, Reservations
from services.mover.reserving import Reserving
from services.mover.settings import MoverSettings
from services.mover.slotqueue import SlotQueue
from services.mover.slots import (
    GENERATION_STALE,
    MOVER_REPLACED,
    Shelf,
    SlotRef,
    SlotRole,
    SlotState,
    SlotTable,
)
from services.mover.slotserver import SlotServer, Tokens
from services.mover.staging import Staging, cuda_staging
from services.mover.tasks import TaskSet
from services.mover.tickets import Subject, TicketBook, Use, check_target
from services.mover.transport.base import Endpoint, Transport
from services.mover.wirekeeper import WireKeeper
from services.mover.wires import Wires
from services.mover.wirewait import offer_by_s
from worldline.errors import (
    DeadlineExceeded,
    Fenced,
    TicketRefused,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.census import process_census
from worldline.rpc.channel import ChannelPool
from worldline.state.gf2 import make_tables
from worldline.state.layout import Layout
from worldline.telemetry import carried, instruments, span
from worldline.ticket import MovePurpose, SignedTicket, TicketClaims

_log = structlog.get_logger(__name__)

_MAPPABLE = frozenset({SlotRole.LIVE, SlotRole.SHADOW})
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
        """Takes nothing yet.

        Raises:
            Unavailable: a device does not exist; `field` is `devices`.
        """
        self.settings = settings
        self.node_id = settings.node_id
        self.transport = transport
        self.channels = ChannelPool()
        self.gate = TicketGate(settings.admission_address, self.channels)
        self.devices = describe_devices(settings.devices)
        shelves = tuple(
            Shelf(device.name, settings.slot_count, settings.slot_bytes, device.uuid)
            for device in self.devices
        )
        self.slots = SlotTable(settings.node_id, shelves, self.now(), generation_start())
        self.queue = SlotQueue(self.slots, self._end_probe, settings.probe_gives_way_within_s)
        self.reservations = Reservations(settings.staged_hold_s)
        self.book = TicketBook()
        self.reserving = Reserving()
        #: Verifications that were asked for beside the push wait for the landing here.
        self.landing = Reserving()
        self.wires = WireKeeper(
            Wires(
                settings.node_id,
                into_max=settings.wires_into_max,
                out_of_max=settings.wires_out_of_max,
            )
        )
        self.landings: dict[str, Landing] = {}
        self.cleaners = TaskSet()
        self.pool = ThreadPoolExecutor(settings.digest_threads, thread_name_prefix="mover")
        self.parking = Parking(self)
        self.staging: Staging | None = None
        self._tokens = Tokens()
        self._slot_server = SlotServer(settings.socket_path, self._tokens)
        self._memories: list[SlotMemory] = []
        self._registered: set[int] = set()
        self._reap_now = asyncio.Event()
        self._reaper: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._wiring: asyncio.Task[None] | None = None

    @staticmethod
    def now() -> float:
        """Monotonic seconds, the loop's clock."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Bring up transport, slot memory, slot server and reaper.

        Raises:
            Unavailable: one of them cannot work here; `field` names the setting.
            CapacityExhausted: a device has no memory for its slots.
        """
        await self.transport.start()
        _start_threads(self.pool, self.settings.digest_threads)
        await asyncio.to_thread(self._allocate_memories)
        # Else the first verified move would make them, at both its ends, while its world stands.
        await asyncio.to_thread(make_tables, self.settings.slot_bytes)
        if self.settings.prefault:
            await self._prefault()
        self.staging = cuda_staging(self.settings.devices, self.settings.staging_rings)
        if self.staging is not None:
            await asyncio.to_thread(self.staging.start)
            for view in self.staging.views:
                await self.transport.register(view)
        await self.parking.start()
        await self._slot_server.start()
        self._reaper = asyncio.create_task(self._reap(), name="reaper")
        self._watch = asyncio.create_task(self.transport.watch(), name="transport-watch")
        self._wiring = asyncio.create_task(self.wires.run(), name="wires")

    def _allocate_memories(self) -> None:
        for index, state in enumerate(self.slots.states()):
            name = f"worldline-{self.node_id}-{index}"
            slot_bytes = self.slots.shelf(state.device).slot_bytes
            huge_pages = self.settings.huge_pages
            self._memories.append(allocate_memory(state.device, name, slot_bytes, huge_pages))
        self._report_pages()

    def _report_pages(self) -> None:
        """Which pages the slots have; where they are small, what would mend it."""
        hosts = [memory for memory in self._memories if isinstance(memory, HostMemory)]
        small_bytes = sum(memory.size_bytes for memory in hosts if memory.pages is PageKind.SMALL)
        kinds = {memory.pages.value for memory in hosts}
        _log.info("slots.pages", kinds=",".join(sorted(kinds)), slots=len(hosts))
        if small_bytes >= HUGE_BYTES and self.settings.huge_pages is HugePages.AUTO:
            _log.info("slots.small_pages", bytes=small_bytes, remedy=remedy(small_bytes))

    async def _prefault(self) -> None:
        """Take all memory and register it, so that no move pays for either."""
        started_s = self.now()
        for index, memory in enumerate(self._memories):
            await asyncio.to_thread(memory.populate, memory.size_bytes)
            await self._register(index)
        _log.info("slots.prefaulted", slots=len(self._memories), seconds=self.now() - started_s)

    async def _register(self, index: int) -> None:
        """Once per slot."""
        if index in self._registered:
            return
        memory = self._memories[index]
        exported = memory.export()
        number = exported.number if isinstance(exported, Descriptor) else None
        await self.transport.register(memory.whole, number)
        self._registered.add(index)

    @property
    def loops(self) -> tuple[asyncio.Task[None], ...]:
        """What runs from start to stop and must not end before."""
        tasks = (self._reaper, self._watch, self._wiring)
        return tuple(task for task in tasks if task is not None)

    async def stop(self) -> None:
        """Give up what is under way, wait for the memory to be quiet, release everything."""
        for task in self.loops:
            task.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        await self._slot_server.stop()
        for landing in list(self.landings.values()):
            landing.abort(Unavailable("the mover is shutting down", reason="SHUTTING_DOWN"))
        if not await self.cleaners.finish(_QUIET_S):
            _log.warning("mover.requests_not_quiet")
        await self.parking.stop()
        await self.channels.close()
        await self.transport.stop()
        if self.staging is not None:
            await asyncio.to_thread(self.staging.close)
        self.pool.shutdown(wait=True)
        for memory in self._memories:
            memory.close()

    # --- slots -------------------------------------------------------------------------------

    async def allocate(self, session_id: str, extent_bytes: int, device: str = "") -> SlotRef:
        """A LIVE slot of zeros on that device; on the first where it is empty.

        Raises:
            InvalidInput, CapacityExhausted: as `SlotQueue.take`.
        """
        slot = await self.queue.take(session_id, extent_bytes, SlotRole.LIVE, device)
        await self._prepare(slot, extent_bytes, zero=True)
        return slot

    async def allocate_shadow(
        self, session_id: str, extent_bytes: int, device: str = ""
    ) -> SlotRef:
        """A SHADOW slot that whoever asks for it fills, then promotes or releases.

        Raises:
            InvalidInput, CapacityExhausted: as `SlotQueue.take`.
        """
        slot = await self.queue.take(session_id, extent_bytes, SlotRole.SHADOW, device)
        await self._prepare(slot, extent_bytes, zero=False)
        return slot

    def map_slot(self, slot: SlotRef, session_id: str) -> tuple[bytes, SlotState]:
        """A one-time token for the slot's memory, and the slot as it stands.

        Raises:
            Fenced, Conflict, NotFound: the name is stale, of another session, or quarantined.
        """
        state = self.slots.resolve(slot, session_id, _MAPPABLE)

        def open_slot() -> Export:
            # Again: it may have been released since.
            self.slots.resolve(slot, session_id, _MAPPABLE)
            return self._memories[slot.slot_index].export()

        return self._tokens.issue(open_slot, self.now()), state

    def release(self, slot: SlotRef, session_id: str | None) -> bool:
        """Give a slot back, ending whatever is under way on it. False for an old generation.

        Raises:
            NotFound: another node's slot.
            Fenced: another session's slot.
        """
        try:
            self.slots.resolve(slot, session_id)
        except Fenced as error:
            if error.reason in (GENERATION_STALE, MOVER_REPLACED):
                return False
            raise
        reservation = self.reservations.of_slot(slot)
        if reservation is not None:
            cause = TicketRefused("the slot was released", reason="SLOT_RELEASED")
            self.give_up(reservation.reservation_id, cause)
            return True
        return self.slots.release(slot, self.now())

    def slot_memory(self, slot: SlotRef) -> SlotMemory:
        """The memory of a slot that the caller has pinned."""
        return self._memories[slot.slot_index]

    def digest(self, layout: Layout, memory: SlotMemory) -> SlotDigest:
        """The digest of one transfer's bytes in a slot."""
        return slot_digest(layout, memory, self.pool)

    async def _prepare(self, slot: SlotRef, extent_bytes: int, *, zero: bool) -> None:
        """Pages, zeros and registration, before anybody is told about the slot."""
        memory = self._memories[slot.slot_index]
        self.slots.pin(slot)
        try:
            if zero or not memory.has_pages(extent_bytes):
                await self._on_a_thread(partial(memory.prepare, extent_bytes, zero=zero))
            else:
                memory.prepare(extent_bytes, zero=False)
            # One at a time per slot: nobody else has it while it is pinned here.
            await self._register(slot.slot_index)
        except BaseException:
            self.slots.release(slot, self.now())
            raise
        finally:
            self.slots.unpin(slot, self.now())

    async def _on_a_thread(self, work: Callable[[], None]) -> None:
        """A thread cannot be cancelled: this ends after it, so that a pin around it lasts."""
        working = asyncio.get_running_loop().run_in_executor(self.pool, carried(work))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait({working})
            raise

    # --- the wire ----------------------------------------------------------------------------

    async def connect(self, worker_address: bytes, own: str, peer: str) -> Endpoint:
        """An endpoint for memory on the device `own`, to a peer whose memory is on `peer`.

        It stages where its lanes cannot carry that memory.

        Raises:
            TransferFailed: the address is malformed or no lane reaches it.
        """
        endpoint = await self.transport.connect(worker_address)
        return endpoint if self.staging is None else self.staging.over(endpoint, own, peer)

    async def park(self, endpoint: Endpoint) -> None:
        """Give back an endpoint of `connect` whose requests all ended well."""
        inner = endpoint if self.staging is None else await self.staging.unwrap(endpoint)
        if inner is not None:
            await self.transport.park(inner)

    # --- moves -------------------------------------------------------------------------------

    async def reserve(
        self, ticket: SignedTicket, layout: Layout, device: str = ""
    ) -> tuple[str, SlotRef]:
        """Redeem a ticket for a SHADOW slot on that device (empty: the first), prefaulted.

        Raises:
            InvalidInput: this node has no slots on that device.
            TicketRefused: forged, expired, used, or for something else.
            CapacityExhausted: no free slot; the ticket stays unused.
        """
        admitted = await self.gate.verify(ticket)
        claims = admitted.claims
        with span("mover.reserve", move_id=claims.move_id, bytes=layout.extent_bytes):
            subject = Subject(claims.session_id, layout.topology_hash, layout.extent_bytes)
            check_target(claims, self.node_id, subject)
            self.book.check(claims, Use.RESERVE, self.now())
            slot = await self._shadow(claims, layout.extent_bytes, device)
            try:
                self.book.redeem(claims, Use.RESERVE, admitted.grant_by, self.now())
            except TicketRefused:
                # Another call with it, while this one waited for a slot.
                self.slots.release(slot, self.now())
                raise
            reservation = self.reservations.add(
                claims, slot, layout.extent_bytes, offer_by_s(claims, admitted.grant_by)
            )
            self.wake_reaper()
            reservation_id = reservation.reservation_id
            try:
                await self._prepare(slot, layout.extent_bytes, zero=False)
                self.reservations.prepared(reservation_id)
            except BaseException:
                self.reservations.end(reservation_id, "its slot could not be prepared")
                self.landing.decided(reservation_id)
                raise
            finally:
                self.reserving.decided(reservation_id)
            return reservation_id, slot

    async def _shadow(self, claims: TicketClaims, extent_bytes: int, device: str) -> SlotRef:
        """A slot for what the ticket allows; a probe's gives way."""
        if claims.purpose is MovePurpose.PROBE:
            return self.queue.take_for_probe(claims.session_id, extent_bytes, device)
        return await self.queue.take(claims.session_id, extent_bytes, SlotRole.SHADOW, device)

    def _end_probe(self, slot: SlotRef) -> None:
        """Somebody needs its slot: its reservation ends, and is told why."""
        reservation = self.reservations.of_slot(slot)
        if reservation is None:
            self.slots.release(slot, self.now())
            return
        _log.info("probe.gave_way", reservation=reservation.reservation_id, slot=slot.slot_index)
        self.give_up(reservation.reservation_id, gave_way(reservation.reservation_id))

    async def reserved(self, reservation_id: str, until: float) -> Reservation:
        """The reservation; one that is being made, or still to come, is waited for `until` then.

        Raises:
            NotFound, Conflict: as `Reservations.get`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not self.reservations.decided(reservation_id):
                    await self.reserving.wait(reservation_id)
        return self.reservations.get(reservation_id)

    def promote(self, reservation_id: str, slot: SlotRef) -> None:
        """SHADOW to LIVE; repeating it changes nothing.

        Raises:
            Conflict, NotFound, Fenced: not verified, not promotable, ended, or another slot.
        """
        if self.reservations.promote(reservation_id, slot):
            self.slots.promote(slot, self.now())

    def give_up(self, reservation_id: str, cause: WorldlineError) -> None:
        """End a reservation: its landing is aborted, its slot is free once it is quiet."""
        reservation = self.reservations.end(
            reservation_id, cause.message, gave_way=cause.reason == GAVE_WAY
        )
        if reservation is None:
            return
        self.landing.decided(reservation_id)
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
                instruments().reaped("reservation")
                cause = DeadlineExceeded(
                    f"the reservation was {state} for longer than allowed", reason="LEASE_EXPIRED"
                )
                self.give_up(reservation.reservation_id, cause)
            self._tokens.expire(self.now())
            deadline = self.reservations.next_deadline()
            pause_s = _REAP_S if deadline is None else min(_REAP_S, deadline - self.now())
            self._reap_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s)):
                    await self._reap_now.wait()

    def slot_counts(self) -> dict[tuple[str, ...], float]:
        """Slots by role, for the metrics; from any thread."""
        roles = Counter(state.role for state in self.slots.states())
        return {(role.name.lower(),): roles[role] for role in SlotRole}

    def leases(self) -> dict[tuple[str, ...], float]:
        """Reservations in force, for the metrics; from any thread."""
        return {("reservation",): self.reservations.in_force()}

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
            **self.parking.census(),
            **({} if self.staging is None else self.staging.census()),
            **self.wires.census(),
            **roles,
            "reservations": len(self.reservations.ids()),
            "landings": len(self.landings),
            "tickets_remembered": len(self.book),
            "slot_tokens": len(self._tokens),
            "slots_waited_for": len(self.queue),
            "channels": len(self.channels),
        }


def _start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Start every worker now, so that a count of threads means the same before and after."""
    barrier = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(barrier.wait)
    barrier.wait(timeout=5)
