"""Served: sessions of one engine's generation loop, and clients that never let it wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from bench.serving_overhead.stamped import StampedWorld, Stamps, busy_ns
from services.engine import events as ev
from services.engine.core import PENDING_MAX, Phase
from services.engine.device import CPU_DEVICE
from services.engine.generation import Generation
from services.engine.lease import Lease
from services.engine.making import memory_for, new_world
from services.engine.model.causal import CausalWorld
from services.engine.model.config import WorldConfig
from services.engine.model.weights import build_weights
from services.engine.privateslot import PrivateSlot
from services.engine.profile import Profiles
from services.engine.quantum import decoded, step
from services.engine.session import Session, Stream
from services.engine.signal import wait_for_change
from services.engine.worker import Worker
from services.engine.world import Action
from worldline.contract import Contract, DecodeTier, ServiceClass
from worldline.state.digest import crc64
from worldline.state.tree import plan
from worldline.v1 import move_pb2

#: A client waits for its next block so long at most.
_DEADLINE_S = 60.0


class Served:
    """One worker thread, and in it turn by turn the bare model and the served one."""

    def __init__(self, config: WorldConfig, sessions: int) -> None:
        self.stamps = Stamps()
        self._worker = Worker(threads=1)
        self._model = StampedWorld(
            CausalWorld(build_weights(config, 0, CPU_DEVICE.torch_device)), self.stamps
        )
        self._layout = plan(self._model.state_spec())
        self._bare = self._session("bare")
        names = (f"session-{number}" for number in range(sessions))
        self._sessions = {name: self._session(name) for name in names}
        lease = Lease().renewed(time.monotonic(), 1e9)
        self._generation = Generation(self._sessions, self._worker, Profiles(), lambda: lease)

    def _session(self, name: str) -> Session:
        """As an engine makes one, in private memory; a client paces it."""
        contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=1_000.0)
        world = new_world(name, 1, Phase.OPENING, contract)
        session = Session(world, contract, self._model, move_pb2.SlotRef())
        slot = PrivateSlot(self._layout.extent_bytes, CPU_DEVICE)
        session.memory = memory_for(self._model, slot, self._layout)
        session.memory.begin()
        self._model.initialise(session.memory.state, seed=len(name))
        session.apply(ev.Opened(), time.monotonic())
        session.stream = Stream(0, digests_wanted=False)
        return session

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The loop runs meanwhile, as in an engine."""
        # A loop that ends by itself has failed: the group raises what it raised.
        try:
            async with asyncio.TaskGroup() as group:
                loop = group.create_task(self._generation.run(), name="generation")
                yield
                loop.cancel()
        finally:
            self._worker.close()

    async def bare_turn(self, blocks: int) -> None:
        """So many blocks in the worker's thread, without anything around their passes but what is
        sent of a block: the floor of every gap.
        """
        self.stamps.clear()
        await self._worker.run(lambda: self._run_bare(blocks))

    def _run_bare(self, blocks: int) -> None:
        memory = self._bare.open_memory()
        for _ in range(blocks):
            action = Action(memory.state["block_index"])
            run = self._model.block(memory.state, action, self._model.denoising_steps)
            while (frames := step(run)) is None:
                pass
            crc64(decoded(frames, DecodeTier.FULL).pixels)

    async def handed_turn(self, blocks: int) -> None:
        """So many blocks, each pass handed to the worker's thread and waited for on the event loop:
        what a hand-over costs here, before anybody decides anything.
        """
        self.stamps.clear()
        memory = self._bare.open_memory()
        for _ in range(blocks):
            action = Action(memory.state["block_index"])
            run = self._model.block(memory.state, action, self._model.denoising_steps)
            while await self._worker.run(partial(step, run)) is None:
                pass

    async def served_turn(self, blocks: int) -> int:
        """So many blocks of all sessions together, through the loop; what its thread spent on
        them, nanoseconds of the processor.
        """
        self.stamps.clear()
        each = blocks // len(self._sessions)
        begun_ns = busy_ns()
        async with asyncio.timeout(_DEADLINE_S + blocks):
            await asyncio.gather(*(self._play(one, each) for one in self._sessions.values()))
        return busy_ns() - begun_ns

    async def _play(self, session: Session, blocks: int) -> None:
        """A client that has its next actions there before they are needed."""
        stream = session.stream or Stream(0, digests_wanted=False)
        last = stream.cursor + blocks
        asked = stream.cursor
        while stream.cursor < last:
            token = session.changed.token()
            while asked < last and len(session.world.pending) < PENDING_MAX:
                session.apply(ev.ActionArrived(Action(asked), 0), time.monotonic())
                asked += 1
                self._generation.wake.notify()
                token = session.changed.token()
            if session.ending is not None and session.ending.error is not None:
                raise session.ending.error
            if session.outbox.get(stream.cursor) is None:
                await wait_for_change(token, _DEADLINE_S)
                continue
            stream.cursor += 1
            self._generation.wake.notify()
