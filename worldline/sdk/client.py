"""Client: a program's connection to Worldline."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

from worldline.contract import Contract, ServiceClass, contract_to_proto
from worldline.fields import identifier, non_negative, positive, whole
from worldline.rpc.channel import ChannelPool
from worldline.sdk.calls import Caller, OnWaiting
from worldline.sdk.drain import DrainRecord, drain_from_proto
from worldline.sdk.following import OnProgress, follow
from worldline.sdk.inspecting import Inspected, OnBoundary, inspect
from worldline.sdk.move_record import MoveRecord, move_from_proto
from worldline.sdk.playback import Playback
from worldline.sdk.records import (
    Node,
    PlacementStatus,
    SessionInfo,
    Trace,
    node_from_proto,
    placement_status_from_proto,
    session_from_proto,
    trace_from_proto,
)
from worldline.sdk.rejected import Rejected
from worldline.sdk.session import Session
from worldline.v1 import engine_pb2, placement_pb2, placement_pb2_grpc
from worldline.verdict import verdict_from_proto

#: What a session is promised where its client says nothing: interactive, bitwise, 5 s of stall.
DEFAULT_CONTRACT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=5_000.0)
_SEED_MAX = (1 << 64) - 1
_MOVES_MAX = (1 << 32) - 1
#: How long placement may hold an answer back until there is news.
_WATCH_WAIT_MS = 5_000


class Client:
    """Async context manager over placement's address (host:port).

    `timeout_s` bounds every short call, `open_timeout_s` the opening of a world (its engine may
    have to build a model), `move_timeout_s` a move, `block_timeout_s` the wait for one block,
    `patience_s` how long a broken play looks for its session's engine, and `connect_patience_s`
    how long a placement that has never answered is tried, whatever the call; meanwhile
    `on_waiting` is told the seconds waited.
    """

    def __init__(
        self,
        placement_address: str,
        *,
        client_id: str = "",
        timeout_s: float = 10.0,
        open_timeout_s: float = 120.0,
        move_timeout_s: float = 120.0,
        block_timeout_s: float = 60.0,
        patience_s: float = 30.0,
        connect_patience_s: float = 5.0,
        on_waiting: OnWaiting | None = None,
    ) -> None:
        identifier(placement_address, "placement_address")
        self.placement_address = placement_address
        self._caller = Caller(
            client_id or f"client-{uuid.uuid4().hex[:12]}",
            positive(timeout_s, "timeout_s"),
            placement_address=placement_address,
            connect_patience_s=positive(connect_patience_s, "connect_patience_s"),
            on_waiting=on_waiting,
        )
        self._open_timeout_s = positive(open_timeout_s, "open_timeout_s")
        self._move_timeout_s = positive(move_timeout_s, "move_timeout_s")
        self._block_timeout_s = positive(block_timeout_s, "block_timeout_s")
        self._patience_s = positive(patience_s, "patience_s")
        self._channels = ChannelPool()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; sessions live on and can be joined again by id."""
        await self._channels.close()

    async def open(
        self,
        preset: str = "tiny",
        *,
        seed: int = 0,
        contract: Contract = DEFAULT_CONTRACT,
        node: str = "",
    ) -> Session:
        """Open a world on `node` (empty: placement chooses).

        Raises:
            Rejected: there is no room for it; `verdict` has the reason.
            InvalidInput: an unknown preset or a seed out of range.
            NotFound: no such node.
            Unavailable: nobody listens at placement's address.
        """
        identifier(preset, "preset")
        whole(seed, "seed", at_most=_SEED_MAX)
        response = await self._caller.retried(
            self._placement().OpenSession,
            placement_pb2.OpenSessionRequest(
                contract=contract_to_proto(contract),
                world=engine_pb2.WorldSpec(preset=preset, seed=seed),
                node_id=node,
                idempotency_key=uuid.uuid4().hex,
            ),
            timeout_s=self._open_timeout_s,
        )
        verdict = verdict_from_proto(response.verdict)
        if not verdict.admitted:
            raise Rejected(verdict)
        info = session_from_proto(response.session)
        return self._session(info, Playback(0, info.epoch))

    async def session(self, session_id: str) -> Session:
        """A session that exists, by id; `play` joins it at its present block.

        Raises:
            NotFound: no such session.
        """
        identifier(session_id, "session_id")
        response = await self._caller.retried(
            self._placement().ResolveSession,
            placement_pb2.ResolveSessionRequest(session_id=session_id),
        )
        return self._session(session_from_proto(response.session), None)

    async def inspect(
        self,
        session_id: str,
        *,
        boundaries: int = 9,
        granule_bytes: int = 0,
        wait_s: float = 30.0,
        by_leaf: bool = False,
        on_boundary: OnBoundary | None = None,
    ) -> Inspected:
        """Watch which parts of its state a session's blocks write, and tell by which rule.

        Its engine digests the state at `boundaries` successive block boundaries, the present one or
        the next first, in granules of `granule_bytes` (0: what suits the state); somebody must
        play it meanwhile. The world waits for each digest. `by_leaf`: a report of every leaf, not
        of groups of leaves that differ in their indices.

        What came is reported when the world stops early, and `stopped` says why.

        Raises:
            NotFound: no such session.
            DeadlineExceeded: no block was generated within `wait_s` (NO_BOUNDARY).
            Conflict: it runs nowhere, moved away before a block was seen (SESSION_MOVED), or is
                being inspected by somebody else (INSPECTED_ALREADY).
            InvalidInput: a number out of range, or a granule that does not suit the state.
        """
        session = await self.session(session_id)
        return await inspect(
            session.info,
            boundaries=boundaries,
            granule_bytes=granule_bytes,
            wait_s=wait_s,
            by_leaf=by_leaf,
            on_boundary=on_boundary,
            caller=self._caller,
            channels=self._channels,
        )

    async def nodes(self) -> tuple[Node, ...]:
        """Every node that the directory knows."""
        request = placement_pb2.ListNodesRequest()
        response = await self._caller.retried(self._placement().ListNodes, request)
        return tuple(node_from_proto(node) for node in response.nodes)

    async def sessions(self) -> tuple[SessionInfo, ...]:
        """Every session that the directory knows."""
        request = placement_pb2.ListSessionsRequest()
        response = await self._caller.retried(self._placement().ListSessions, request)
        return tuple(session_from_proto(session) for session in response.sessions)

    async def moves(
        self, session_id: str = "", limit: int = 100, *, under_way: bool = False
    ) -> tuple[MoveRecord, ...]:
        """Moves, newest first; of one session where `session_id` is given.

        With `under_way` only those that have not ended. Each of them says how far it is.
        """
        whole(limit, "limit", at_least=1, at_most=_MOVES_MAX)
        request = placement_pb2.ListMovesRequest(
            session_id=session_id, limit=limit, under_way=under_way
        )
        response = await self._caller.retried(self._placement().ListMoves, request)
        progress = response.progress
        return tuple(move_from_proto(one, progress.get(one.move_id)) for one in response.moves)

    async def move_record(self, move_id: str) -> MoveRecord:
        """The truth about one move.

        Raises:
            NotFound: no such move.
        """
        identifier(move_id, "move_id")
        request = placement_pb2.GetMoveRequest(move_id=move_id)
        response = await self._caller.retried(self._placement().GetMove, request)
        progress = response.progress if response.HasField("progress") else None
        return move_from_proto(response.move, progress)

    async def watch_move(self, move_id: str, on_progress: OnProgress | None = None) -> MoveRecord:
        """The record of a move that somebody else has begun, once it is over.

        Meanwhile `on_progress` hears of its phases, its steps and its bytes. Goes on across a
        restart of placement.

        Raises:
            NotFound: no such move.
            DeadlineExceeded: it did not end within the client's `move_timeout_s`; it goes on.
        """
        request = placement_pb2.WatchMoveRequest(move_id=identifier(move_id, "move_id"))
        what = f"move {move_id}"
        method = self._placement().WatchMove
        return await follow(self._caller, method, request, what, self._move_timeout_s, on_progress)

    async def trace(self, move_id: str) -> Trace:
        """The spans of one move, from the embedded trace store.

        Spans arrive about a fifth of a second after they end.

        Raises:
            NotFound: no such move.
        """
        identifier(move_id, "move_id")
        request = placement_pb2.GetTraceRequest(move_id=move_id)
        response = await self._caller.retried(self._placement().GetTrace, request)
        return trace_from_proto(response)

    async def drain(self, *nodes: str, deadline_s: float = 0.0) -> tuple[DrainRecord, ...]:
        """Begin to move every session off `nodes`, and let none come before `undrain`.

        Comes back at once; `watch_drain` says how it goes on. `deadline_s` 0: placement's own. A
        drain that is under way gets the new deadline.

        Raises:
            NotFound: no such node, and none is drained.
        """
        request = placement_pb2.DrainRequest(
            node_ids=[identifier(node, "nodes") for node in nodes],
            deadline_ms=round(non_negative(deadline_s, "deadline_s", at_most=86_400) * 1e3),
        )
        response = await self._caller.retried(self._placement().Drain, request)
        return tuple(drain_from_proto(one) for one in response.drains)

    async def drains(self, *nodes: str) -> tuple[DrainRecord, ...]:
        """How far drains are: of `nodes`, or of all that are drained or being drained."""
        request = placement_pb2.DescribeDrainRequest(node_ids=nodes)
        response = await self._caller.retried(self._placement().DescribeDrain, request)
        return tuple(drain_from_proto(one) for one in response.drains)

    async def watch_drain(self, *nodes: str) -> AsyncIterator[tuple[DrainRecord, ...]]:
        """How far the drains of `nodes` are, again and again until all have ended.

        A node that was undrained meanwhile is left out. Goes on across a restart of placement.
        """
        seen = ""
        while True:
            request = placement_pb2.DescribeDrainRequest(
                node_ids=nodes, seen=seen, wait_ms=_WATCH_WAIT_MS if seen else 0
            )
            response = await self._caller.retried(
                self._placement().DescribeDrain,
                request,
                timeout_s=self._caller.timeout_s + _WATCH_WAIT_MS / 1e3 + self._patience_s,
            )
            seen = response.version
            records = tuple(drain_from_proto(one) for one in response.drains)
            yield records
            if all(one.ended for one in records):
                return

    async def undrain(self, *nodes: str) -> tuple[str, ...]:
        """Let sessions come to `nodes` again; which of them were drained or being drained.

        Raises:
            NotFound: no such node.
        """
        request = placement_pb2.UndrainRequest(
            node_ids=[identifier(node, "nodes") for node in nodes]
        )
        response = await self._caller.retried(self._placement().Undrain, request)
        return tuple(response.node_ids)

    async def status(self) -> PlacementStatus:
        """What placement's process holds, and how moves ended so far."""
        request = placement_pb2.DescribePlacementRequest()
        response = await self._caller.retried(self._placement().DescribePlacement, request)
        return placement_status_from_proto(response)

    def _placement(self) -> placement_pb2_grpc.PlacementServiceStub:
        channel = self._channels.get(self.placement_address)
        return placement_pb2_grpc.PlacementServiceStub(channel)

    def _session(self, info: SessionInfo, playback: Playback | None) -> Session:
        return Session(
            info,
            caller=self._caller,
            channels=self._channels,
            placement=self._placement(),
            playback=playback,
            patience_s=self._patience_s,
            block_timeout_s=self._block_timeout_s,
            move_timeout_s=self._move_timeout_s,
        )
