"""Verbs of a move: register, admit, migrate, verify, commit, rollback (paper, Table 1), and all
of them at once. A verb says how far the move may go and waits for it to get there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from services.placement import events as ev
from services.placement import move_table
from services.placement.beginning import busy
from services.placement.move_task import MoveTask
from services.placement.peers import Deadlines, Peers
from services.placement.phases import Goal, MovePhase, Step
from services.placement.progress import Progress, progress_of
from services.placement.records import MoveEntry, SessionRecord, SessionState
from services.placement.runtime import Runtime
from services.placement.values import Failure
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    DeadlineExceeded,
    InvariantBroken,
    NotFound,
    TransferFailed,
    Unavailable,
)
from worldline.rpc.channel import call
from worldline.state.codec import manifest_from_proto
from worldline.state.manifest import Manifest
from worldline.v1 import engine_pb2
from worldline.verdict import Verdict

#: Above the sum of a move's phase limits, without what its ticket lets it wait for its wire: only a
#: bug in them lets this run out.
_WAIT_S = 900.0
#: At most this often is a watcher told something, but for the end.
WATCH_EVERY_S = 0.05

CLIENT_ROLLBACK = Failure(
    kind="Conflict", reason="CLIENT_ROLLBACK", message="the client rolled the move back"
)
#: Errors that make a client repeat its call. What a peer said to us is not meant for it.
_INVITING = (Unavailable, TransferFailed, CapacityExhausted)
_STAGED_OR_LATER = frozenset(
    {
        MovePhase.STAGED,
        MovePhase.VERIFIED,
        MovePhase.ATTACHED,
        MovePhase.COMMITTED,
        MovePhase.DONE,
    }
)


class Verbs:
    """What clients do with moves."""

    def __init__(self, runtime: Runtime, peers: Peers, deadlines: Deadlines) -> None:
        self._runtime = runtime
        self._peers = peers
        self._deadlines = deadlines

    async def register(self, session_id: str, granule_bytes: int = 0) -> Manifest:
        """The manifest of a live world, digests included; in granules of 1 MiB unless told.

        Raises:
            NotFound: no such session. Conflict: it does not run. InvalidInput: a granule that does
                not suit the state.
        """
        session = await self._runtime.session(session_id)
        if session.state not in (SessionState.LIVE, SessionState.MOVING):
            raise busy(session_id, session.state.value)
        answer: engine_pb2.RegisterWorldResponse = await call(
            self._peers.engine(session.owner).RegisterWorld,
            engine_pb2.RegisterWorldRequest(session_id=session_id, granule_bytes=granule_bytes),
            timeout_s=self._deadlines.register_s,
        )
        return manifest_from_proto(answer.manifest)

    async def admit(
        self,
        session_id: str,
        target_node_id: str,
        idempotency_key: str,
        client_id: str,
        saves_ms: float = 0.0,
    ) -> tuple[Verdict, str]:
        """Begin a move and wait for its verdict; a reject is an answer.

        `saves_ms`: as `Runtime.begin_move`.

        Raises:
            NotFound, InvalidInput, Conflict: as `Runtime.begin_move`.
            WorldlineError: admission could not be asked.
        """
        begun = await self._runtime.begin_move(
            session_id, target_node_id, idempotency_key, Goal.ADMIT, client_id, saves_ms
        )
        move_id = begun.move.move_id
        entry = await self._after(move_id, lambda task: _verdict_known(task.entry))
        if entry.move.verdict is None:
            raise _why_ended(entry)
        return entry.move.verdict, move_id

    async def stage(self, move_id: str) -> AsyncIterator[Progress]:
        """Let an admitted move go on until its bytes are staged; ends when they are.

        Raises:
            NotFound: no such move. Conflict: it is not admitted.
            WorldlineError: why the move failed; it was rolled back.
        """
        task = self._runtime.move_task(move_id)
        if task is not None:
            if task.entry.move.phase is MovePhase.REQUESTED:
                raise Conflict(f"move {move_id} is not admitted yet", reason="MOVE_NOT_ADMITTED")
            if task.entry.move.phase is MovePhase.ADMITTED and task.entry.move.resting:
                task.post(ev.Asked(Goal.STAGE))
            async for progress in self.watch(task, _is_staged):
                yield progress
        entry = await self.entry(move_id)
        if entry.move.phase not in _STAGED_OR_LATER:
            raise _why_ended(entry)

    def staged_manifest(self, move_id: str) -> Manifest:
        """What is staged, with the source's digests.

        Raises:
            Conflict: the move ended too long ago to say.
        """
        task = self._runtime.recent_task(move_id)
        if task is None or task.context.manifest is None:
            raise Conflict(
                f"move {move_id} ended and its manifest is no longer held",
                reason="MANIFEST_GONE",
                field="move_id",
            )
        return task.context.manifest

    async def verify(self, move_id: str) -> Failure | None:
        """Read the staged bytes back and compare; None when equal. The move stays staged.

        Raises:
            NotFound: no such move. Conflict: it is not staged.
            WorldlineError: why the move failed meanwhile.
        """
        task = await self._staged_task(move_id)
        if task.entry.move.unequal is not None:
            return task.entry.move.unequal
        before = _attempts(task.entry, Step.VERIFY)
        task.post(ev.Asked(Goal.VERIFY))
        entry = await self._after(
            move_id,
            lambda one: (
                _attempts(one.entry, Step.VERIFY) > before
                and not one.entry.move.awaits(Step.VERIFY)
                and one.entry.move.phase is not MovePhase.ROLLING_BACK
            ),
        )
        if entry.move.phase not in _STAGED_OR_LATER:
            raise _why_ended(entry)
        return entry.move.unequal

    async def commit(self, move_id: str) -> tuple[Manifest, SessionRecord]:
        """Verify again, attach, swap the owner; wait until the move is over.

        Asking again for a move that has committed answers the same.

        Raises:
            NotFound: no such move. Conflict: it is not staged.
            IntegrityError: the bytes differ; rolled back.
            WorldlineError: why the move was rolled back.
        """
        running = self._runtime.move_task(move_id)
        if running is not None and running.entry.move.goal is not Goal.COMMIT:
            task = await self._staged_task(move_id)
            task.post(ev.Asked(Goal.COMMIT))
        entry = await self._after(move_id, lambda task: task.ended)
        if entry.move.phase is not MovePhase.DONE:
            raise _why_ended(entry)
        manifest = replace(self.staged_manifest(move_id), epoch=entry.move.source_epoch + 1)
        return manifest, await self._runtime.session(entry.move.session_id)

    async def rollback(self, move_id: str) -> Manifest:
        """Give a move up; the source's manifest, which stays authoritative.

        Raises:
            NotFound: no such move. Conflict: it has committed.
        """
        task = self._runtime.move_task(move_id)
        if task is not None:
            task.post(ev.RollbackAsked(CLIENT_ROLLBACK))
        entry = await self._after(move_id, lambda one: one.ended)
        if entry.move.phase is MovePhase.DONE:
            raise Conflict(
                f"move {move_id} has committed; move the session back instead",
                reason="MOVE_COMMITTED",
                field="move_id",
            )
        recent = self._runtime.recent_task(move_id)
        if recent is not None and recent.context.manifest is not None:
            return recent.context.manifest
        return await self.register(entry.move.session_id)

    async def entry(self, move_id: str) -> MoveEntry:
        """The record of a move: as it is now where it is under way, else as the directory has it.

        Raises:
            NotFound: there is none.
        """
        task = self._runtime.move_task(move_id)
        if task is not None and not task.entry.move.phase.terminal:
            return task.entry
        found = await self._runtime.directory.do(move_table.get_move, move_id)
        if found is None:
            raise NotFound(f"move {move_id} is unknown", reason="MOVE_UNKNOWN", field="move_id")
        return found

    async def watch(
        self, task: MoveTask, done: Callable[[MoveTask], bool]
    ) -> AsyncIterator[Progress]:
        """Every phase once, steps and bytes as they go, until `done` or the end.

        Who stops watching stops nothing.
        """
        seen, shown = 0, ("", 0)
        while True:
            while seen < len(task.phases):
                shown = _showing(task)
                yield progress_of(task, task.phases[seen])
                seen += 1
            if _showing(task) != shown:
                shown = _showing(task)
                # The move may be on its way into a phase that is not among them yet.
                yield progress_of(task, task.phases[seen - 1])
            if (done(task) or task.ended) and seen == len(task.phases):
                return
            await self._until(
                task,
                lambda one, seen=seen, shown=shown: (  # type: ignore[misc]
                    len(one.phases) > seen or _showing(one) != shown or done(one)
                ),
            )
            # Whoever watches is told soon, not at once: the move itself goes first.
            with contextlib.suppress(TimeoutError):
                await task.until(done, WATCH_EVERY_S)

    async def final(self, move_id: str) -> MoveEntry:
        """The record of a move once it is over."""
        return await self._after(move_id, lambda task: task.ended)

    async def _after(self, move_id: str, condition: Callable[[MoveTask], bool]) -> MoveEntry:
        """The record once `condition` holds or the move is over."""
        task = self._runtime.move_task(move_id)
        if task is not None:
            await self._until(task, condition)
            if not task.ended:
                return task.entry
        return await self.entry(move_id)

    async def _until(self, task: MoveTask, condition: Callable[[MoveTask], bool]) -> None:
        try:
            await task.until(condition, _WAIT_S + task.entry.move.wait_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"move {task.entry.move.move_id} is still {task.entry.move.phase.name}; ask GetMove"
            ) from None

    async def _staged_task(self, move_id: str) -> MoveTask:
        """The task of a move that rests with its bytes staged."""
        task = self._runtime.move_task(move_id)
        if task is None:
            raise _why_ended(await self.entry(move_id))
        move = task.entry.move
        if move.phase not in (MovePhase.STAGED, MovePhase.VERIFIED) or not move.resting:
            raise Conflict(
                f"move {move_id} is {move.phase.name}: migrate first, or let it come to rest",
                reason="MOVE_NOT_STAGED",
                field="move_id",
            )
        return task


def _showing(task: MoveTask) -> tuple[str, int]:
    """What a watcher is told of within a phase."""
    return task.timed_step, task.context.sent_bytes


def _verdict_known(entry: MoveEntry) -> bool:
    return entry.move.phase not in (MovePhase.REQUESTED, MovePhase.ROLLING_BACK)


def _is_staged(task: MoveTask) -> bool:
    return task.entry.move.phase in _STAGED_OR_LATER


def _attempts(entry: MoveEntry, step: Step) -> int:
    return sum(1 for issued, _ in entry.move.issued if issued is step)


def _why_ended(entry: MoveEntry) -> Exception:
    """The error that a verb on a move that is over raises: an answer, nothing to try again."""
    move = entry.move
    if move.failure is not None:
        error = move.failure.error()
        if isinstance(error, _INVITING):
            message = f"move {move.move_id} was rolled back: {error.message}"
            return Conflict(message, reason=error.reason, field=error.field)
        return error
    if move.verdict is not None and not move.verdict.admitted:
        return Conflict(
            f"move {move.move_id} was rejected: {move.verdict.label}: {move.verdict.explanation}",
            reason="MOVE_REJECTED",
            field="move_id",
            retry_after_ms=move.verdict.retry_after_ms or None,
        )
    if move.phase is MovePhase.DONE:
        return Conflict(
            f"move {move.move_id} has committed", reason="MOVE_COMMITTED", field="move_id"
        )
    return InvariantBroken(f"move {move.move_id} ended in {move.phase.name} without a reason")
