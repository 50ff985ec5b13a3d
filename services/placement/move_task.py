"""Move task: one move from its first event to its end, on a task of its own.

The loop is: an event in, the machine's next move made durable, then the machine's actions. It
goes on whoever stops watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from services.placement import events as ev
from services.placement import move_table, node_table
from services.placement.context import MoveContext
from services.placement.directory import Directory
from services.placement.limits import Limits
from services.placement.move import Transition, expired, step
from services.placement.obligations import Obligations
from services.placement.phases import OBLIGATIONS, MovePhase, Outcome, Step
from services.placement.records import MoveEntry
from services.placement.steps import Steps
from services.placement.values import Failure
from worldline.errors import WorldlineError
from worldline.telemetry import current_trace_id, instruments, span, traceparent_in

_log = structlog.get_logger(__name__)

#: Two steps at once at most, and a handful of verbs: more is a bug.
_EVENTS_MAX = 64
#: Which figure of the record a step's time belongs to; others show in the trace only.
_TIMED = {
    Step.ASK_ADMISSION: "admit",
    Step.PROBE: "admit",
    Step.RESERVE: "reserve",
    Step.FREEZE: "freeze",
    Step.PUSH: "push",
    Step.VERIFY: "verify",
    Step.ATTACH: "attach",
    Step.PROMOTE: "commit",
    Step.RECORD_COMMIT: "commit",
    Step.ACTIVATE: "thaw",
}
_FINISH_ATTEMPTS = 5

DIRECTORY_FAILED = Failure(
    kind="Unavailable",
    reason="DIRECTORY_FAILED",
    message="the directory could not record the move's phase; the source stays authoritative",
)


@dataclass(frozen=True, slots=True)
class Tools:
    """What every move task works with."""

    directory: Directory
    steps: Steps
    obligations: Obligations
    limits: Limits


class MoveTask:
    """Runs one move. `run` is to be a task of somebody who awaits it, and calls `end` after."""

    def __init__(self, tools: Tools, entry: MoveEntry, context: MoveContext) -> None:
        self.entry = entry
        self.context = context
        #: Phases in the order they were entered: a watcher that comes late misses none.
        self.phases: list[MovePhase] = [entry.move.phase]
        self.ended = False
        self._tools = tools
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue(_EVENTS_MAX)
        self._running: dict[tuple[Step, int], asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._frozen_at: float | None = None
        context.on_progress = self._notify

    # --- for others ---

    def post(self, event: ev.Event) -> None:
        """Put an event in; after the end it changes nothing."""
        if not self.ended:
            self._events.put_nowait(event)

    async def until(self, condition: Callable[[MoveTask], bool], timeout_s: float) -> None:
        """Wait until `condition(self)` holds or the move has ended.

        Raises:
            TimeoutError: neither within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: self.ended or condition(self))

    # --- the loop ---

    async def run(
        self, actions: tuple[ev.Action, ...] = (), events: tuple[ev.Event, ...] = (ev.Begin(),)
    ) -> None:
        """Take `actions` that a restart left open, then `events`, then whatever comes."""
        move = self.entry.move
        for event in events:
            self._events.put_nowait(event)
        try:
            # After a restart the rest of the move belongs to the trace that its record names.
            parent = traceparent_in(self.entry.trace_id)
            with span("move", parent=parent, move_id=move.move_id) as root:
                root.set(
                    session_id=move.session_id,
                    source_node_id=move.source.node_id,
                    target_node_id=move.target.node_id,
                    epoch=move.source_epoch,
                )
                self.entry = replace(self.entry, trace_id=self.entry.trace_id or current_trace_id())
                for action in actions:
                    await self._take(action)
                while not self.entry.move.phase.terminal:
                    await self._apply(await self._next_event())
                outcome, reason = move_table.outcome_of(self.entry)
                root.set(outcome=outcome, reason=reason, frozen_ms=self.entry.frozen_ms)
                if outcome != "committed":
                    root.fail(f"{outcome}: {reason}")
            instruments().move_ended(outcome, reason, self.entry.frozen_ms)
        finally:
            await self._stop_steps()

    def revive(self, entry: MoveEntry) -> None:
        """Begin again from a record, after `run` has failed: nothing of that run is awaited."""
        self.entry = entry
        self._events = asyncio.Queue(_EVENTS_MAX)

    async def end(self) -> None:
        """Nothing more will happen; tell the watchers."""
        self.ended = True
        await self._notify()

    async def _next_event(self) -> ev.Event:
        """The next event; the deadline's passing is one."""
        deadline_s = self.entry.move.deadline_s
        if deadline_s is None or self.entry.move.commit_undecided:
            return await self._events.get()
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._events.get()
        except TimeoutError:
            return ev.DeadlinePassed()

    async def _apply(self, event: ev.Event) -> None:
        now = asyncio.get_running_loop().time()
        before = self.entry.move
        if isinstance(event, ev.DeadlinePassed) and not expired(before, now):
            return
        transition = step(before, event, now, self._tools.limits)
        if transition.move == before:
            _log.debug("move.event", move_id=before.move_id, reason=transition.reason)
            return
        self._note_frozen_time(event, now)
        self.entry = self.entry.with_move(transition.move)
        _log.info(
            "move.transition",
            move_id=before.move_id,
            session_id=before.session_id,
            phase=transition.move.phase.name,
            reason=transition.reason,
        )
        # Durable first: a crash between the two is resolved by recovery from this phase.
        durable = await self._persist(transition)
        if not durable and transition.move.phase.before_commit:
            self.post(_given_up(transition.actions))
        else:
            for action in transition.actions:
                await self._take(action)
        if transition.move.phase is not before.phase:
            self.phases.append(transition.move.phase)
        await self._notify()

    async def _persist(self, transition: Transition) -> bool:
        """Whether the phase is on record. COMMITTED was recorded by the swap itself."""
        if transition.move.phase.terminal:
            return await self._persist_end()
        try:
            await self._tools.directory.do(move_table.save_move, self.entry)
        except sqlite3.Error:
            _log.exception("move.unrecorded", move_id=transition.move.move_id)
            return False
        return True

    async def _persist_end(self) -> bool:
        for attempt in range(_FINISH_ATTEMPTS):
            try:
                await self._tools.directory.do(move_table.finish_move, self.entry)
                break
            except sqlite3.Error:
                _log.exception("move.end_unrecorded", move_id=self.entry.move.move_id)
                await asyncio.sleep(0.1 * 2**attempt)
        else:
            return False  # found open at the next start, and ended again
        with contextlib.suppress(sqlite3.Error):
            await self._note_path()
        return True

    async def _note_path(self) -> None:
        """What the path reached, kept for people; after the end, when nobody waits for it."""
        move = self.entry.move
        if move.figures is not None and move.figures.rate_bytes_per_s > 0:
            await self._tools.directory.do(
                node_table.note_path,
                move.source.node_id,
                move.target.node_id,
                move.figures.rate_bytes_per_s,
            )

    def _note_frozen_time(self, event: ev.Event, now: float) -> None:
        activated = isinstance(event, ev.Settled) and event.step is Step.ACTIVATE
        if activated and self._frozen_at is not None:
            frozen_ms = (now - self._frozen_at) * 1e3
            self.entry = replace(self.entry, frozen_ms=frozen_ms)

    # --- steps ---

    async def _take(self, action: ev.Action) -> None:
        issue = (action.step, action.attempt)
        if isinstance(action, ev.Cancel):
            task = self._running.pop(issue, None)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return
        if action.step is Step.FREEZE:
            self._frozen_at = asyncio.get_running_loop().time()
        name = f"move {self.entry.move.move_id} {action.step.value}"
        work = self._perform(action.step, action.attempt)
        self._running[issue] = asyncio.get_running_loop().create_task(work, name=name)

    async def _perform(self, step_of: Step, attempt: int) -> None:
        """Carry out one step; its completion is an event, its failure too."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        event: ev.Event
        try:
            with span(step_of.value, move_id=self.entry.move.move_id, attempt=attempt) as active:
                event = await self._outcome_of(step_of, attempt)
                _describe(event, active.set, active.fail)
        except WorldlineError as error:
            event = _failed(step_of, attempt, error)
        except Exception as error:
            # A bug in a step must not leave a world frozen: it ends like any other failure.
            _log.exception("move.step_failed", step=step_of.value)
            event = _failed(step_of, attempt, error)
        finally:
            self._note_timing(step_of, (loop.time() - started) * 1e3)
        self._running.pop((step_of, attempt), None)
        await self._events.put(event)

    async def _outcome_of(self, step_of: Step, attempt: int) -> ev.Event:
        if step_of in OBLIGATIONS:
            outcome = await self._tools.obligations.do(step_of, self.entry)
            return ev.Settled(attempt, step_of, outcome)
        return await self._tools.steps.do(step_of, self.entry, self.context, attempt)

    def _note_timing(self, step_of: Step, duration_ms: float) -> None:
        name = _TIMED.get(step_of)
        if name is None:
            return
        instruments().phase_ended(name, duration_ms)
        timings = dict(self.entry.timings)
        timings[name] = timings.get(name, 0.0) + duration_ms
        self.entry = replace(self.entry, timings=tuple(timings.items()))

    async def _stop_steps(self) -> None:
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- watchers ---

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _given_up(actions: tuple[ev.Action, ...]) -> ev.Event:
    """What stands for `actions` that were not taken, because nothing of them is on record.

    A swap that nobody asked the directory for is lost, not undecided: nobody would decide it.
    """
    for action in actions:
        if isinstance(action, ev.Run) and action.step is Step.RECORD_COMMIT:
            return ev.CommitLost(action.attempt, DIRECTORY_FAILED)
    return ev.RollbackAsked(DIRECTORY_FAILED)


def _describe(event: ev.Event, put: Callable[..., None], fail: Callable[[str], None]) -> None:
    """What a step's span says about its outcome."""
    if isinstance(event, ev.Admitted | ev.Refused):
        put(verdict=event.verdict.label)
    if isinstance(event, ev.Refused):
        fail(event.verdict.label)
    elif isinstance(event, ev.Failed | ev.VerifiedUnequal | ev.CommitLost):
        fail(event.failure.reason)
    elif isinstance(event, ev.Pushed):
        figures = event.figures
        put(
            bytes=figures.wire_bytes,
            chunks=figures.chunks,
            rate_bytes_per_s=figures.rate_bytes_per_s,
        )
    elif isinstance(event, ev.Settled):
        put(outcome=event.outcome.value)


def _failed(step_of: Step, attempt: int, error: Exception) -> ev.Event:
    if step_of in OBLIGATIONS:
        return ev.Settled(attempt, step_of, Outcome.REFUSED)
    return ev.Failed(attempt, step_of, Failure.of(error))
