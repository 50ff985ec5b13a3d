"""Forks over gRPC: branches are the parent bit for bit, then nobody's but their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.engine import parts
from services.engine.core import Phase
from services.engine.events import Dispatched
from services.engine.fork_order import order_from_proto
from services.engine.forking import Forking
from services.engine.hostslot import HostSlot
from services.engine.memory import Memory
from services.engine.session import Session
from tests.unit.engine.owning import make_owning
from tests.unit.engine.support import (
    DEADLINE_S,
    Harness,
    contract_of,
    script,
    slot_mapped,
    twin_digests,
    until,
)
from worldline.contract import ServiceClass, contract_to_proto
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    IntegrityError,
    InvalidInput,
    InvariantBroken,
    NotFound,
    Unavailable,
    WorldlineError,
)
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.v1 import engine_pb2

BEFORE, AFTER = 1, 2
Seen = list[tuple[int, int]]


def order(*numbers: int, **facts: Any) -> engine_pb2.ForkWorldRequest:
    """Branches b0, b1, ... of s1, each of the epoch 1."""
    branches = [
        engine_pb2.ForkWorldRequest.Branch(session_id=f"b{number}", epoch=1, number=number)
        for number in numbers
    ]
    contract = contract_to_proto(contract_of())
    given = {"session_id": "s1", "epoch": 1, "contract": contract, "branches": branches}
    return engine_pb2.ForkWorldRequest(**given | facts)


async def fork(harness: Harness, *numbers: int, **facts: Any) -> Any:
    return await harness.ask("ForkWorld", order(*numbers, **facts))


async def played(harness: Harness, session_id: str, first: int, count: int) -> Seen:
    async with harness.join(first, session_id) as player:
        await player.joined()
        blocks = await player.play(first, count)
    return [(block.state_digest, block.frames_digest) for block in blocks]


async def digest(harness: Harness, session_id: str) -> int:
    request = engine_pb2.RegisterWorldRequest(session_id=session_id)
    answer = await harness.ask("RegisterWorld", request)
    return int(answer.manifest.digests.whole)


async def opened(harness: Harness) -> Harness:
    await harness.open()
    assert await played(harness, "s1", 0, BEFORE) == twin_digests(BEFORE)
    return harness


async def refused(harness: Harness, kind: type[WorldlineError], request: Any) -> WorldlineError:
    """The fork fails so, and nothing of it is left: no world, no slot. The parent plays on."""
    before = set(harness.engine.sessions)
    taken = [slot for slot in range(4) if slot not in harness.slots.free]
    with pytest.raises(kind) as caught:
        await harness.ask("ForkWorld", request)
    assert set(harness.engine.sessions) == before
    assert harness.engine.arriving.under_way == set()
    kept = [slot for slot in range(4) if slot not in harness.slots.free]
    assert sorted(set(kept) - set(taken)) == sorted(harness.slots.released)
    assert all(session.held == 0 for session in harness.engine.sessions.values())
    return caught.value


async def plays_on(harness: Harness) -> None:
    assert await played(harness, "s1", BEFORE, AFTER) == twin_digests(BEFORE + AFTER)[BEFORE:]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny state is copied in many."""
    monkeypatch.setattr(parts, "HOST_PART_BYTES", 100_001)


@pytest.mark.parametrize("owning", [False, True], ids=["slots", "own tensors"])
async def test_with_the_parents_noise_a_branch_is_its_twin(source: Harness, owning: bool) -> None:
    if owning:
        make_owning(source, sets=3)
    await opened(source)
    answer = await fork(source, 0, 1, same_noise=True)
    assert answer.block_index == BEFORE
    assert len({one.slot.slot_index for one in answer.branches}) == 2
    expected = twin_digests(BEFORE + AFTER)[BEFORE:]
    for session_id in ("b1", "s1", "b0"):
        assert await played(source, session_id, BEFORE, AFTER) == expected


@pytest.mark.parametrize("owning", [False, True], ids=["slots", "own tensors"])
async def test_with_noise_of_their_own_branches_go_apart_and_can_be_had_again(
    source: Harness, owning: bool
) -> None:
    if owning:
        make_owning(source, sets=4)
    await opened(source)
    await fork(source, 0, 1)
    first = {name: await played(source, name, BEFORE, AFTER) for name in ("b0", "b1")}
    for name in ("b0", "b1"):
        await source.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id=name, epoch=1))
    source.slots.free += source.slots.released
    source.slots.released.clear()
    source.slots.free += [4, 5]
    # The parent has not moved on: the same numbers are the same branches.
    await fork(source, 1, 0)
    assert {name: await played(source, name, BEFORE, AFTER) for name in first} == first
    await plays_on(source)
    parent = twin_digests(BEFORE + AFTER)[BEFORE:]
    for one, other in zip(first["b0"], first["b1"], strict=True):
        assert len({one[0], other[0]}) == len({one[1], other[1]}) == 2
    for name in first:
        assert all(mine != theirs for mine, theirs in zip(first[name], parent, strict=True))


async def test_nobody_sees_what_another_writes(source: Harness) -> None:
    await opened(source)
    await fork(source, 0, 1, same_noise=True)
    names = ["s1", "b0", "b1"]
    before = await digest(source, "s1")
    for moved, name in enumerate(names, start=1):
        await played(source, name, BEFORE, 1)
        after = [await digest(source, other) for other in names]
        assert [one != before for one in after] == [True] * moved + [False] * (3 - moved)


async def test_a_branch_of_a_branch(source: Harness) -> None:
    await opened(source)
    await fork(source, 0)
    branch = engine_pb2.ForkWorldRequest.Branch(session_id="c", epoch=1, number=0)
    await fork(source, session_id="b0", branches=[branch])
    states = [await digest(source, name) for name in ("s1", "b0", "c")]
    assert len(set(states)) == 3, "the same number, of another parent"


async def test_a_branch_has_a_contract_of_its_own(source: Harness) -> None:
    await opened(source)
    await fork(source, 0, contract=contract_to_proto(contract_of(period_ms=50.0)))
    assert source.engine.session("b0").world.pace.period_s == 0.05
    assert source.engine.session("s1").world.pace.period_s == 0.0


async def test_a_block_in_flight_is_waited_for(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(source)
    session = source.engine.session("s1")
    boundary, waiting = Forking._boundary, asyncio.Event()

    async def seen(forking: Forking, parent: Session) -> None:
        waiting.set()
        await boundary(forking, parent)

    monkeypatch.setattr(Forking, "_boundary", seen)
    async with source.join(BEFORE) as player:
        await player.joined()
        with source.held_quanta():
            await player.act(script(BEFORE))
            await until(lambda: session.world.phase is Phase.GENERATING, session)
            asked = asyncio.ensure_future(fork(source, 0, same_noise=True))
            async with asyncio.timeout(DEADLINE_S):
                await waiting.wait()
            assert session.held == 1
            await player.act(script(BEFORE + 1))
        answer = await asked
        first, second = await player.block(), await player.block()
    assert answer.block_index == BEFORE + 1
    expected = twin_digests(BEFORE + 2)
    assert [(one.state_digest, one.frames_digest) for one in (first, second)] == expected[BEFORE:]
    assert await played(source, "b0", BEFORE + 1, 1) == expected[BEFORE + 1 :]


async def test_a_freeze_in_mid_copy_finds_the_same_state(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(source)
    digest_of, frozen = Memory.digests, []

    def freeze_first(memory: Memory) -> Any:
        if not frozen:
            frozen.append(asyncio.run_coroutine_threadsafe(source.freeze(), loop).result(60))
        return digest_of(memory)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Memory, "digests", freeze_first)
    answer = await fork(source, 0, same_noise=True)
    assert frozen[0].manifest.block_index == answer.block_index == BEFORE
    thaw = engine_pb2.ThawRequest(session_id="s1", epoch=1, move_id="m1")
    await source.ask("Thaw", thaw)
    await plays_on(source)
    assert await played(source, "b0", BEFORE, 1) == twin_digests(BEFORE + 1)[BEFORE:]


async def test_what_cannot_be_forked_is_named(source: Harness) -> None:
    await opened(source)
    await refused(source, NotFound, order(0, session_id="nobody"))
    await refused(source, Fenced, order(0, epoch=2))
    await source.freeze()
    error = await refused(source, Conflict, order(0))
    assert (error.reason, error.field) == ("WORLD_FROZEN", "session_id")


async def test_a_bad_order_names_the_field(source: Harness) -> None:
    await source.open()
    high = contract_of(quality_floor_steps=9, period_ms=9.0)
    branch = engine_pb2.ForkWorldRequest.Branch
    good = branch(session_id="b0", epoch=1, number=0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"branches": []}, "branches"),
        ({"session_id": "b0"}, "branches.session_id"),
        ({"session_id": ""}, "session_id"),
        ({"epoch": 0}, "epoch"),
        ({"contract": None}, "contract.service_class"),
        ({"contract": contract_to_proto(high)}, "contract.quality_floor_steps"),
    ]
    for second, field in (
        (branch(session_id="b0", epoch=1, number=1), "branches.session_id"),
        (branch(session_id="b1", epoch=1, number=0), "branches.number"),
        (branch(session_id="", epoch=1, number=1), "branches.session_id"),
        (branch(session_id="b1", epoch=0, number=1), "branches.epoch"),
    ):
        cases.append(({"branches": [good, second]}, field))
    for facts, field in cases:
        error = await refused(source, InvalidInput, order(0, 1, **facts))
        assert error.field == field


async def test_a_branch_that_is_here_already(source: Harness) -> None:
    await opened(source)
    await fork(source, 0)
    error = await refused(source, Conflict, order(1, 0))
    assert error.reason == "SESSION_PRESENT"
    await plays_on(source)


async def test_no_room_for_all_is_no_branch_at_all(source: Harness) -> None:
    await opened(source)
    await refused(source, CapacityExhausted, order(0, 1, 2, 3))
    assert len(source.slots.released) == 3
    await plays_on(source)


async def test_no_tensors_for_all_is_no_branch_at_all(source: Harness) -> None:
    model = make_owning(source, sets=2)
    await opened(source)
    await refused(source, CapacityExhausted, order(0, 1))
    assert len(model.lent) == 1
    await plays_on(source)


async def test_a_slot_that_cannot_be_mapped(source: Harness) -> None:
    await opened(source)
    source.slots.refuse_map = True
    await refused(source, Unavailable, order(0, 1))
    await plays_on(source)


async def test_a_copy_with_a_wrong_bit_is_no_branch(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(source)
    copying = Memory.copying

    def wrong(memory: Memory, source: Memory) -> parts.Parts[None]:
        yield from copying(memory, source)
        memory.state["decoder"]["pose"].view(dtype=memory.state["first_frame"].dtype)[2] += 0.5

    monkeypatch.setattr(Memory, "copying", wrong)
    error = await refused(source, IntegrityError, order(0, 1))
    assert error.leaf == "decoder.pose"
    await plays_on(source)


def replaced(state: Any, branch: int) -> None:
    state["noise"]["generator"] = state["noise"]["generator"].clone()


def failing(state: Any, branch: int) -> None:
    views = [state["noise"]["generator"][:8]]
    raise ValueError(f"no noise for {branch}, {len(views)} view is held")


@pytest.mark.parametrize(("split", "said"), [(replaced, "noise.generator"), (failing, "no noise")])
async def test_a_model_that_splits_badly(source: Harness, split: Any, said: str) -> None:
    await opened(source)
    source.engine.session("s1").model.split = split  # type: ignore[attr-defined]
    error = await refused(source, InvariantBroken, order(0, 1))
    assert said in error.message
    assert len(source.slots.released) == 2
    await plays_on(source)


class Unsplit:
    """A model without `split`; everything else is the real one's."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "split":
            raise AttributeError(name)
        return getattr(self._model, name)


async def test_a_model_without_noise_to_split_is_forked_only_with_the_same(
    source: Harness,
) -> None:
    await opened(source)
    session = source.engine.session("s1")
    session.model = Unsplit(session.model)  # type: ignore[assignment]
    error = await refused(source, InvalidInput, order(0))
    assert (error.reason, error.field) == ("NOISE_NOT_SPLIT", "same_noise")
    await fork(source, 0, same_noise=True)
    assert await played(source, "b0", BEFORE, 1) == twin_digests(BEFORE + 1)[BEFORE:]


async def in_mid_copy(harness: Harness, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """`act` once, on the event loop, before the first part is copied."""
    copying, pending = Memory.copying, [act]
    loop = asyncio.get_running_loop()

    def held(memory: Memory, source: Memory) -> parts.Parts[None]:
        while pending:
            asyncio.run_coroutine_threadsafe(pending.pop()(), loop).result(60)
        yield from copying(memory, source)

    monkeypatch.setattr(Memory, "copying", held)


async def test_a_parent_that_is_lost_meanwhile_has_no_branches(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(source)

    async def lose() -> None:
        source.engine.lose(source.engine.session("s1"))

    await in_mid_copy(source, monkeypatch, lose)
    error = await refused(source, Conflict, order(0, 1))
    assert error.reason == "PARENT_GONE"
    await source.engine.session("s1").unmapped(DEADLINE_S)
    source.engine.bury_ended()
    assert not slot_mapped()


async def test_a_caller_that_leaves_leaves_nothing(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(source)

    async def leave() -> None:
        asked.cancel()

    await in_mid_copy(source, monkeypatch, leave)
    asked = asyncio.ensure_future(source.engine.fork(order_from_proto(order(0, 1))))
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert set(source.engine.sessions) == {"s1"}
    assert len(source.slots.released) == 2
    await plays_on(source)


async def test_a_branch_that_is_closed_before_it_lives_is_closed_then(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said to be closed at once, its slot would be another's while it is still copied into."""
    await opened(source)
    closing: list[asyncio.Future[None]] = []

    async def close() -> None:
        closing.append(asyncio.ensure_future(source.engine.close("b0", 1)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not closing[0].done()
        assert source.slots.released == []

    await in_mid_copy(source, monkeypatch, close)
    await fork(source, 0, 1)
    async with asyncio.timeout(DEADLINE_S):
        await closing[0]
    assert set(source.engine.sessions) == {"s1", "b1"}
    await plays_on(source)


@pytest.mark.parametrize("reading", ["parent", "branch"])
async def test_a_caller_that_leaves_takes_no_slot_from_under_its_digest(
    source: Harness, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """What a thread still reads is neither unmapped nor given back before it is done."""
    await opened(source)
    digest, loop = HostSlot.digest, asyncio.get_running_loop()
    parent = source.engine.session("s1")
    left, seen = asyncio.Event(), []

    async def leave() -> None:
        asked.cancel()
        # What it would do at once, were the reading not waited for.
        for _ in range(100):
            await asyncio.sleep(0)
        left.set()

    def held(slot: HostSlot, layout: Layout) -> Digests:
        is_parent = parent.memory is not None and slot is parent.memory._slots
        if is_parent is (reading == "parent") and not left.is_set():
            with memoryview(slot._mapping):
                asyncio.run_coroutine_threadsafe(leave(), loop).result(DEADLINE_S)
                seen.append((parent.held, list(source.slots.released)))
        return digest(slot, layout)

    monkeypatch.setattr(HostSlot, "digest", held)
    asked = asyncio.ensure_future(source.engine.fork(order_from_proto(order(0, 1))))
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert seen == [(1 if reading == "parent" else 0, [])]
    assert len(source.slots.released) == 2
    await plays_on(source)


async def test_branches_of_a_cohort_keep_step(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far ahead a member's actions are, it waits for the last of its wave."""
    await opened(source)
    cohort = contract_of(service_class=ServiceClass.C2B_COHORT, cohort="w")
    await fork(source, 0, 1, 2, contract=contract_to_proto(cohort))
    apply, begun = Session.apply, []

    def noted(session: Session, event: Any, now: float) -> Any:
        if isinstance(event, Dispatched):
            members = [source.engine.sessions[f"b{number}"] for number in range(3)]
            begun.append((session.session_id, session.world.block_index))
            behind = [one.world.block_index for one in members]
            if session in members:
                assert session.world.block_index == min(behind), begun
        return apply(session, event, now)

    monkeypatch.setattr(Session, "apply", noted)
    async with AsyncExitStack() as stack:
        players = {}
        for name in ("b0", "b1", "b2", "s1"):
            players[name] = await stack.enter_async_context(source.join(BEFORE, name))
            await players[name].joined()
        # The first has all its actions, and the parent is in no cohort: it is not waited for.
        for name in ("b0", "s1"):
            for index in range(BEFORE, BEFORE + AFTER):
                await players[name].act(script(index))
        assert [(await players["s1"].block()).block_index for _ in range(AFTER)] == [1, 2]
        for index in range(BEFORE, BEFORE + AFTER):
            for name in ("b2", "b1"):
                await players[name].act(script(index))
                assert (await players[name].block()).block_index == index
        assert [(await players["b0"].block()).block_index for _ in range(AFTER)] == [1, 2]
    waves = [index for name, index in begun if name != "s1"]
    assert waves == sorted(waves) == [1, 1, 1, 2, 2, 2]


async def test_branches_close_like_any_session(source: Harness) -> None:
    await opened(source)
    await fork(source, 0, 1)
    await close(source, ["s1", "b0", "b1"])
    assert source.engine.sessions == {}
    assert not slot_mapped()


async def close(harness: Harness, names: Iterable[str]) -> None:
    for name in names:
        await harness.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id=name, epoch=1))
