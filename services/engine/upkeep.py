"""Upkeep: registration, the engine's lease, questions about silent moves, tombstones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from services.engine import events as ev
from services.engine.core import Phase
from services.engine.device import EngineDevice
from services.engine.engine import Engine
from services.engine.lease import RENEWALS_PER_LEASE
from services.engine.peers import Directory
from services.engine.session import Session
from worldline.errors import DeadlineExceeded, NotFound, Unavailable, WorldlineError
from worldline.numa import binding_of_process

_log = structlog.get_logger(__name__)

#: Between tries while placement cannot be reached.
RETRY_S = 0.25
#: How often frozen worlds and tombstones are looked at.
LOOK_S = 0.25
#: A directory that leaves a running session out of this many answers in a row does not have it
#: here. One answer may have been made while the session was being recorded.
RENEWALS_MISSED_MAX = 3


@dataclass(frozen=True)
class Identity:
    """How this engine is known in the directory."""

    engine_id: str
    node_id: str
    engine_address: str
    device: EngineDevice
    incarnation: str


class Upkeep:
    """Keeps the engine in the directory, and the directory's word in the engine."""

    def __init__(self, engine: Engine, directory: Directory, identity: Identity) -> None:
        self._engine = engine
        self._directory = directory
        self._identity = identity

    async def register(self, timeout_s: float) -> None:
        """Announce the engine, waiting for placement to come up.

        Raises:
            Unavailable: placement was not there within `timeout_s`.
            WorldlineError: placement refused.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                await self._register()
                return
            except (Unavailable, DeadlineExceeded) as error:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"placement could not be reached for {timeout_s:g} s: {error}",
                        reason="PLACEMENT_UNREACHABLE",
                        field="placement_address",
                    ) from error
                await asyncio.sleep(RETRY_S)

    async def renew_forever(self) -> None:
        """Renew the lease on time; what fails is tried again until cancelled."""
        while True:
            due_s = self._engine.lease.renew_at() - time.monotonic()
            await asyncio.sleep(max(0.0, due_s))
            if not await self._tried("renew", self._renew):
                await asyncio.sleep(min(RETRY_S, self._engine.lease.lease_s / RENEWALS_PER_LEASE))

    async def look_forever(self) -> None:
        """Ask about silent moves and clear away what ended, until cancelled."""
        while True:
            now = time.monotonic()
            for session in list(self._engine.sessions.values()):
                if session.world.phase in (Phase.FROZEN, Phase.ATTACHED):
                    await self._ask_if_silent(session, now)
            self._engine.bury_ended()
            self._engine.tombstones.expire(now)
            await asyncio.sleep(LOOK_S)

    async def _register(self) -> None:
        sent_at = time.monotonic()
        identity = self._identity
        lease_ms = await self._directory.register(
            engine_id=identity.engine_id,
            node_id=identity.node_id,
            engine_address=identity.engine_address,
            device=identity.device,
            fingerprint=self._engine.fingerprint,
            incarnation=identity.incarnation,
        )
        self._granted(sent_at, lease_ms)

    def _look_at_binding(self) -> None:
        """Somebody may have bound this process elsewhere: taskset, or its control group."""
        profiles, cpus = self._engine.profiles, frozenset(os.sched_getaffinity(0))
        if cpus == profiles.binding.cpus:
            return
        before, binding = profiles.binding, binding_of_process(cpus=cpus)
        profiles.bind(binding)
        _log.warning("engine.bound_elsewhere", before=str(before), now=str(binding))

    async def _renew(self) -> None:
        sent_at = time.monotonic()
        self._look_at_binding()
        try:
            lease_ms, owned = await self._directory.renew(
                self._identity.engine_id,
                self._identity.incarnation,
                self._engine.profiles.rows(sent_at),
                self._engine.tombstones.failed(),
                [each.world for each in self._engine.sessions.values()],
                self._engine.lease.lease_s,
                () if self._engine.self_checks is None else self._engine.self_checks.done,
            )
        except NotFound:
            # A directory that was made anew: it must hear of this engine first.
            await self._register()
            return
        self._granted(sent_at, lease_ms)
        for session in list(self._engine.sessions.values()):
            self._check_ownership(session, owned, sent_at)

    def _granted(self, sent_at: float, lease_ms: float) -> None:
        self._engine.lease = self._engine.lease.renewed(sent_at, lease_ms)
        self._engine.generation.wake.notify()

    def _check_ownership(self, session: Session, owned: dict[str, int], sent_at: float) -> None:
        """Only running worlds: a frozen or staged one asks about its move instead."""
        if session.world.phase not in (Phase.RUNNING, Phase.GENERATING):
            session.renewals_missed = 0
            return
        if owned.get(session.session_id) == session.world.epoch:
            session.renewals_missed = 0
        elif session.owned_since < sent_at:
            session.renewals_missed += 1
            if session.renewals_missed >= RENEWALS_MISSED_MAX:
                self._engine.lose(session)

    async def _ask_if_silent(self, session: Session, now: float) -> None:
        for effect in session.apply(ev.AskTimerFired(), now):
            if isinstance(effect, ev.AskMove):
                await self._tried("ask", partial(self._ask, session, effect.move_id))

    async def _ask(self, session: Session, move_id: str) -> None:
        outcome = await self._directory.outcome(move_id)
        # The world may have gone on while placement answered.
        if session.world.phase in (Phase.FROZEN, Phase.ATTACHED):
            session.apply(ev.MoveAnswered(move_id, outcome), time.monotonic())
            session.owned_since = time.monotonic()
            self._engine.generation.wake.notify()

    async def _tried(self, what: str, step: Callable[[], Awaitable[None]]) -> bool:
        """Run one step; a peer's trouble is logged and tried again later, never fatal."""
        try:
            await step()
        except WorldlineError as error:
            _log.warning("placement.failed", what=what, reason=error.reason, error=str(error))
            return False
        return True
