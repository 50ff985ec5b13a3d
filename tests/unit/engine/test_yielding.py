"""Yielding: whatever an engine does for itself, a world that is due goes before the next part.

Decided by counting: in which order quanta and parts ran in the worker's thread. A part that runs
while no action is there is held until one has come; the quantum must then be next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.engine import chores, generation, measuring, parts
from services.engine.device import EngineDevice
from services.engine.measuring import BLOCKS_TIMED
from services.engine.model.config import MG2
from services.engine.model.dirty import DirtyWorld
from services.engine.models import Loaded
from services.engine.quantum import Quantum, advance, step
from services.engine.selfcheck import SelfChecks
from tests.unit.engine.owning import owning_world
from tests.unit.engine.support import DEADLINE_S, Harness, SlotServer, script, twin_digests
from tests.unit.engine.test_forking import order as fork_order
from tests.unit.engine.test_inspecting import Watcher, request
from tests.unit.engine.test_measuring import request as measure_request
from worldline.admissibility.profile_row import RequestShape
from worldline.contract import DecodeTier, ServiceClass
from worldline.state.tree import plan
from worldline.v1 import engine_pb2

PART, QUANTUM = "part", "quantum"
#: Before which parts of a chore an action comes.
ACTED_AT = (2, 4)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    server = SlotServer(str(tmp_path / "slots.sock"), 96 << 20)
    async with Harness(server) as harness:
        yield harness
    server.close()


class Watched:
    """What ran in the worker's thread, in order, while a world beside is played."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._harness = harness
        self._part = chores._next
        self.order: list[str] = []
        #: A part of this number is held until the world beside has an action.
        self.held_at: set[int] = set()
        monkeypatch.setattr(chores, "_next", self._next)
        monkeypatch.setattr(generation, "advance", self._advance)

    def _next(self, work: parts.Parts[Any], device: EngineDevice) -> Any:
        part = self._part(work, device)
        self.order.append(PART)
        if self.order.count(PART) in self.held_at:
            acting = asyncio.run_coroutine_threadsafe(self._acted(), self._loop)
            acting.result(DEADLINE_S)
        return part

    def _advance(self, *args: Any) -> Quantum:
        quantum = advance(*args)
        self.order.append(QUANTUM)
        return quantum

    async def _acted(self) -> None:
        """The world beside gets its next action."""
        session = self._harness.engine.session("beside")
        await self.player.act(script(session.world.next_action_index))
        async with asyncio.timeout(DEADLINE_S):
            while not session.world.pending:
                token = session.changed.token()
                if not session.world.pending:
                    await token.wait()

    async def beside(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do it beside a world that is played meanwhile; its blocks are its twin's."""
        async with self._harness.join(0, "beside") as self.player:
            await self.player.joined()
            self.order.clear()
            self.held_at = set(ACTED_AT)
            doing = asyncio.ensure_future(work())
            blocks = [await self.player.block() for _ in ACTED_AT]
            async with asyncio.timeout(DEADLINE_S):
                await doing
        seen = [(block.state_digest, block.frames_digest) for block in blocks]
        assert seen == twin_digests(len(ACTED_AT))

    def check(self, *, parts_at_least: int) -> None:
        """Every quantum that was due went before the next part."""
        assert self.order.count(PART) >= parts_at_least, self.order
        assert self.order.count(QUANTUM) == 4 * len(ACTED_AT)
        ran = [index for index, one in enumerate(self.order) if one == PART]
        for number in ACTED_AT:
            block = [PART]
            for one in self.order[ran[number - 1] + 1 :]:
                # One that has waited long enough goes between two quanta, but never two of them.
                assert QUANTUM in (one, *block[-1:]), self.order
                block.append(one)
                if block.count(QUANTUM) == 4:
                    break


@pytest.fixture
async def watched(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A C1 world beside which something is done; a state of 60 MB of `mg2`'s is at hand."""
    monkeypatch.setattr(parts, "HOST_PART_BYTES", 1 << 20)
    model = DirtyWorld(MG2).sample()
    harness.engine._models._loaded["mg2"] = Loaded(model, plan(model.state_spec()))
    await harness.open("beside")
    return Watched(harness, monkeypatch)


async def test_a_large_state_is_opened(watched: Watched, harness: Harness) -> None:
    await watched.beside(lambda: harness.open("large", "mg2"))
    watched.check(parts_at_least=30)


async def test_a_large_state_is_inspected_for_the_first_time(
    watched: Watched, harness: Harness
) -> None:
    await harness.open("large", "mg2")
    spec = engine_pb2.WorldSpec(preset="mg2", seed=7)
    watcher = Watcher(harness, request(2, session_id="large", world=spec))
    await watched.beside(watcher.next)
    watched.check(parts_at_least=30)
    watcher.call.cancel()


async def test_a_large_state_is_forked(watched: Watched, harness: Harness) -> None:
    await harness.open("large", "mg2")
    asked = fork_order(0, session_id="large")
    await watched.beside(lambda: harness.ask("ForkWorld", asked))
    watched.check(parts_at_least=30)


async def test_a_preset_is_warmed_and_checked(watched: Watched, harness: Harness) -> None:
    harness.engine.self_checks = SelfChecks(harness.chores)
    asked = engine_pb2.WarmWorldRequest(world=engine_pb2.WorldSpec(preset="tiny"))
    await watched.beside(lambda: harness.ask("WarmWorld", asked))
    watched.check(parts_at_least=4 + 3 * 2 * 4)
    assert not harness.engine.self_checks.done[0].differs


async def test_a_state_of_a_models_own_tensors_is_stored(
    watched: Watched, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "HOST_PART_BYTES", 100_000)
    model = owning_world(2)
    harness.engine._models._loaded["owning"] = Loaded(model, plan(model.state_spec()))
    await harness.open("large", "owning")
    harness.engine.session("large").open_memory().changing()
    await watched.beside(lambda: harness.freeze(session_id="large"))
    watched.check(parts_at_least=8)


class Ticking:
    """A clock that goes on by one second with every quantum, whoever's it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(measuring, "step", self.ticking(step))
        monkeypatch.setattr(generation, "advance", self.ticking(vars(generation)["advance"]))
        monkeypatch.setattr(measuring, "clock", lambda: self.now)

    def ticking(self, quantum: Callable[..., Any]) -> Callable[..., Any]:
        def ticks(*args: Any) -> Any:
            self.now += 1.0
            return quantum(*args)

        return ticks


async def test_a_preset_is_measured_by_its_quanta_alone(
    watched: Watched, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ticking(monkeypatch)
    asked = measure_request(tier="DECODE_TIER_NONE")  # another row than that of the world beside
    await watched.beside(lambda: harness.ask("WarmWorld", asked))
    watched.check(parts_at_least=12)
    row = harness.engine.profiles.row(RequestShape("tiny", DecodeTier.NONE), 0.0)
    assert row is not None
    assert row.step is not None
    assert (row.step.samples, row.closing.samples) == (3 * BLOCKS_TIMED, BLOCKS_TIMED)
    assert (row.step.p50_ms, row.step.p95_ms, row.closing.p50_ms) == (1e3, 1e3, 1e3)


async def test_a_chore_goes_on_while_no_world_may_run(watched: Watched, harness: Harness) -> None:
    """Without a lease no quantum begins; the engine's own work needs none."""
    harness.engine.lease = type(harness.engine.lease)()
    async with harness.join(0, "beside") as player:
        await player.joined()
        await player.act(script(0))
        watched.order.clear()
        await harness.open("large", "mg2", service_class=ServiceClass.C3_BULK)
        assert watched.order.count(PART) >= 30
        assert QUANTUM not in watched.order
        harness.directory.owned = {"beside": 1, "large": 1}
        await harness.upkeep._renew()
        assert (await player.block()).block_index == 0
