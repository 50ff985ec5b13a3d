"""The verbs of a move, over gRPC, between two engines of one process; a test copies the bytes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from services.engine.core import Phase
from tests.unit.engine.support import (
    Harness,
    contract_of,
    script,
    slot_mapped,
    twin_digests,
    until,
)
from worldline.contract import DeterminismTier, contract_to_proto
from worldline.errors import (
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    Unavailable,
    WorldlineError,
)
from worldline.state.codec import fingerprint_to_proto, layout_to_proto, manifest_from_proto
from worldline.state.digest import digest_slot
from worldline.state.manifest import Fingerprint
from worldline.state.tree import plan
from worldline.v1 import engine_pb2, move_pb2


async def push(source: Harness, target: Harness, frozen: Any) -> move_pb2.SlotRef:
    """What the movers do: the extent's bytes, from slot to slot."""
    slot = await target.slots.allocate("s1", 0)
    extent_bytes = frozen.manifest.layout.extent_bytes
    with (
        source.slots.server.bytes_of(frozen.slot.slot_index) as here,
        target.slots.server.bytes_of(slot.slot_index) as there,
    ):
        there[:extent_bytes] = here[:extent_bytes]
    return slot


def attach_request(frozen: Any, slot: Any, **changes: Any) -> engine_pb2.AttachRequest:
    facts = {
        "session_id": "s1",
        "move_id": "m1",
        "contract": contract_to_proto(contract_of()),
        "world": engine_pb2.WorldSpec(preset="tiny", seed=7),
        "manifest": frozen.manifest,
        "slot": slot,
        **changes,
    }
    return engine_pb2.AttachRequest(**facts)


def activate(epoch: int = 2, move_id: str = "m1") -> engine_pb2.ActivateRequest:
    return engine_pb2.ActivateRequest(session_id="s1", move_id=move_id, epoch=epoch)


def detach(address: str = "", epoch: int = 0, move_id: str = "m1") -> engine_pb2.DetachRequest:
    return engine_pb2.DetachRequest(
        session_id="s1", move_id=move_id, engine_address=address, epoch=epoch
    )


def thaw(move_id: str = "m1", epoch: int = 1) -> engine_pb2.ThawRequest:
    return engine_pb2.ThawRequest(session_id="s1", epoch=epoch, move_id=move_id)


async def test_a_world_continues_bit_for_bit_on_another_engine(
    source: Harness, target: Harness
) -> None:
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        before = await player.play(0, 3)
        frozen = await source.freeze()
        assert frozen.manifest.block_index == 3
        assert not frozen.manifest.HasField("digests")
        slot = await push(source, target, frozen)
        await target.ask("Attach", attach_request(frozen, slot))
        await target.ask("Attach", attach_request(frozen, slot))  # again: the same
        assert target.engine.session("s1").world.phase is Phase.ATTACHED
        assert (await target.ask("Activate", activate())).block_index == 3
        await target.ask("Activate", activate())
        # Sent to the source in the meantime: nothing may come of it but the way on.
        await player.act(script(3))
        await source.ask("Detach", detach(target.address, 2))
        await source.ask("Detach", detach(target.address, 2))
        moved = (await player.read()).moved
        assert (moved.epoch, moved.engine_address) == (2, target.address)
        with pytest.raises(EOFError):
            await player.read()
    async with target.join(3) as player:
        joined = await player.joined()
        assert (joined.epoch, joined.next_block_index) == (2, 3)
        after = await player.play(3, 3)
    assert [(b.state_digest, b.frames_digest) for b in [*before, *after]] == twin_digests(6)
    assert {b.epoch for b in after} == {2}


async def test_a_late_client_finds_its_last_blocks_at_the_old_engine(
    source: Harness, target: Harness
) -> None:
    await source.open()
    session = source.engine.session("s1")
    async with source.join(0) as player:
        await player.joined()
        for index in range(2):
            await player.act(script(index))
        await until(lambda: session.world.block_index == 2, session)
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    await target.ask("Attach", attach_request(frozen, slot))
    await target.ask("Activate", activate())
    await source.ask("Detach", detach(target.address, 2))
    async with source.join(0) as player:
        assert (await player.joined()).next_block_index == 2
        assert [(await player.block()).block_index for _ in range(2)] == [0, 1]
        assert (await player.read()).moved.engine_address == target.address
    # The target has none of them, and says so.
    async with target.join(0) as player:
        with pytest.raises(WorldlineError) as lost:
            await player.read()
        assert lost.value.reason == "BLOCKS_LOST"


async def test_a_freeze_in_the_middle_of_a_block_takes_effect_at_its_end(source: Harness) -> None:
    await source.open()
    session = source.engine.session("s1")
    async with source.join(0) as player:
        await player.joined()
        await player.play(0, 1)
        with source.held_quanta():
            await player.act(script(1))
            await player.act(script(2))
            await until(lambda: session.world.phase is Phase.GENERATING, session)
            freezing = asyncio.create_task(source.freeze())
            await until(lambda: session.world.phase is Phase.FREEZING, session)
        frozen = await freezing
        assert (await player.block()).block_index == 1
        assert frozen.manifest.block_index == 2
        scalars = manifest_from_proto(frozen.manifest).layout.scalar_values()
        assert scalars["block_index"] == 2
        assert scalars["crossattn_cache[0].is_init"] is True
        with source.slots.server.bytes_of(frozen.slot.slot_index) as memory:
            view = memoryview(memory)
            whole = digest_slot(manifest_from_proto(frozen.manifest).layout, view).whole
            view.release()
        assert whole == twin_digests(2)[1][0]
        # The other action waits, and is answered after the thaw.
        await source.ask("Thaw", thaw())
        assert (await player.block()).state_digest == twin_digests(3)[2][0]


async def test_freeze_and_thaw_many_times_changes_nothing(source: Harness) -> None:
    await source.open()
    digests = []
    async with source.join(0) as player:
        await player.joined()
        for index in range(4):
            for attempt in range(5):
                await source.freeze(f"m{index}-{attempt}")
                await source.ask("Thaw", thaw(f"m{index}-{attempt}"))
            digests += [b.state_digest for b in await player.play(index, 1)]
    assert digests == [digest for digest, _ in twin_digests(4)]


async def test_a_thaw_answers_the_freeze_that_still_waits(source: Harness) -> None:
    await source.open(preset="tiny")
    session = source.engine.session("s1")
    async with source.join(0) as player:
        await player.joined()
        with source.held_quanta():
            await player.act(script(0))
            await until(lambda: session.world.phase is Phase.GENERATING, session)
            freezing = asyncio.create_task(source.freeze())
            await until(lambda: session.world.phase is Phase.FREEZING, session)
            await source.ask("Thaw", thaw())
            with pytest.raises(Conflict) as dropped:
                await freezing
        assert dropped.value.reason == "FREEZE_DROPPED"
        assert (await player.block()).block_index == 0


async def test_the_registered_manifest_holds_the_digests_of_a_boundary(source: Harness) -> None:
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        (block,) = await player.play(0, 1)
        await player.act(script(1))
        answer = await source.ask("RegisterWorld", engine_pb2.RegisterWorldRequest(session_id="s1"))
        await player.block()
    manifest = manifest_from_proto(answer.manifest)
    assert manifest.digests is not None
    expected = [digest for digest, _ in twin_digests(2)]
    assert manifest.digests.whole == expected[manifest.block_index - 1]
    assert block.state_digest == expected[0]


def other_layout(frozen: Any, source: Harness) -> Any:
    """A layout whose sixth leaf has another shape, everything else in order."""
    spec = source.engine.session("s1").model.state_spec()
    k = spec["kv_cache"][1]["k"]
    spec["kv_cache"][1]["k"] = replace(k, shape=(1, k.shape[1], k.shape[2], k.shape[3] - 8))
    changed = type(frozen.manifest)()
    changed.CopyFrom(frozen.manifest)
    changed.layout.CopyFrom(layout_to_proto(plan(spec)))
    return changed


async def test_a_manifest_that_this_model_cannot_continue_is_refused_by_leaf(
    source: Harness, target: Harness
) -> None:
    await source.open()
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    with pytest.raises(InvalidInput) as layout:
        await target.ask(
            "Attach", attach_request(frozen, slot, manifest=other_layout(frozen, source))
        )
    assert layout.value.leaf == "kv_cache[1].k"
    with pytest.raises(InvalidInput) as preset:
        small = engine_pb2.WorldSpec(preset="small", seed=7)
        await target.ask("Attach", attach_request(frozen, slot, world=small))
    assert preset.value.leaf == "kv_cache[0].k"
    with pytest.raises(InvalidInput) as session:
        await target.ask("Attach", attach_request(frozen, slot, session_id="s2"))
    assert session.value.field == "manifest.session_id"
    later = type(frozen.manifest)()
    later.CopyFrom(frozen.manifest)
    later.block_index = 5
    with pytest.raises(InvalidInput) as block:
        await target.ask("Attach", attach_request(frozen, slot, manifest=later))
    assert block.value.leaf == "block_index"
    assert target.engine.sessions == {}


async def test_another_fingerprint_is_refused_at_t0_and_named(
    source: Harness, target: Harness
) -> None:
    await source.open()
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    facts = {**target.fingerprint.facts, "threads": "64"}
    frozen.manifest.fingerprint.CopyFrom(fingerprint_to_proto(Fingerprint.of(facts)))
    with pytest.raises(Conflict, match="threads: '64' here") as refused:
        await target.ask("Attach", attach_request(frozen, slot))
    assert refused.value.reason == "FINGERPRINT_MISMATCH"
    assert target.engine.sessions == {}
    # A drop that is allowed is not yet one that was made, and half of one is none.
    t1 = DeterminismTier.T1_SCHEDULE_STABLE
    allowed = contract_to_proto(contract_of(tier_drop_allowed=True))
    dropped = contract_to_proto(contract_of(determinism_tier=t1))
    for contract in (allowed, dropped):
        with pytest.raises(Conflict):
            await target.ask("Attach", attach_request(frozen, slot, contract=contract))
    frozen.manifest.determinism_tier = t1
    with pytest.raises(Conflict):
        await target.ask("Attach", attach_request(frozen, slot))
    await target.ask("Attach", attach_request(frozen, slot, contract=dropped))


async def test_a_staged_copy_goes_away_and_is_unmapped(source: Harness, target: Harness) -> None:
    await source.open()
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    await target.ask("Attach", attach_request(frozen, slot))
    with pytest.raises(Conflict):
        await target.ask("Attach", attach_request(frozen, slot, move_id="m2"))
    with pytest.raises(Fenced):
        await target.ask("Activate", activate(epoch=1))
    await target.ask("Detach", detach())
    await target.ask("Detach", detach())
    assert target.engine.sessions == {}
    await source.ask("Detach", detach("elsewhere:1", 2))
    assert not slot_mapped()


async def test_a_world_moves_away_and_back(source: Harness, target: Harness) -> None:
    await source.open()
    harnesses, digests = [source, target], []
    for turn in range(4):
        here, there = harnesses[turn % 2], harnesses[(turn + 1) % 2]
        move_id, epoch = f"m{turn}", turn + 1
        async with here.join(turn) as player:
            await player.joined()
            digests += [b.state_digest for b in await player.play(turn, 1)]
        frozen = await here.freeze(move_id, epoch=epoch)
        slot = await push(here, there, frozen)
        await there.ask("Attach", attach_request(frozen, slot, move_id=move_id))
        await there.ask("Activate", activate(epoch + 1, move_id))
        await here.ask("Detach", detach(there.address, epoch + 1, move_id))
    assert digests == [digest for digest, _ in twin_digests(4)]


async def test_a_failed_open_leaves_nothing_behind(source: Harness) -> None:
    source.slots.refuse_map = True
    with pytest.raises(Unavailable):
        await source.open()
    assert source.engine.sessions == {}
    assert source.slots.released == [0]
    source.slots.refuse_map = False
    await source.open()
    with pytest.raises(Conflict) as present:
        await source.open()
    assert present.value.reason == "SESSION_PRESENT"
    assert source.slots.released == [0]


async def test_what_cannot_be_opened_is_named(source: Harness) -> None:
    with pytest.raises(InvalidInput) as preset:
        await source.open(preset="huge")
    assert preset.value.field == "world.preset"
    with pytest.raises(InvalidInput) as quality:
        await source.open(quality_floor_steps=4)
    assert quality.value.field == "contract.quality_floor_steps"
    assert source.slots.free == [0, 1, 2, 3]


@pytest.mark.parametrize("verb", ["Freeze", "Thaw", "Activate", "RegisterWorld"])
async def test_verbs_on_an_unknown_session_say_so(source: Harness, verb: str) -> None:
    request = getattr(engine_pb2, f"{verb}Request")(session_id="nobody")
    if hasattr(request, "move_id"):
        request.move_id = "m1"
    with pytest.raises(NotFound) as unknown:
        await source.ask(verb, request)
    assert unknown.value.reason == "SESSION_UNKNOWN"


async def test_describe_counts_what_is_held(source: Harness) -> None:
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        described = await source.ask("DescribeEngine", engine_pb2.DescribeEngineRequest())
        (world,) = described.worlds
        assert (world.session_id, world.epoch, world.phase) == ("s1", 1, "running")
        counts = described.census.counts
        assert (counts["sessions"], counts["streams"], counts["slots_mapped"]) == (1, 1, 1)
    await source.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id="s1", epoch=1))
    described = await source.ask("DescribeEngine", engine_pb2.DescribeEngineRequest())
    assert described.census.counts["slots_mapped"] == 0


async def test_warming_leaves_no_session(source: Harness) -> None:
    warm = engine_pb2.WarmWorldRequest(world=engine_pb2.WorldSpec(preset="tiny"))
    await source.ask("WarmWorld", warm)
    assert source.engine.sessions == {}
    assert source.slots.free == [0, 1, 2, 3]
