"""Verbs: the six of the paper's Table 1 for one session, and the move that does all of them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from typing import Any

from worldline.errors import Conflict, DeadlineExceeded, Unavailable
from worldline.fields import non_negative, whole
from worldline.rpc.channel import mapped_errors
from worldline.sdk.calls import Caller
from worldline.sdk.following import OnProgress, follow, report
from worldline.sdk.move_record import Failure, MoveRecord, failure_from_proto, move_from_proto
from worldline.state.codec import manifest_from_proto
from worldline.state.manifest import Manifest
from worldline.v1 import placement_pb2, placement_pb2_grpc
from worldline.verdict import Verdict, verdict_from_proto

_UINT32_MAX = (1 << 32) - 1


class Verbs:
    """Drives at most one staged move of one session at a time."""

    def __init__(
        self,
        session_id: str,
        caller: Caller,
        placement: placement_pb2_grpc.PlacementServiceStub,
        move_timeout_s: float,
    ) -> None:
        self._session_id = session_id
        self._caller = caller
        self._placement = placement
        self._timeout_s = move_timeout_s
        self._staged: Manifest | None = None
        #: The move that `admit` began; empty before.
        self.move_id = ""
        #: What `verify` found different; None where nothing was.
        self.difference: Failure | None = None

    async def register_state(self, granule_bytes: int = 0) -> Manifest:
        """Manifest of the live world at a block boundary; see `Session.register_state`."""
        response = await self._caller.retried(
            self._placement.RegisterState,
            placement_pb2.RegisterStateRequest(
                session_id=self._session_id,
                granule_bytes=whole(granule_bytes, "granule_bytes", at_most=_UINT32_MAX),
            ),
            timeout_s=self._timeout_s,
        )
        return manifest_from_proto(response.manifest)

    async def admit(self, target: str = "", *, saves_ms: float = 0.0) -> Verdict:
        """May the session move to node `target` (empty: placement chooses) now?

        `saves_ms`: as in `move`. An admitted move must be carried on with `migrate` or given up
        with `rollback`.

        Raises:
            InvalidInput: `saves_ms` is no duration.
        """
        response = await self._caller.retried(
            self._placement.AdmitMigration,
            placement_pb2.AdmitMigrationRequest(
                session_id=self._session_id,
                target_node_id=target,
                idempotency_key=uuid.uuid4().hex,
                saves_ms=non_negative(saves_ms, "saves_ms"),
            ),
            timeout_s=self._timeout_s,
        )
        verdict = verdict_from_proto(response.verdict)
        self.move_id = response.move_id
        self._staged = None
        self.difference = None
        return verdict

    async def migrate(self, on_progress: OnProgress | None = None) -> Manifest:
        """Freeze the source and stage its state at the target; the world is frozen after this.

        Raises:
            WorldlineError: the move was rolled back and the source plays on.
        """
        move_id = self._admitted()
        call = self._placement.Migrate(
            placement_pb2.MigrateRequest(move_id=move_id),
            timeout=self._timeout_s,
            metadata=self._caller.metadata(),
        )
        async with mapped_errors():
            async for response in call:
                if response.WhichOneof("event") == "manifest":
                    self._staged = manifest_from_proto(response.manifest)
                    return self._staged
                report(response.progress, on_progress)
        raise Unavailable("placement ended the stream without a manifest", reason="STREAM_ENDED")

    async def verify(self) -> bool:
        """Read the staged bytes back and compare; `difference` says where they differ."""
        response = await self._caller.retried(
            self._placement.VerifyMigration,
            placement_pb2.VerifyMigrationRequest(move_id=self._admitted()),
            timeout_s=self._timeout_s,
        )
        found = failure_from_proto(response.failure) if response.HasField("failure") else None
        self.difference = None if response.equal else found
        return bool(response.equal)

    async def commit(self) -> Manifest:
        """Let the world change hands. A lost reply is asked about, never assumed.

        Raises:
            WorldlineError: the move did not commit; the source plays on.
            DeadlineExceeded: still undecided; ask `Client.move_record`.
        """
        move_id = self._admitted()
        request = placement_pb2.CommitMigrationRequest(move_id=move_id)
        try:
            response = await self._caller.once(
                self._placement.CommitMigration, request, timeout_s=self._timeout_s
            )
        except (Unavailable, DeadlineExceeded):
            record = await self._settled(move_id)
            record.raise_unless_committed()
            manifest = await self._committed_manifest(record)
        else:
            manifest = manifest_from_proto(response.manifest)
        self.move_id = ""
        return manifest

    async def rollback(self) -> Manifest:
        """Give the move up; returns the source's manifest, which stays authoritative."""
        response = await self._caller.retried(
            self._placement.RollbackMigration,
            placement_pb2.RollbackMigrationRequest(move_id=self._admitted()),
            timeout_s=self._timeout_s,
        )
        self.move_id = ""
        return manifest_from_proto(response.manifest)

    async def move(
        self, target: str = "", on_progress: OnProgress | None = None, *, saves_ms: float = 0.0
    ) -> MoveRecord:
        """All of the verbs; the answer is the record, whatever the outcome.

        `saves_ms` is what the move is worth, in milliseconds of what a move costs (the world stands
        still for about that long): one that costs more is rejected, SAVES_TOO_LITTLE. 0 orders the
        move, whatever it saves. A move may wait for its wire while the world plays on, as long as
        its horizon allows; one that waited in vain is rejected before it froze, WIRE_TOO_LATE.

        One idempotency key over all attempts: a stream that broke is joined again and the move
        itself is made once.

        Raises:
            InvalidInput: `saves_ms` is no duration.
            WorldlineError: the outcome could not be learnt.
        """
        request = placement_pb2.MoveSessionRequest(
            session_id=self._session_id,
            target_node_id=target,
            idempotency_key=uuid.uuid4().hex,
            saves_ms=non_negative(saves_ms, "saves_ms"),
        )
        return await follow(
            self._caller,
            self._placement.MoveSession,
            request,
            f"the move of {self._session_id}",
            self._timeout_s,
            on_progress,
        )

    async def _settled(self, move_id: str) -> MoveRecord:
        """The move's record once it is decided and over."""
        deadline_s = time.monotonic() + self._timeout_s
        attempt = 1
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(
                    f"move {move_id} is still undecided; ask Client.move_record({move_id!r})",
                    reason="COMMIT_UNKNOWN",
                )
            response: Any = await self._caller.retried(
                self._placement.GetMove,
                placement_pb2.GetMoveRequest(move_id=move_id),
                timeout_s=left_s,
            )
            record = move_from_proto(response.move)
            if record.phase.terminal or record.committed:
                return record
            await asyncio.sleep(self._caller.policy.backoff_s(attempt))
            attempt += 1

    async def _committed_manifest(self, record: MoveRecord) -> Manifest:
        if self._staged is None:
            return await self.register_state()
        return dataclasses.replace(self._staged, epoch=record.source_epoch + 1)

    def _admitted(self) -> str:
        if not self.move_id:
            raise Conflict("no move was admitted; call admit first", reason="NO_MOVE")
        return self.move_id
