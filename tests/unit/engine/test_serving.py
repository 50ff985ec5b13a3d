"""Serving by contract, over gRPC: what blocks say of themselves, and who waits for whom.

Measured rows are set by the test, so that what is decided does not depend on how fast this
machine is: a quantum is said to take a third of the period, so that no block of two steps fits.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from services.engine.core import Phase
from services.engine.profile import WINDOW
from services.engine.schedule.grid import WARM_BLOCKS_MAX
from tests.unit.engine.support import (
    Harness,
    Player,
    PrivateState,
    contract_of,
    script,
    tiny_world,
    twin_digests,
    until,
)
from tests.unit.engine.test_moves import activate, attach_request, detach, push
from worldline.contract import ServiceClass, contract_to_proto
from worldline.errors import InvalidInput
from worldline.state.digest import crc64
from worldline.v1 import engine_pb2

PERIOD_MS = 150.0
#: Two quanta of it are a block of one step, and all that a period has room for.
QUANTUM_MS = PERIOD_MS / 3
PACED = {"period_ms": PERIOD_MS, "quality_floor_steps": 1}


def say_quanta_are_slow(harness: Harness, session_id: str = "s1") -> None:
    session = harness.engine.session(session_id)
    for closing in (False, True):
        for _ in range(WINDOW):
            harness.engine.profiles.add(
                session.shape, session.model, QUANTUM_MS, closing=closing, now=time.monotonic()
            )


def replayed(blocks: list[engine_pb2.Block]) -> list[tuple[int, int]]:
    """A twin that never moved and was never short of time, with the same steps."""
    twin = PrivateState(tiny_world(), seed=7)
    seen = []
    for block in blocks:
        frames = twin.block(script(block.block_index), block.steps)
        seen.append((twin.digest(), crc64(frames.pixels)))
    return seen


def seen(blocks: list[engine_pb2.Block]) -> list[tuple[int, int]]:
    return [(block.state_digest, block.frames_digest) for block in blocks]


async def test_by_default_every_block_is_whole_and_says_so(source: Harness) -> None:
    await source.open()
    say_quanta_are_slow(source)
    async with source.join(0) as player:
        await player.joined()
        blocks = await player.play(0, 3)
    assert seen(blocks) == twin_digests(3)
    for block in blocks:
        assert (block.steps, block.steps_full, block.degraded_because) == (3, 3, "")
        assert (block.releases_skipped, block.late_ms) == (0, 0.0)


@pytest.mark.parametrize("floor", [0, 3])
async def test_a_period_alone_degrades_nothing(source: Harness, floor: int) -> None:
    """A block without a floor is late instead."""
    await source.open(period_ms=1.0, quality_floor_steps=floor)
    async with source.join(0) as player:
        await player.joined()
        blocks = await player.play(0, WARM_BLOCKS_MAX + 2)
    assert {block.steps for block in blocks} == {3}
    assert seen(blocks) == twin_digests(WARM_BLOCKS_MAX + 2)
    assert blocks[-1].late_ms > 0
    # The block before it took longer than a millisecond.
    assert blocks[-1].releases_skipped > 0
    world = await described(source)
    assert world.missed_periods > 0
    assert world.degraded_blocks == 0


async def test_degraded_blocks_say_so_and_a_twin_with_the_same_steps_is_equal(
    source: Harness,
) -> None:
    await source.open(**PACED)
    say_quanta_are_slow(source)
    async with source.join(0) as player:
        await player.joined()
        blocks = await player.play(0, WARM_BLOCKS_MAX + 3)
    # How many are a transient depends on the machine; the first of them is always one.
    assert blocks[0].steps == 3
    assert [block.steps for block in blocks[WARM_BLOCKS_MAX:]] == [1, 1, 1]
    for block in blocks:
        degraded = block.steps < block.steps_full
        assert degraded == bool(block.degraded_because)
        assert not degraded or " up to " in block.degraded_because
    assert seen(blocks) == replayed(blocks) != twin_digests(len(blocks))
    world = await described(source)
    assert world.degraded_blocks == sum(block.steps < 3 for block in blocks)
    assert world.releases_skipped >= sum(block.releases_skipped for block in blocks)


async def test_no_more_degraded_blocks_in_a_row_than_the_contract_takes(source: Harness) -> None:
    await source.open(**PACED, degraded_consecutive_max=2)
    say_quanta_are_slow(source)
    async with source.join(0) as player:
        await player.joined()
        blocks = await player.play(0, WARM_BLOCKS_MAX + 6)
    steps = [block.steps for block in blocks]
    assert steps[-6:].count(3) == 2, steps
    assert all(3 in steps[at : at + 3] for at in range(len(steps) - 2)), steps


async def test_a_move_in_the_middle_keeps_the_twin(source: Harness, target: Harness) -> None:
    """Beside bulk, which goes on while the paced world is played and after it has gone."""
    contract = contract_of(**PACED)
    await source.open(**PACED)
    say_quanta_are_slow(source)
    bulk = {"service_class": ServiceClass.C3_BULK}
    await source.open("bulk", **bulk)
    async with source.join(0, "bulk") as filling, source.join(0) as player:
        await filling.joined()
        await player.joined()
        for index in range(4):
            await filling.act(script(index))
        before = await player.play(0, WARM_BLOCKS_MAX + 2)
        frozen = await source.freeze()
        slot = await push(source, target, frozen)
        request = attach_request(frozen, slot, contract=contract_to_proto(contract))
        await target.ask("Attach", request)
        await target.ask("Activate", activate())
        await source.ask("Detach", detach(target.address, 2))
        filled = [await filling.block() for _ in range(4)]
    say_quanta_are_slow(target)
    first = len(before)
    async with target.join(first) as player:
        await player.joined()
        after = await player.play(first, WARM_BLOCKS_MAX + 2)
    assert after[0].steps == 3, "the first block in a new place is measured, not degraded"
    assert after[0].late_ms == 0.0
    assert after[0].releases_skipped == 0
    assert before[-1].steps == after[-1].steps == 1
    assert seen([*before, *after]) == replayed([*before, *after])
    assert seen(filled) == twin_digests(4)


async def test_a_cohort_waits_for_its_slowest(source: Harness) -> None:
    wave = {"service_class": ServiceClass.C2B_COHORT, "cohort": "wave-1"}
    await source.open("s1", **wave)
    await source.open("s2", **wave)
    await source.open("other")
    ahead = source.engine.session("s1")
    async with (
        source.join(0, "s1") as first,
        source.join(0, "s2") as second,
        source.join(0, "other") as other,
    ):
        for player in (first, second, other):
            await player.joined()
        done = [await block_of(first, 0)]
        await first.act(script(1))
        await until(lambda: len(ahead.world.pending) == 1, ahead)
        # Between two blocks of another world the device had nobody else to serve.
        await other.play(0, 2)
        assert (ahead.world.phase, ahead.world.block_index) == (Phase.RUNNING, 1)
        await block_of(second, 0)
        done.append(await first.block())
    assert seen(done) == twin_digests(2)


async def test_a_cohort_goes_on_without_those_that_have_gone(source: Harness) -> None:
    wave = {"service_class": ServiceClass.C2B_COHORT, "cohort": "wave-1"}
    await source.open("s1", **wave)
    await source.open("s2", **wave)
    async with source.join(0, "s1") as first:
        await first.joined()
        await block_of(first, 0)
        await first.act(script(1))
        await source.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id="s2", epoch=1))
        assert (await first.block()).block_index == 1


async def test_a_replay_gives_each_block_the_steps_that_it_had(source: Harness) -> None:
    await source.open(service_class=ServiceClass.C4_REPLAY)
    blocks = []
    async with source.join(0) as player:
        await player.joined()
        for index, steps in enumerate((3, 1, 0, 2)):
            await player.write(engine_pb2.PlayRequest(action=action_of(index, steps)))
            blocks.append(await player.block())
    assert [block.steps for block in blocks] == [3, 1, 3, 2]
    assert seen(blocks) == replayed(blocks)


@pytest.mark.parametrize(
    ("service_class", "steps"),
    [(ServiceClass.C1_INTERACTIVE, 3), (ServiceClass.C3_BULK, 1), (ServiceClass.C4_REPLAY, 4)],
)
async def test_steps_that_are_not_to_be_had_are_refused_and_nothing_is_lost(
    source: Harness, service_class: ServiceClass, steps: int
) -> None:
    await source.open(service_class=service_class)
    async with source.join(0) as player:
        await player.joined()
        await player.write(engine_pb2.PlayRequest(action=action_of(0, steps)))
        with pytest.raises(InvalidInput) as refused:
            await player.read()
        assert refused.value.field == "action.steps"
    async with source.join(0) as player:
        await player.joined()
        assert seen([await block_of(player, 0)]) == twin_digests(1)


async def block_of(player: Player, index: int) -> engine_pb2.Block:
    (block,) = await player.play(index, 1)
    return block


def action_of(index: int, steps: int) -> engine_pb2.Action:
    action = script(index)
    return engine_pb2.Action(
        block_index=index,
        keyboard=action.keyboard,
        mouse_dx=action.mouse_dx,
        mouse_dy=action.mouse_dy,
        steps=steps,
    )


async def described(harness: Harness) -> Any:
    answer = await harness.ask("DescribeEngine", engine_pb2.DescribeEngineRequest())
    (world,) = answer.worlds
    return world
