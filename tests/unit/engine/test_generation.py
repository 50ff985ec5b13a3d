"""Generation: the worker goes on with a block by itself; whatever happens is seen at a yield."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.engine import events as ev
from services.engine import generation as generation_module
from services.engine.core import Phase
from services.engine.device import CPU_DEVICE
from services.engine.generation import Generation
from services.engine.lease import Lease
from services.engine.making import memory_for, new_world
from services.engine.privateslot import PrivateSlot
from services.engine.profile import Profiles
from services.engine.quantum import Quantum
from services.engine.schedule import Band, Choice, Chooser, Claim, Idle, Release, Wait, pick
from services.engine.session import Session
from services.engine.signal import wait_for_change
from services.engine.worker import Worker
from services.engine.world import NO_FRAMES, Action, Frames, StateTree
from worldline.contract import Contract, ServiceClass
from worldline.numa import Binding
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
        #: What quanta raise, by name and number.
        self.fails: dict[tuple[str, int], BaseException] = {}
        #: How often the loop has handed something over.
        self.handed = 0
        self.lease = Lease().renewed(time.monotonic(), 1e9)
        self.leased: list[bool] = []
        self.worker = Worker(threads=1)
        self._submit = self.worker.submit
        self.worker.submit = self._counted  # type: ignore[method-assign]
        self.sessions: dict[str, Session] = {}
        self.profiles = Profiles()
        self.generation = Generation(
            self.sessions, self.worker, self.profiles, lambda: self.lease, choose=choose
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
        self.task = asyncio.create_task(self.generation.run())
        try:
            yield
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.worker.close()

    async def played(self, name: str, blocks: int) -> None:
        session = self.sessions[name]
        async with asyncio.timeout(DEADLINE_S):
            while session.world.block_index < blocks:
                token = session.changed.token()
                if session.world.block_index < blocks:
                    await wait_for_change(token, DEADLINE_S)

    def _counted(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        self.handed += 1
        return self._submit(function)

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
        if (name, number) in self.fails:
            raise self.fails[name, number]


def quanta(name: str, *numbers: int) -> list[tuple[str, int]]:
    return [(name, number) for number in numbers]


async def test_a_block_that_is_alone_goes_on_to_its_end() -> None:
    stage = Stage()
    stage.add("s1", 10_000.0)
    async with stage.running():
        stage.act("s1")
        await stage.played("s1", 1)
    assert stage.order == quanta("s1", 0, 1, 2, 3)
    assert stage.handed == 1, "two threads wake each other once a block"


async def test_actions_for_later_blocks_do_not_stop_the_worker() -> None:
    stage = Stage()
    stage.add("s1", 10_000.0)
    stage.happens["s1", 1] = lambda: stage.act("s1")
    async with stage.running():
        stage.act("s1")
        await stage.played("s1", 2)
    assert stage.order == quanta("s1", 0, 1, 2, 3) * 2
    assert stage.handed == 2


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
    assert stage.handed == 2


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
    assert stage.handed == 4 + 1, "alone it goes on unasked"


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


async def test_a_release_that_passes_is_seen_at_the_next_yield(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing happens then but that time goes by."""
    passed_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0])
    monkeypatch.setattr(generation_module, "time", clock)
    stage = Stage()
    stage.add("late", 86_400_000.0)
    soon = stage.add("soon", 100.0)

    def ask() -> None:
        stage.act("soon")
        release_at = time.monotonic() + 500.0
        pace = replace(soon.world.pace, release=Release(release_at, release_at + 1.0))
        soon.world = replace(soon.world, pace=pace)

    stage.happens["late", 0] = ask
    stage.happens["late", 2] = lambda: passed_s.append(passed_s.pop() + 600.0)
    async with stage.running():
        stage.act("late")
        await stage.played("late", 1)
    expected = [*quanta("late", 0, 1, 2), *quanta("soon", 0, 1, 2, 3), *quanta("late", 3)]
    assert stage.order == expected


async def test_a_boundary_that_somebody_waits_for_is_seen_at_the_next_yield() -> None:
    stage = Stage()
    late = stage.add("late", 86_400_000.0)
    stage.add("soon", 60_000.0)
    stage.happens["late", 0] = lambda: stage.act("soon")
    stage.happens["soon", 1] = lambda: late.press(time.monotonic())
    async with stage.running():
        stage.act("late")
        await stage.played("soon", 1)
    expected = [*quanta("late", 0), *quanta("soon", 0, 1), *quanta("late", 1, 2, 3)]
    assert stage.order == [*expected, *quanta("soon", 2, 3)]


async def test_a_freeze_ends_with_the_block_in_flight() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)

    def freeze() -> None:
        stage.act("s1")
        session.apply(ev.FreezeAsked(1, "m1"), time.monotonic())
        session.press(time.monotonic())

    stage.happens["s1", 1] = freeze
    async with stage.running():
        stage.act("s1")
        await stage.played("s1", 1)
        await stage.worker.run(lambda: None)
        assert session.world.phase is Phase.FROZEN
    assert stage.order == quanta("s1", 0, 1, 2, 3)


async def test_other_work_has_its_turn_at_the_next_yield() -> None:
    """Digests, checks, first states: whatever is run in the worker's thread."""
    stage = Stage()
    stage.add("s1", 10_000.0)
    others: list[asyncio.Future[None]] = []

    def submit(number: int) -> None:
        others.append(stage.worker.submit(lambda: stage.order.append(("other", number))))

    stage.happens["s1", 1] = lambda: submit(0)
    stage.happens["s1", 2] = lambda: submit(1)
    async with stage.running():
        stage.act("s1")
        await stage.played("s1", 1)
    expected = [*quanta("s1", 0, 1), ("other", 0), *quanta("s1", 2), ("other", 1)]
    assert stage.order == [*expected, *quanta("s1", 3)]
    assert all(each.done() for each in others)


async def test_a_session_in_doubt_gets_no_quantum_more() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)

    def doubt() -> None:
        session.renewals_missed = 1

    stage.happens["s1", 1] = doubt
    async with stage.running(), asyncio.timeout(DEADLINE_S):
        stage.act("s1")
        while session.flight is None or session.flight.quanta_done < 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        await stage.worker.run(lambda: None)
        assert stage.order == quanta("s1", 0, 1)
        session.renewals_missed = 0
        stage.generation.wake.notify()
        await stage.played("s1", 1)
    assert stage.order == quanta("s1", 0, 1, 2, 3)


def lose(session: Session) -> None:
    session.apply(ev.OwnershipLost(), time.monotonic())


async def test_another_world_that_is_lost_ends_at_the_next_yield() -> None:
    stage = Stage()
    lost = stage.add("lost", 60_000.0)
    stage.add("soon", 100.0)
    seen: list[bool] = []
    stage.happens["lost", 0] = lambda: stage.act("soon")
    stage.happens["soon", 1] = lambda: lose(lost)
    stage.happens["soon", 2] = lambda: seen.append(lost.memory is None)
    async with stage.running():
        stage.act("lost")
        await stage.played("soon", 1)
    assert stage.order == [*quanta("lost", 0), *quanta("soon", 0, 1, 2, 3)]
    assert seen == [True]


async def test_the_lease_must_outlast_what_no_row_knows_of_yet() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)
    stage.lease = Lease().renewed(time.monotonic() - 1_700.0, 2_000e3)

    async def stays(last_s: float) -> bool:
        return await stage.worker.run(
            lambda: stage.generation._stays(session, Quantum(last_s * 1e3))
        )

    async with stage.running():
        assert await stays(1.0)
        assert not await stays(400.0), "300 s are left of it"


async def test_what_ran_where_the_engine_is_bound_no_more_makes_no_row() -> None:
    stage = Stage()
    session = stage.add("s1", 10_000.0)

    def bind_elsewhere() -> None:
        stage.profiles.bind(Binding(frozenset({77})))

    async with stage.running():
        for blocks, measured in ((1, False), (2, True), (3, False), (4, True)):
            if blocks == 3:
                stage.happens["s1", 2] = bind_elsewhere
            stage.act("s1")
            await stage.played("s1", blocks)
            assert (stage.profiles.expected(session.shape).step_s > 0) is measured


async def test_a_failure_in_the_midst_of_a_block_ends_its_world_alone() -> None:
    stage = Stage()
    session = stage.add("s1", 100.0)
    stage.add("s2", 60_000.0)
    stage.fails["s1", 2] = ValueError("no")
    async with stage.running():
        stage.act("s1")
        stage.act("s2")
        await stage.played("s2", 1)
    assert stage.order == [*quanta("s1", 0, 1, 2), *quanta("s2", 0, 1, 2, 3)]
    assert session.world.phase is Phase.RELEASED
    assert session.ending is not None
    assert "ValueError: no" in str(session.ending.error)
    assert session.memory is None


async def test_what_no_world_can_be_blamed_for_ends_the_loop() -> None:
    class Ends(BaseException):
        """No `Exception`: nobody takes it for a model's mistake."""

    stage = Stage()
    stage.add("s1", 100.0)
    stage.fails["s1", 1] = Ends("no")
    async with stage.running():
        stage.act("s1")
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Ends):
                await asyncio.shield(stage.task)


async def test_a_loop_that_is_cancelled_begins_nothing_more() -> None:
    stage = Stage()
    stage.add("s1", 10_000.0)
    ended = asyncio.Event()

    def cancel() -> None:
        stage.task.cancel()
        ended.set()

    stage.happens["s1", 1] = cancel
    async with stage.running():
        stage.act("s1")
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
    assert stage.order == quanta("s1", 0, 1)


async def test_another_chooser_is_asked_after_every_quantum_and_by_the_loop_alone() -> None:
    """It may count its turns."""
    asked: list[int] = []

    def other_one(claims: Iterable[Claim], now: float, **_: object) -> Choice | Idle:
        asked.append(threading.get_ident())
        found = list(claims)
        if not found:
            return Idle(now + 1.0, Wait.NO_WORK)
        before = stage.order[-1][0] if stage.order else ""
        return Choice(next((one for one in found if one.session_id != before), found[0]), Band.HARD)

    stage = Stage(other_one)
    stage.add("a", 100.0)
    stage.add("b", 60_000.0)
    async with stage.running():
        stage.act("a")
        stage.act("b")
        await stage.played("b", 1)
    assert stage.order == [(name, number) for number in range(4) for name in ("a", "b")]
    assert set(asked) == {threading.get_ident()}
