"""Generation: the loop goes on with a block by itself, and still asks after every quantum."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager

import torch

from services.engine import events as ev
from services.engine.core import Phase
from services.engine.device import CPU_DEVICE
from services.engine.generation import Generation
from services.engine.lease import Lease
from services.engine.making import memory_for, new_world
from services.engine.privateslot import PrivateSlot
from services.engine.profile import Profiles
from services.engine.schedule import Band, Choice, Chooser, Claim, Idle, Wait, pick
from services.engine.session import Session
from services.engine.signal import wait_for_change
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, Action, Frames, StateTree
from worldline.contract import Contract, ServiceClass
from worldline.state.tree import TensorSpec, plan
from worldline.v1 import move_pb2

DEADLINE_S = 60.0


class Scripted:
    """A model of four quanta a block; `before` is called in the worker's thread before each."""

    preset = "scripted"
    quanta_per_block = 4
    denoising_steps = 3

    def __init__(self, name: str, before: Callable[[str, int], None]) -> None:
        self._name = name
        self._before = before

    def warm(self) -> None:
        """Nothing to warm."""

    def state_spec(self) -> StateTree:
        return {"leaf": TensorSpec(torch.uint8, (8,))}

    def initialise(self, state: StateTree, seed: int) -> None:
        """Zeros will do."""

    def block(self, state: StateTree, action: Action, steps: int) -> Generator[None, None, Frames]:
        for number in range(self.quanta_per_block):
            if number > 0:
                yield
            self._before(self._name, number)
        return NO_FRAMES


class Stage:
    """Sessions of one loop, and the order in which their quanta ran."""

    def __init__(self, choose: Chooser = pick) -> None:
        self.order: list[tuple[str, int]] = []
        #: What happens on the event loop before a quantum runs, by name and number.
        self.happens: dict[tuple[str, int], Callable[[], None]] = {}
        self.lease = Lease().renewed(time.monotonic(), 1e9)
        self.leased: list[bool] = []
        self.worker = Worker(threads=1)
        self.sessions: dict[str, Session] = {}
        self.generation = Generation(
            self.sessions, self.worker, Profiles(), lambda: self.lease, choose=choose
        )

    def add(self, name: str, horizon_ms: float) -> Session:
        contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=horizon_ms)
        model = Scripted(name, self._before)
        layout = plan(model.state_spec())
        world = new_world(name, 1, Phase.OPENING, contract)
        session = Session(world, contract, model, move_pb2.SlotRef())
        session.memory = memory_for(model, PrivateSlot(layout.extent_bytes, CPU_DEVICE), layout)
        session.memory.begin()
        session.apply(ev.Opened(), time.monotonic())
        self.sessions[name] = session
        return session

    def act(self, name: str) -> None:
        session = self.sessions[name]
        action = Action(session.world.next_action_index)
        session.apply(ev.ActionArrived(action, 0), time.monotonic())
        self.generation.wake.notify()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        task = asyncio.create_task(self.generation.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.worker.close()

    async def played(self, name: str, blocks: int) -> None:
        session = self.sessions[name]
        async with asyncio.timeout(DEADLINE_S):
            while session.world.block_index < blocks:
                token = session.changed.token()
                if session.world.block_index < blocks:
                    await wait_for_change(token, DEADLINE_S)

    def _before(self, name: str, number: int) -> None:
        self.order.append((name, number))
        self.leased.append(self.lease.holds(time.monotonic()))
        happens = self.happens.pop((name, number), None)
        if happens is not None:
            done = threading.Event()

            def happen() -> None:
                happens()
                done.set()

            self._loop.call_soon_threadsafe(happen)
            assert done.wait(DEADLINE_S)


def quanta(name: str, *numbers: int) -> list[tuple[str, int]]:
    return [(name, number) for number in numbers]


async def test_a_block_that_is_alone_goes_on_to_its_end() -> None:
    stage = Stage()
    stage.add("s1", 10_000.0)
    async with stage.running():
        stage.act("s1")
        await stage.played("s1", 1)
    assert stage.order == quanta("s1", 0, 1, 2, 3)


async def test_a_nearer_deadline_overtakes_at_the_next_yield() -> None:
    stage = Stage()
    stage.add("late", 60_000.0)
    stage.add("soon", 100.0)
    stage.happens["late", 1] = lambda: stage.act("soon")
    async with stage.running():
        stage.act("late")
        await stage.played("late", 1)
        await stage.played("soon", 1)
    expected = [*quanta("late", 0, 1), *quanta("soon", 0, 1, 2, 3), *quanta("late", 2, 3)]
    assert stage.order == expected


async def test_a_later_deadline_waits_for_the_boundary() -> None:
    stage = Stage()
    stage.add("soon", 100.0)
    stage.add("late", 60_000.0)
    stage.happens["soon", 1] = lambda: stage.act("late")
    async with stage.running():
        stage.act("soon")
        await stage.played("late", 1)
    assert stage.order == [*quanta("soon", 0, 1, 2, 3), *quanta("late", 0, 1, 2, 3)]


async def test_another_chooser_takes_the_place_of_the_schedule() -> None:
    def last(claims: Iterable[Claim], now: float, **_: object) -> Choice | Idle:
        found = list(claims)
        return Choice(found[-1], Band.HARD) if found else Idle(now + 1.0, Wait.NO_WORK)

    stage = Stage(last)
    stage.add("soon", 100.0)
    stage.add("late", 60_000.0)
    async with stage.running():
        stage.act("soon")
        stage.act("late")
        await stage.played("soon", 1)
    assert stage.order == [*quanta("late", 0, 1, 2, 3), *quanta("soon", 0, 1, 2, 3)]


async def test_no_quantum_is_begun_without_a_lease() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)

    def lose() -> None:
        stage.lease = Lease()

    stage.happens["s1", 1] = lose
    async with stage.running(), asyncio.timeout(DEADLINE_S):
        stage.act("s1")
        while session.flight is None or session.flight.quanta_done < 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        await stage.worker.run(lambda: None)  # behind whatever has been begun
        stage.lease = Lease().renewed(time.monotonic(), 1e9)
        stage.generation.wake.notify()
        await stage.played("s1", 1)
    assert stage.order == quanta("s1", 0, 1, 2, 3)
    assert stage.leased == [True, True, True, True]


async def test_a_lost_world_gets_no_quantum_more() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)

    def lose() -> None:
        session.apply(ev.OwnershipLost(), time.monotonic())
        stage.generation.wake.notify()

    stage.happens["s1", 1] = lose
    async with stage.running(), asyncio.timeout(DEADLINE_S):
        stage.act("s1")
        while session.memory is not None:
            token = session.changed.token()
            if session.memory is not None:
                await wait_for_change(token, DEADLINE_S)
        await stage.worker.run(lambda: None)
    assert stage.order == quanta("s1", 0, 1)
