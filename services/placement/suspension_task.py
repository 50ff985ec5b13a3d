"""Suspension task: one suspend or resume from its first event to its end, on a task of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from services.placement import suspension_table
from services.placement.directory import Directory
from services.placement.phases import Outcome
from services.placement.suspension import (
    Action,
    Begin,
    Cancel,
    DeadlinePassed,
    Event,
    Failed,
    RecordLost,
    Settled,
    Step,
    expired,
    step,
)
from services.placement.suspension_record import SuspensionEntry
from services.placement.values import Failure
from worldline.errors import WorldlineError
from worldline.telemetry import current_trace_id, span, traceparent_in

_log = structlog.get_logger(__name__)

_EVENTS_MAX = 16
_FINISH_ATTEMPTS = 5
_OWED = frozenset({Step.DETACH, Step.RELEASE, Step.THAW, Step.ACTIVATE, Step.DROP})

Perform = Callable[[Step, SuspensionEntry], Awaitable[Event]]


class SuspensionTask:
    """Runs one. `run` is to be a task of somebody who awaits it, and calls `end` after."""

    def __init__(self, directory: Directory, entry: SuspensionEntry, perform: Perform) -> None:
        self.entry = entry
        self._directory = directory
        self._perform = perform
        self._events: asyncio.Queue[Event] = asyncio.Queue(_EVENTS_MAX)
        self._running: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def post(self, event: Event) -> None:
        """Put an event in; after the end it changes nothing."""
        if not self._ended.is_set():
            self._events.put_nowait(event)

    async def ended(self, timeout_s: float) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: not within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            await self._ended.wait()

    def end(self) -> None:
        """Nothing more will happen."""
        self._ended.set()

    async def run(self, events: tuple[Event, ...] = (Begin(),)) -> None:
        """Take `events`, then whatever comes, until it is over."""
        for event in events:
            self.post(event)
        one = self.entry.suspension
        parent = traceparent_in(self.entry.trace_id)
        try:
            with span(one.verb.name.lower(), parent=parent, session_id=one.session_id) as root:
                root.set(node_id=one.party.node_id, epoch=one.epoch, kind=one.kind.name)
                trace_id = self.entry.trace_id or current_trace_id()
                self.entry = replace(self.entry, trace_id=trace_id)
                while not self.entry.suspension.phase.terminal:
                    await self._apply(await self._next_event())
                one = self.entry.suspension
                root.set(outcome=one.phase.name)
                if one.failure is not None:
                    root.fail(one.failure.reason)
        finally:
            await self._stop_step()

    def revive(self, entry: SuspensionEntry) -> None:
        """Begin again from a record, after `run` has failed: nothing of that run is awaited."""
        self.entry = entry
        self._events = asyncio.Queue(_EVENTS_MAX)

    async def _next_event(self) -> Event:
        one = self.entry.suspension
        if one.deadline_s is None or one.undecided:
            return await self._events.get()
        try:
            async with asyncio.timeout_at(one.deadline_s):
                return await self._events.get()
        except TimeoutError:
            return DeadlinePassed()

    async def _apply(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        before = self.entry.suspension
        if isinstance(event, DeadlinePassed) and not expired(before, now):
            return
        transition = step(before, event, now)
        if transition.suspension == before:
            _log.debug("suspension.event", reason=transition.reason)
            return
        self.entry = self.entry.with_suspension(transition.suspension)
        _log.info(
            "suspension.transition",
            suspension_id=before.suspension_id,
            session_id=before.session_id,
            phase=transition.suspension.phase.name,
            reason=transition.reason,
        )
        # What a crash must find is durable before and after: the beginning, the record that
        # decides, and the end. In between everything is undone whatever was reached.
        if transition.suspension.phase.terminal:
            await self._persist_end()
        for action in transition.actions:
            await self._take(action)

    async def _persist_end(self) -> None:
        for attempt in range(_FINISH_ATTEMPTS):
            try:
                await self._directory.do(suspension_table.finish_suspension, self.entry)
                return
            except sqlite3.Error:
                _log.exception("suspension.end_unrecorded")
                await asyncio.sleep(0.1 * 2**attempt)
        # Found open at the next start, and ended again.

    async def _take(self, action: Action) -> None:
        if isinstance(action, Cancel):
            await self._stop_step()
            return
        name = f"{self.entry.suspension.suspension_id} {action.step.value}"
        self._running = asyncio.get_running_loop().create_task(self._run(action.step), name=name)

    async def _run(self, one: Step) -> None:
        """Carry out one step; its completion is an event, its failure too."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        event: Event
        try:
            with span(one.value, session_id=self.entry.suspension.session_id) as active:
                event = await self._perform(one, self.entry)
                if isinstance(event, Failed | RecordLost):
                    active.fail(event.failure.reason)
                elif isinstance(event, Settled):
                    active.set(outcome=event.outcome.value)
        except WorldlineError as error:
            event = _failed(one, error)
        except Exception as error:
            # A bug in a step must not leave a world frozen: it ends like any other failure.
            _log.exception("suspension.step_failed", step=one.value)
            event = _failed(one, error)
        finally:
            timing = (one.value, (loop.time() - started) * 1e3)
            self.entry = replace(self.entry, timings=(*self.entry.timings, timing))
        await self._events.put(event)

    async def _stop_step(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _failed(one: Step, error: Exception) -> Event:
    if one in _OWED:
        return Settled(one, Outcome.REFUSED)
    if one is Step.RECORD:
        return RecordLost(Failure.of(error))
    return Failed(one, Failure.of(error))
