"""Opening and closing of sessions: each on a task of its own that no client can interrupt."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass, replace

import structlog

from services.placement import session_table
from services.placement.choose import Chosen, choose_engine, drained, no_room
from services.placement.obligations import Obligations
from services.placement.openings import Openings
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.phases import Outcome
from services.placement.records import SessionRecord, SessionState, WorldKind
from services.placement.room import RoomKeeper, RoomWish
from services.placement.runtime import Runtime
from services.placement.values import FailedWorld, Party
from services.placement.wire import slot_from_proto, world_to_proto
from worldline.contract import Contract, contract_to_proto
from worldline.errors import CapacityExhausted, Conflict, NotFound, Unavailable, WorldlineError
from worldline.rpc.channel import call
from worldline.state.codec import layout_from_proto
from worldline.telemetry import instruments, note_verdict, span
from worldline.v1 import engine_pb2
from worldline.verdict import RejectReason, Verdict

_log = structlog.get_logger(__name__)

_ATTEMPTS = 3
_NOT_DETERMINISTIC = RejectReason.NOT_DETERMINISTIC.name
#: About what it takes to undo an opening that a restart left half done.
_UNDONE_MS = 500
_CLOSABLE = (SessionState.LIVE, SessionState.SUSPENDED, SessionState.LOST)

Opened = SessionRecord | Verdict


@dataclass(frozen=True, slots=True)
class OpenWish:
    """What a client asks for. `node_id` empty: placement chooses."""

    contract: Contract
    world: WorldKind
    node_id: str
    idempotency_key: str
    client_id: str


class Sessions:
    """Opens and closes sessions."""

    def __init__(
        self,
        runtime: Runtime,
        peers: Peers,
        obligations: Obligations,
        deadlines: Deadlines,
        room: RoomKeeper,
    ) -> None:
        """`room` is the one that moves ask too: all who ask about an engine take turns."""
        self._runtime = runtime
        self._peers = peers
        self._obligations = obligations
        self._deadlines = deadlines
        self.room = room
        #: Branches of forks among them.
        self.openings = Openings()
        self._opening: dict[str, asyncio.Task[Opened]] = {}
        #: Extents seen of each preset: what a new session of it will take.
        self._extent_bytes: dict[str, int] = {}

    async def start(self) -> None:
        """Close what a crash left half open: its client never learned its name. From now on also
        what this process leaves so.
        """
        for session in await self._runtime.sessions():
            if session.extent_bytes:
                self._extent_bytes[session.world.preset] = session.extent_bytes
            if session.state is SessionState.OPENING:
                self._start_to_abandon(session)
        self._runtime.on_reap(self.reap)

    async def reap(self) -> None:
        """Undo openings that were in nobody's hand at this look and at the one before."""
        forsaken = self.openings.forsaken(await self._runtime.sessions())
        if not forsaken:
            return
        _log.warning("sessions.forsaken", sessions=[one.session_id for one in forsaken])
        instruments().reaped("opening", len(forsaken))
        for session in forsaken:
            self._start_to_abandon(session)

    def _start_to_abandon(self, session: SessionRecord) -> None:
        self._runtime.owner.start(self.abandon(session), f"abandon {session.session_id}")

    async def open(self, wish: OpenWish) -> Opened:
        """A live session, or the verdict that there is no room for it.

        The earlier answer when the idempotency key was used before. The opening goes on when the
        caller is cancelled.

        Raises:
            NotFound: no such node. InvalidInput: no engine serves the preset. Conflict: the key
                was used for something else. Unavailable: the session of this key is left from
                before a restart and is being undone.
            WorldlineError: what the engine says about a world that it cannot make.
        """
        self._runtime.refuse_when_stopping()
        key = wish.idempotency_key
        task = self._opening.get(key)
        if task is None:
            task = self._runtime.owner.start(self._open_once(wish), "open session")
            if key:
                # Before anything is awaited: two callers that come at once open one session.
                self._opening[key] = task
                task.add_done_callback(lambda _: self._opening.pop(key, None))
        opened = await asyncio.shield(task)
        return opened if isinstance(opened, Verdict) else _same_request(opened, wish)

    async def _open_once(self, wish: OpenWish) -> Opened:
        if wish.idempotency_key:
            earlier = await self._runtime.directory.do(
                session_table.session_by_key, wish.idempotency_key
            )
            if earlier is not None:
                return earlier
        return await self._open(wish)

    async def _open(self, wish: OpenWish) -> Opened:
        with span("session.open", preset=wish.world.preset, node_id=wish.node_id) as active:
            opened = await self._open_traced(wish)
            if isinstance(opened, Verdict):
                note_verdict(active, opened)
                active.fail(opened.label)
            else:
                active.set(session_id=opened.session_id, engine_id=opened.owner)
                self._runtime.origins.note(opened.session_id, active.traceparent)
        return opened

    async def _open_traced(self, wish: OpenWish) -> Opened:
        while True:
            chosen = await self._choose(wish)
            if isinstance(chosen, Verdict):
                return chosen
            party = self._runtime.fleet.party(chosen.engine_id)
            here = replace(wish, contract=wish.contract.dropped()) if chosen.tier_dropped else wish
            try:
                return await self._open_at(here, party)
            except Conflict as error:
                if error.reason != _NOT_DETERMINISTIC:
                    raise
                # Its self-check came with this session. It is not chosen again: this ends.
                differs = {wish.world.preset: error.message}
                self._runtime.fleet.note_self_checks(
                    party.engine_id, party.engine_incarnation, differs
                )

    async def _open_at(self, wish: OpenWish, party: Party) -> Opened:
        await self._learn_extent(wish, party)
        room = RoomWish(
            wish.contract,
            wish.world.preset,
            self._extent_bytes[wish.world.preset],
            party,
            wish.client_id,
        )
        session = _opening(wish, party)
        with self.openings.in_hand((session.session_id,)):
            return await self._open_in(session, room)

    async def _open_in(self, session: SessionRecord, room: RoomWish) -> Opened:
        party = room.party
        async with self.room.decided(room) as verdict:
            if not verdict.admitted:
                return verdict
            if self._runtime.fleet.cordoned(party.node_id):
                # A drain that began meanwhile counts on seeing whoever came before it.
                return Verdict.reject(RejectReason.NO_TARGET, drained(party.node_id))
            await self._runtime.directory.do(session_table.insert_session, session)
        try:
            return await self._make_world(session)
        except CapacityExhausted as error:
            await self.abandon(session)
            return no_room(party.node_id, error, RejectReason.DEVICE_FULL)
        except WorldlineError:
            await self.abandon(session)
            raise

    async def _choose(self, wish: OpenWish) -> Chosen | Verdict:
        runtime = self._runtime
        if wish.node_id:
            runtime.fleet.node(wish.node_id)
        fleet = runtime.fleet.candidates(
            await runtime.sessions(),
            runtime.open_move_tasks(),
            asyncio.get_running_loop().time(),
        )
        known = self._extent_bytes.get(wish.world.preset, 0)
        return choose_engine(fleet, wish.node_id, known, wish.world.preset, wish.contract)

    async def _learn_extent(self, wish: OpenWish, party: Party) -> None:
        """Ask the engine what a state of an unseen preset takes: admission judges by its size."""
        if wish.world.preset in self._extent_bytes:
            return
        request = engine_pb2.WarmWorldRequest(world=world_to_proto(wish.world))
        answer: engine_pb2.WarmWorldResponse = await ask_again(
            lambda: call(
                self._peers.engine(party.engine_id).WarmWorld,
                request,
                timeout_s=self._deadlines.warm_s,
            ),
            attempts=_ATTEMPTS,
            gone=lambda: False,
        )
        self._extent_bytes[wish.world.preset] = answer.extent_bytes

    def room_wish(self, session: SessionRecord, party: Party, client_id: str) -> RoomWish:
        """What admission is asked of a session that was suspended and is to happen there."""
        preset, extent_bytes = session.world.preset, session.extent_bytes
        return RoomWish(session.contract, preset, extent_bytes, party, client_id)

    async def _make_world(self, session: SessionRecord) -> SessionRecord:
        request = engine_pb2.OpenWorldRequest(
            session_id=session.session_id,
            epoch=session.epoch,
            contract=contract_to_proto(session.contract),
            world=world_to_proto(session.world),
        )
        answer: engine_pb2.OpenWorldResponse = await call(
            self._peers.engine(session.owner).OpenWorld,
            request,
            timeout_s=self._deadlines.open_s,
        )
        layout = layout_from_proto(answer.layout)
        live = replace(
            session,
            state=SessionState.LIVE,
            slot=slot_from_proto(answer.slot),
            layout=answer.layout.SerializeToString(deterministic=True),
            topology_hash=layout.topology_hash,
            extent_bytes=layout.extent_bytes,
        )
        still_opening = await self._runtime.directory.do(
            session_table.opened,
            live.session_id,
            slot_from_proto(answer.slot),
            live.layout,
            live.topology_hash,
            live.extent_bytes,
        )
        if not still_opening:
            raise Conflict(f"session {session.session_id} was closed while it opened")
        self._extent_bytes[session.world.preset] = layout.extent_bytes
        return live

    async def abandon(self, session: SessionRecord) -> None:
        """Undo an opening whose effect at the engine is unknown. Its slot, if any, is orphaned."""
        with self.openings.in_hand((session.session_id,)):
            await self._close_world(session)
            await self._runtime.directory.do(
                session_table.set_state,
                session.session_id,
                (SessionState.OPENING,),
                SessionState.CLOSED,
            )

    async def close(self, session_id: str) -> None:
        """Close a session; closing a closed one changes nothing.

        Raises:
            NotFound: no such session. Conflict: it is opening or in a move.
        """
        work = self._close(session_id)
        await asyncio.shield(self._runtime.owner.start(work, f"close {session_id}"))

    def close_failed(self, failed: FailedWorld, engine_id: str, incarnation: str) -> None:
        """Close the session of a world that its owner gave up; anyone else's word is dropped."""
        self._runtime.owner.start(
            self._close_failed(failed, engine_id, incarnation), f"close {failed.session_id}"
        )

    async def _close_failed(self, failed: FailedWorld, engine_id: str, incarnation: str) -> None:
        session_id = failed.session_id
        try:
            session = await self._runtime.session(session_id)
        except NotFound:
            return
        said_by = (engine_id, incarnation, failed.epoch)
        owned_by = (session.owner, session.owner_incarnation, session.epoch)
        # One in a move is told again with the next renewal, when the move has ended.
        if said_by != owned_by or session.state not in _CLOSABLE:
            return
        if session.state is SessionState.CLOSED or self._runtime.closing[session_id]:
            return
        _log.warning("session.failed", session_id=session_id, error=failed.message)
        await self._close(session_id)

    async def _close(self, session_id: str) -> None:
        # Counted before the record says so: from then on its slot is nobody's, and the engine
        # may write there until the boundary of its block.
        self._runtime.closing[session_id] += 1
        try:
            await self._close_counted(session_id)
        finally:
            self._runtime.closing -= Counter((session_id,))

    async def _close_counted(self, session_id: str) -> None:
        while True:
            session = await self._runtime.session(session_id)
            if session.state is SessionState.CLOSED:
                return
            if session.state not in _CLOSABLE:
                raise _not_closable(session)
            # A move that begins or ends between the look and this makes us look again.
            if await self._runtime.directory.do(
                session_table.set_state, session_id, _CLOSABLE, SessionState.CLOSED
            ):
                break
        self._runtime.origins.forget(session_id)
        await self._take_down(session)

    async def _take_down(self, session: SessionRecord) -> None:
        """The directory has it closed: see the world gone and its slot back."""
        # A commit may have moved it between our look and the close.
        present = await self._runtime.session(session.session_id)
        if present.parked is not None:
            parked = present.parked
            party = Party("", "", parked.node_id, parked.node_incarnation)
            await self._obligations.drop_parked(party, parked.park_id, present.session_id)
        outcome = await self._close_world(present)
        if present.slot is None or outcome is Outcome.REFUSED:
            return
        try:
            await self._obligations.release_slot(present.slot, present.session_id)
        except WorldlineError as error:
            # Named as an orphan at the node's next renewal, and released there.
            _log.warning("slot.release_failed", slot=str(present.slot), reason=error.reason)

    async def _close_world(self, session: SessionRecord) -> Outcome:
        try:
            party = self._runtime.fleet.party(session.owner)
        except NotFound:
            return Outcome.GONE
        party = replace(party, engine_incarnation=session.owner_incarnation)
        return await self._obligations.close_world(party, session.session_id, session.epoch)


def _opening(wish: OpenWish, party: Party) -> SessionRecord:
    return SessionRecord(
        session_id=f"session-{secrets.token_hex(12)}",
        owner=party.engine_id,
        owner_incarnation=party.engine_incarnation,
        node_id=party.node_id,
        epoch=1,
        state=SessionState.OPENING,
        contract=wish.contract,
        world=wish.world,
        idempotency_key=wish.idempotency_key,
    )


def _same_request(earlier: SessionRecord, wish: OpenWish) -> SessionRecord:
    if earlier.state is SessionState.OPENING:
        # Of the process before us, and about to be undone: the next try opens a whole one.
        raise Unavailable(
            f"session {earlier.session_id} is left from before a restart and is being undone; "
            "ask again",
            reason="SESSION_OPENING",
            field="idempotency_key",
            retry_after_ms=_UNDONE_MS,
        )
    if earlier.world != wish.world or earlier.state is SessionState.CLOSED:
        raise Conflict(
            "the idempotency key was used for another session",
            reason="IDEMPOTENCY_KEY_REUSED",
            field="idempotency_key",
        )
    return earlier


def _not_closable(session: SessionRecord) -> Conflict:
    reasons = {
        SessionState.MOVING: "MOVE_IN_PROGRESS",
        SessionState.SUSPENDING: "SUSPEND_IN_PROGRESS",
        SessionState.RESUMING: "RESUME_IN_PROGRESS",
    }
    return Conflict(
        f"session {session.session_id} is {session.state.value}: close it when that has ended",
        reason=reasons.get(session.state, "SESSION_OPENING"),
        field="session_id",
    )
