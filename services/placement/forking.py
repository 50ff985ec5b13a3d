"""Forking: branches of a live session, each fork on a task of its own that no client can interrupt.

Admission decides each branch as a session on its parent's device, those before it counted. The
branches are put on record together, made by the engine together, and live together.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import grpc
import structlog

from services.placement import branch_table
from services.placement.branch_table import MadeBranch
from services.placement.choose import drained, no_room
from services.placement.fork import (
    ForkWish,
    check_parent,
    no_room_for,
    plan_branches,
    same_request,
)
from services.placement.opening import Sessions
from services.placement.peers import Deadlines, Peers
from services.placement.records import SessionRecord
from services.placement.room import RoomWish
from services.placement.runtime import Runtime
from services.placement.wire import slot_from_proto
from worldline.contract import contract_to_proto
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    InvalidInput,
    InvariantBroken,
    Unavailable,
    WorldlineError,
)
from worldline.rpc.channel import call
from worldline.rpc.status import is_ours
from worldline.state.codec import layout_from_proto
from worldline.telemetry import note_verdict, span
from worldline.v1 import engine_pb2
from worldline.verdict import RejectReason, Verdict

_log = structlog.get_logger(__name__)

Branches = tuple[SessionRecord, ...]
Forked = Branches | Verdict


class Forks:
    """Forks sessions."""

    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        peers: Peers,
        deadlines: Deadlines,
    ) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._room = sessions.room
        self._peers = peers
        self._deadlines = deadlines
        self._forking: dict[str, asyncio.Task[Forked]] = {}

    async def fork(self, wish: ForkWish) -> Forked:
        """Live branches, by number, or the verdict that there is no room for all of them.

        The earlier answer when the idempotency key was used before. The fork goes on when the
        caller is cancelled.

        Raises:
            NotFound: no such session. Conflict: it does not live, or not as it did when the fork
                began; or the key was used for something else. Unavailable: the branches of this key
                are left from before a restart and are being undone.
            WorldlineError: what the engine says about a world that it cannot fork.
        """
        self._runtime.refuse_when_stopping()
        key = wish.idempotency_key
        task = self._forking.get(key)
        if task is None:
            work = self._fork_once(wish)
            task = self._runtime.owner.start(work, f"fork {wish.session_id}")
            if key:
                # Before anything is awaited: two callers that come at once make one fork.
                self._forking[key] = task
                task.add_done_callback(lambda _: self._forking.pop(key, None))
        forked = await asyncio.shield(task)
        if isinstance(forked, Verdict) or not key:
            return forked
        return same_request(forked, wish)

    async def _fork_once(self, wish: ForkWish) -> Forked:
        if wish.idempotency_key:
            earlier = await self._runtime.directory.do(
                branch_table.branches_by_keys, wish.keys_possible
            )
            if earlier:
                return earlier
        with span("session.fork", session_id=wish.session_id, branches=wish.count) as active:
            forked = await self._fork(wish)
            if isinstance(forked, Verdict):
                note_verdict(active, forked)
                active.fail(forked.label)
            else:
                for one in forked:
                    self._runtime.origins.note(one.session_id, active.traceparent)
        return forked

    async def _fork(self, wish: ForkWish) -> Forked:
        parent = await self._runtime.session(wish.session_id)
        check_parent(parent)
        party = self._runtime.fleet.party(parent.owner)
        room = RoomWish(
            wish.contract or parent.contract,
            parent.world.preset,
            parent.extent_bytes,
            party,
            wish.client_id,
        )
        names = _names(wish)
        with self._sessions.openings.in_hand(names):
            return await self._fork_in(parent, wish, room, names)

    async def _fork_in(
        self, parent: SessionRecord, wish: ForkWish, room: RoomWish, names: list[str]
    ) -> Forked:
        async with self._room.decided(room) as first:
            refused = await self._room_for_all(parent, wish, room, first)
            if refused is not None:
                return refused
            branches = await self._record(parent, wish, names)
        try:
            return await self._make(parent, wish, branches)
        except _Refused as no:
            await self._abandon(branches)
            await self._runtime.directory.do(branch_table.return_numbers, names)
            if isinstance(no.error, CapacityExhausted):
                return no_room(room.party.node_id, no.error, RejectReason.DEVICE_FULL)
            raise no.error from None
        except WorldlineError:
            # Whatever was made under their numbers, none is given out again.
            await self._abandon(branches)
            raise

    async def _room_for_all(
        self, parent: SessionRecord, wish: ForkWish, room: RoomWish, verdict: Verdict
    ) -> Verdict | None:
        """Why not; None where there is room for every branch. `verdict` is on the first."""
        node_id = room.party.node_id
        ahead = plan_branches(parent, replace(wish, idempotency_key=""), _names(wish), 0)
        for index in range(wish.count):
            if index > 0:
                verdict = await self._room.ask(room, ahead[:index])
            if not verdict.admitted:
                return no_room_for(verdict, index, wish)
            if self._runtime.fleet.cordoned(node_id):
                # A drain that began meanwhile counts on seeing whoever came before it.
                return Verdict.reject(RejectReason.NO_TARGET, drained(node_id))
        return None

    async def _record(self, parent: SessionRecord, wish: ForkWish, names: list[str]) -> Branches:
        branches = await self._runtime.directory.do(
            branch_table.insert_branches,
            parent,
            lambda lowest: plan_branches(parent, wish, names, lowest),
        )
        if branches is None:
            present = await self._runtime.session(parent.session_id)
            check_parent(present)
            raise Conflict(
                f"session {parent.session_id} changed hands while its fork was admitted; ask again",
                reason="PARENT_GONE",
                field="session_id",
            )
        return branches

    async def _make(self, parent: SessionRecord, wish: ForkWish, branches: Branches) -> Branches:
        request = engine_pb2.ForkWorldRequest(
            session_id=parent.session_id,
            epoch=parent.epoch,
            contract=contract_to_proto(wish.contract or parent.contract),
            same_noise=wish.same_noise,
        )
        for one in branches:
            number = 0 if one.forked_from is None else one.forked_from.branch
            request.branches.add(session_id=one.session_id, epoch=one.epoch, number=number)
        answer = await self._ask_engine(parent, request)
        live = await self._runtime.directory.do(
            branch_table.branches_made, _made(branches, answer), answer.block_index
        )
        if live is None:
            raise Conflict(f"branches of session {parent.session_id} were closed while they opened")
        return live

    async def _ask_engine(
        self, parent: SessionRecord, request: engine_pb2.ForkWorldRequest
    ) -> engine_pb2.ForkWorldResponse:
        fork = self._peers.engine(parent.owner).ForkWorld
        try:
            answer: engine_pb2.ForkWorldResponse = await call(
                fork, request, timeout_s=self._deadlines.fork_s
            )
        except WorldlineError as error:
            if _says_no(error):
                raise _Refused(error) from error
            raise
        return answer

    async def _abandon(self, branches: Branches) -> None:
        """Undo a fork whose effect at the engine is unknown."""
        await asyncio.gather(*(self._sessions.abandon(one) for one in branches))


class _Refused(Exception):
    """The engine has made nothing, and says why."""

    def __init__(self, error: WorldlineError) -> None:
        super().__init__(str(error))
        self.error = error


def _says_no(error: WorldlineError) -> bool:
    """Whether the engine itself has answered, and knows that it has made nothing."""
    if isinstance(error, Unavailable | InvariantBroken):
        return False
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and is_ours(cause)


def _names(wish: ForkWish) -> list[str]:
    return [f"session-{secrets.token_hex(12)}" for _ in range(wish.count)]


def _made(branches: Branches, answer: engine_pb2.ForkWorldResponse) -> tuple[MadeBranch, ...]:
    """What the engine made, in the order asked for.

    Raises:
        InvalidInput: not as many, or a slot or a layout that does not parse.
    """
    if len(answer.branches) != len(branches):
        raise InvalidInput(
            f"the engine made {len(answer.branches)} branches of {len(branches)}", field="branches"
        )
    return tuple(
        _made_of(one.session_id, made) for one, made in zip(branches, answer.branches, strict=True)
    )


def _made_of(session_id: str, made: engine_pb2.ForkWorldResponse.Branch) -> MadeBranch:
    layout = layout_from_proto(made.layout)
    return MadeBranch(
        session_id,
        slot_from_proto(made.slot),
        made.layout.SerializeToString(deterministic=True),
        layout.topology_hash,
        layout.extent_bytes,
    )
