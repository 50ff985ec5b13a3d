"""Engine: one model on one device, its worker's thread, and the engine's own loop over sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.serving.real.arms import BULK, INTERACTIVE, Arm
from bench.serving.real.outcome import Outcome, Seen, outcome
from bench.serving.real.player import Player
from services.engine import events as ev
from services.engine.core import Phase
from services.engine.expected import Expected
from services.engine.generation import Generation
from services.engine.lease import Lease
from services.engine.making import memory_for, new_world
from services.engine.privateslot import PrivateSlot
from services.engine.profile import Profiles
from services.engine.session import Session
from services.engine.signal import wait_for_change
from services.engine.worker import Worker
from services.engine.world import WorldModel
from worldline.admissibility.profile_row import RequestShape, shape_of
from worldline.contract import Contract, ServiceClass
from worldline.state.tree import plan
from worldline.v1 import move_pb2

#: For as long a first block may be waited for.
_DEADLINE_S = 300.0
_HORIZON_MS = 1_000.0
_NO_PERIOD = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=_HORIZON_MS)


@dataclass(frozen=True, slots=True)
class Workload:
    """What every arm gets: an interactive session with a period, and a finite job of bulk."""

    period_s: float
    floor_steps: int
    periods: int
    bulk_blocks: int

    def interactive(self, *, knob: bool) -> Contract:
        """Without the knob there is no floor below full quality."""
        period_ms = self.period_s * 1e3
        return Contract(
            ServiceClass.C1_INTERACTIVE,
            horizon_ms=max(_HORIZON_MS, 2 * period_ms),
            period_ms=period_ms,
            quality_floor_steps=self.floor_steps if knob else 0,
        )


class NotedProfiles(Profiles):
    """An engine's rows, and every quantum that they are made of."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.quanta_ms: list[float] = []

    def add(
        self,
        shape: RequestShape,
        model: WorldModel,
        quantum_ms: float,
        *,
        closing: bool,
        now: float,
    ) -> None:
        """See `Profiles`."""
        self.quanta_ms.append(quantum_ms)
        super().add(shape, model, quantum_ms, closing=closing, now=now)


class Engine:
    """One engine process as the schedule sees it. Its rows outlive the trials, as in service."""

    def __init__(self, model: WorldModel, worker: Worker) -> None:
        self.profiles = NotedProfiles(worker.device.name)
        self._model = model
        self._worker = worker
        self._layout = plan(model.state_spec())
        self._lease = Lease().renewed(time.monotonic(), 1e9)

    @property
    def state_bytes(self) -> int:
        """Of one session."""
        return self._layout.extent_bytes

    async def measured(self, blocks: int) -> Expected:
        """What quanta take here, learned from so many blocks of a session without a period."""
        await self._worker.run(self._model.warm)
        session = self._session(INTERACTIVE, _NO_PERIOD, 0)
        async with self._open({INTERACTIVE: session}):
            generation = self._generation({INTERACTIVE: session})
            player = Player(session, generation.wake, 0, blocks)
            async with asyncio.timeout(_DEADLINE_S), asyncio.TaskGroup() as group:
                loop = group.create_task(generation.run(), name="generation")
                await player.play()
                loop.cancel()
            await self._settled()
        return self.profiles.expected(shape_of(self._model.preset, _NO_PERIOD))

    async def trial(self, arm: Arm, load: Workload, seed: int) -> Outcome:
        """Fresh sessions of that seed, `load.periods` periods long from the grid's opening on."""
        contract = load.interactive(knob=arm.knob)
        first = self._session(INTERACTIVE, contract, seed)
        bulk = Contract(ServiceClass.C3_BULK, horizon_ms=_HORIZON_MS)
        sessions = {INTERACTIVE: first, BULK: self._session(BULK, bulk, seed)}
        async with self._open(sessions):
            generation = self._generation(sessions, arm)
            player = Player(first, generation.wake, seed)
            job = Player(sessions[BULK], generation.wake, seed, load.bulk_blocks)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each.play()) for each in (player, job)]
                tasks.append(group.create_task(generation.run(), name="generation"))
                since = await _opened_at(first)
                index = first.world.block_index
                self.profiles.quanta_ms.clear()
                until = since + load.periods * load.period_s
                await asyncio.sleep(max(0.0, until - time.monotonic()))
                for task in tasks:
                    task.cancel()
            await self._settled()
        quanta_ms = self.profiles.quanta_ms
        return outcome(player.seen, job.seen, quanta_ms, first=index, since=since, until=until)

    async def together(
        self, count: int, contract: Contract, periods: int
    ) -> list[tuple[Seen, ...]]:
        """What clients of so many sessions under one contract saw, from the last grid's opening on.

        Fresh sessions, each with a seed of its own, and each one's first block left out.
        """
        names = [f"resident-{number}" for number in range(count)]
        sessions = {name: self._session(name, contract, seed) for seed, name in enumerate(names)}
        async with self._open(sessions):
            generation = self._generation(sessions)
            players = [
                Player(session, generation.wake, seed)
                for seed, session in enumerate(sessions.values())
            ]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(player.play()) for player in players]
                tasks.append(group.create_task(generation.run(), name="generation"))
                anchors = [await _opened_at(session) for session in sessions.values()]
                since = max(anchors)
                first = {name: one.world.block_index for name, one in sessions.items()}
                until = since + periods * contract.period_ms / 1e3
                await asyncio.sleep(max(0.0, until - time.monotonic()))
                for task in tasks:
                    task.cancel()
            await self._settled()
        return [
            tuple(
                block
                for block in player.seen
                if block.block_index >= first[name] and block.at <= until
            )
            for name, player in zip(names, players, strict=True)
        ]

    def _generation(self, sessions: Mapping[str, Session], arm: Arm | None = None) -> Generation:
        def lease() -> Lease:
            return self._lease

        if arm is None:
            return Generation(sessions, self._worker, self.profiles, lease)
        return Generation(sessions, self._worker, self.profiles, lease, choose=arm.chooser())

    def _session(self, name: str, contract: Contract, seed: int) -> Session:
        """As an engine makes one, in private memory."""
        world = new_world(name, 1, Phase.OPENING, contract)
        session = Session(world, contract, self._model, move_pb2.SlotRef())
        slot = PrivateSlot(self._layout.extent_bytes, self._worker.device)
        session.memory = memory_for(self._model, slot, self._layout)
        session.memory.begin()
        self._model.initialise(session.memory.state, seed)
        session.apply(ev.Opened(), time.monotonic())
        return session

    @asynccontextmanager
    async def _open(self, sessions: Mapping[str, Session]) -> AsyncIterator[None]:
        """Their memory is given back afterwards."""
        try:
            yield
        finally:
            for session in sessions.values():
                session.unmap()
                await session.unmapped(_DEADLINE_S)

    async def _settled(self) -> None:
        """Wait for the quantum that a cancelled loop has left running."""
        await self._worker.run(lambda: None)


async def _opened_at(session: Session) -> float:
    """Once the session's grid is open: its anchor."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            token = session.changed.token()
            grid = session.world.pace.grid
            if grid is not None and grid.anchor_at is not None:
                return grid.anchor_at
            await wait_for_change(token, _DEADLINE_S)
