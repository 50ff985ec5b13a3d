"""Move task: one move from its first event to its end, on a task of its own.

The loop is: an event in, the machine's next move noted for the record, the machine's actions. The
record may lag behind the actions, except behind a commit and an end (`scribe`). It goes on whoever
stops watching.
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
from services.placement.move import Move, Transition, expired, step
from services.placement.move_trace import describe_end, describe_step
from services.placement.obligations import Obligations
from services.placement.phases import OBLIGATIONS, MovePhase, Outcome, Step
from services.placement.records import MoveEntry
from services.placement.scribe import Scribe
from services.placement.steps import Steps
from services.placement.values import Failure
from worldline.errors import WorldlineError
from worldline.telemetry import (
    ActiveSpan,
    current_trace_id,
    instruments,
    span,
    traceparent_in,
)

_log = structlog.get_logger(__name__)

#: Three steps at once at most, and a handful of verbs: more is a bug.
_EVENTS_MAX = 64
#: Which figure of the record a step's time belongs to; others show in the trace only. Where steps
#: run side by side, the time until one ends belongs to the first of them here.
_TIMED = {
    Step.ASK_ADMISSION: "admit",
    Step.PROBE: "admit",
    Step.RESERVE: "reserve",
    Step.WARM: "reserve",
    Step.ARM: "arm",
    Step.FREEZE: "freeze",
    Step.PUSH: "push",
    Step.VERIFY: "verify",
    Step.ATTACH: "attach",
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
        #: The target that the record on the disk names.
        self._target_recorded = entry.move.target
        #: Phases in the order they were entered: a watcher that comes late misses none.
        self.phases: list[MovePhase] = [entry.move.phase]
        self.ended = False
        #: Called when it has gone to another phase; must not wait.
        self.on_phase: Callable[[], None] = lambda: None
        self._tools = tools
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue(_EVENTS_MAX)
        self._running: dict[tuple[Step, int], asyncio.Task[None]] = {}
        #: Who waits, and what for.
        self._waiting: dict[asyncio.Future[None], Callable[[MoveTask], bool]] = {}
        self._frozen_at: float | None = None
        #: Until then every moment belongs to one of the record's figures.
        self._timed_until = 0.0
        #: When this process began with it, on the loop's clock.
        self.began_s = 0.0
        self._scribe = self._new_scribe()
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
        async with asyncio.timeout(timeout_s):
            while not (self.ended or condition(self)):
                told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting[told] = condition
                try:
                    await told
                finally:
                    del self._waiting[told]

    @property
    def timed_step(self) -> str:
        """The record's figure that this moment belongs to; empty where it belongs to none."""
        pending = {one for one, _ in self.entry.move.pending}
        return next((name for one, name in _TIMED.items() if one in pending), "")

    def step_ms(self, now: float) -> float:
        """What that figure has come to, in milliseconds; `now` is on the loop's clock."""
        name = self.timed_step
        if not name:
            return 0.0
        so_far_ms = dict(self.entry.timings).get(name, 0.0)
        return so_far_ms + max(0.0, now - self._timed_until) * 1e3

    # --- the loop ---

    async def run(
        self, actions: tuple[ev.Action, ...] = (), events: tuple[ev.Event, ...] = (ev.Begin(),)
    ) -> None:
        """Take `actions` that a restart left open, then `events`, then whatever comes."""
        move = self.entry.move
        for event in events:
            self._events.put_nowait(event)
        self._timed_until = self.began_s = asyncio.get_running_loop().time()
        try:
            # After a restart the rest of the move belongs to the trace that its record names.
            parent = traceparent_in(self.entry.trace_id)
            links = (self.context.opened_in,)
            with span("move", parent=parent, links=links, move_id=move.move_id) as root:
                root.set(
                    session_id=move.session_id,
                    source_node_id=move.source.node_id,
                    epoch=move.source_epoch,
                )
                self.entry = replace(self.entry, trace_id=self.entry.trace_id or current_trace_id())
                await self._drive(actions, root)
            self._count()
        finally:
            await self._stop_steps()
            await self.context.drop_push()
            await self.context.drop_verifying()

    async def _drive(self, actions: tuple[ev.Action, ...], root: ActiveSpan) -> None:
        """To the end, and say on the root how it ended."""
        try:
            for action in actions:
                await self._take(action)
            while not self.entry.move.phase.terminal:
                await self._apply(await self._next_event())
        except asyncio.CancelledError:
            # Placement ends before the move could: the next one resolves it, in the same trace.
            root.set(outcome="left_open", phase=self.entry.move.phase)
            raise
        describe_end(self.entry, root)

    def _count(self) -> None:
        outcome, reason = move_table.outcome_of(self.entry)
        found = instruments()
        found.move_ended(outcome, reason, self.entry.frozen_ms)
        if outcome == "committed" and self.entry.frozen_ms > 0:
            found.move_timed(self.entry.frozen_ms, self.context.session.contract.horizon_ms)
        for name, duration_ms in self.entry.timings:
            found.phase_ended(name, duration_ms)

    def revive(self, entry: MoveEntry) -> None:
        """Begin again from a record, after `run` has failed: nothing of that run is awaited."""
        self.entry = entry
        self._target_recorded = entry.move.target
        self._events = asyncio.Queue(_EVENTS_MAX)
        self._scribe = self._new_scribe()

    async def end(self) -> None:
        """Nothing more will happen; tell the watchers."""
        self.ended = True
        self._notify()

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
        self._note_timing(event, now)
        transition = step(before, event, now, self._tools.limits)
        if transition.move == before:
            _log.debug("move.event", move_id=before.move_id, reason=transition.reason)
            return
        self._note_frozen_time(event, now)
        self.entry = self.entry.with_move(transition.move)
        await self._persist(transition)
        for phase in transition.entered:
            if phase is not self.phases[-1]:
                self.phases.append(phase)
        # A step sends its request two turns of the loop from here: one begins its task, and gRPC
        # sends from a task of its own. All that nobody waits for comes behind that.
        _two_turns_later(self._tell, transition)

    async def _persist(self, transition: Transition) -> None:
        """Take the actions. Only another target, a commit and an end wait for the record."""
        commit = _commit_of(transition.actions)
        if transition.move.phase.terminal:
            await self._scribe.settled()
            await self._persist_end()
        elif commit is not None:
            # The swap writes the move itself, but not over a record that refused to be written.
            if not await self._scribe.settled():
                self.post(ev.CommitLost(commit.attempt, DIRECTORY_FAILED))
                return
        elif self._chose_another(transition.move):
            if not await self._scribe.target_recorded(self.entry):
                return  # nothing was asked of it, and the scribe has given the move up
            self._target_recorded = transition.move.target
        elif transition.entered:
            self._scribe.note(self.entry)
        for action in transition.actions:
            await self._take(action)

    def _chose_another(self, move: Move) -> bool:
        """Whether the move goes to a target that its record does not name yet."""
        return move.phase is MovePhase.ADMITTED and move.target != self._target_recorded

    def _new_scribe(self) -> Scribe:
        return Scribe(self._tools.directory, lambda: self.post(ev.RollbackAsked(DIRECTORY_FAILED)))

    async def _persist_end(self) -> None:
        for attempt in range(_FINISH_ATTEMPTS):
            try:
                await self._tools.directory.do(move_table.finish_move, self.entry)
                break
            except sqlite3.Error:
                _log.exception("move.end_unrecorded", move_id=self.entry.move.move_id)
                await asyncio.sleep(0.1 * 2**attempt)
        else:
            return  # found open at the next start, and ended again
        with contextlib.suppress(sqlite3.Error):
            await self._note_path()

    async def _note_path(self) -> None:
        """What the path reached, for people and for an admission that has forgotten it; after the
        end, when nobody waits for it.
        """
        move = self.entry.move
        if move.figures is not None and move.figures.rate_bytes_per_s > 0:
            around_ms = self.entry.frozen_ms - move.figures.wire_ms - move.figures.verify_tail_ms
            await self._tools.directory.do(
                node_table.note_path,
                move.source.node_id,
                move.target.node_id,
                move.figures.rate_bytes_per_s,
                max(0.0, around_ms),
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
        event: ev.Event
        try:
            with span(step_of.value, move_id=self.entry.move.move_id, attempt=attempt) as active:
                event = await self._outcome_of(step_of, attempt)
                describe_step(event, active)
        except WorldlineError as error:
            event = _failed(step_of, attempt, error)
        except Exception as error:
            # A bug in a step must not leave a world frozen: it ends like any other failure.
            _log.exception("move.step_failed", step=step_of.value)
            event = _failed(step_of, attempt, error)
        self._running.pop((step_of, attempt), None)
        await self._events.put(event)

    async def _outcome_of(self, step_of: Step, attempt: int) -> ev.Event:
        if step_of in OBLIGATIONS:
            outcome = await self._tools.obligations.do(step_of, self.entry)
            return ev.Settled(attempt, step_of, outcome)
        return await self._tools.steps.do(step_of, self.entry, self.context, attempt)

    def _note_timing(self, event: ev.Event, now: float) -> None:
        """Give the time since the last event to the figure that it belongs to.

        The figures add up to the whole move without its rests between verbs and without what
        follows the thaw.
        """
        duration_ms, self._timed_until = (now - self._timed_until) * 1e3, now
        under_way, timings = self.timed_step, dict(self.entry.timings)
        if under_way:
            timings[under_way] = timings.get(under_way, 0.0) + duration_ms
        ended = _TIMED.get(event.step) if isinstance(event, ev.Completion) else None
        if ended is not None:
            timings.setdefault(ended, 0.0)
        self.entry = replace(self.entry, timings=tuple(timings.items()))

    async def _stop_steps(self) -> None:
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- watchers ---

    def _tell(self, transition: Transition) -> None:
        """Log the transition and wake whoever waits for it."""
        _log_transition(transition)
        if transition.entered:
            self.on_phase()
        self._notify()

    def _notify(self) -> None:
        """Wake those whose condition holds now, and nobody else."""
        for told, condition in self._waiting.items():
            if not told.done() and (self.ended or condition(self)):
                told.set_result(None)


def _two_turns_later(call: Callable[[Transition], None], transition: Transition) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, call, transition)


def _log_transition(transition: Transition) -> None:
    move = transition.move
    _log.info(
        "move.transition",
        move_id=move.move_id,
        session_id=move.session_id,
        phase=move.phase.name,
        reason=transition.reason,
    )


def _commit_of(actions: tuple[ev.Action, ...]) -> ev.Run | None:
    """The swap among these actions, if it is among them."""
    for action in actions:
        if isinstance(action, ev.Run) and action.step is Step.RECORD_COMMIT:
            return action
    return None


def _failed(step_of: Step, attempt: int, error: Exception) -> ev.Event:
    if step_of in OBLIGATIONS:
        return ev.Settled(attempt, step_of, Outcome.REFUSED)
    return ev.Failed(attempt, step_of, Failure.of(error))
