"""Models that own their tensors: states come and go by copy, addresses stay (fault 30)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

from services.engine.carrier import HostCarrier, carrier_for
from services.engine.chores import Chores
from services.engine.core import Phase
from services.engine.world import OwnsState
from tests.unit.engine.owning import addresses, fresh, grown, make_owning, owning_world, tensors_of
from tests.unit.engine.support import (
    DEADLINE_S,
    Harness,
    script,
    slot_mapped,
    tiny_world,
    twin_digests,
    until,
)
from tests.unit.engine.test_moves import activate, attach_request, detach, push, thaw
from worldline.errors import CapacityExhausted, Conflict, InvalidInput, WorldlineError
from worldline.state.codec import manifest_from_proto
from worldline.state.digest import digest_slot
from worldline.state.tree import TensorSpec, pack, plan
from worldline.v1 import engine_pb2

BEFORE, AFTER = 2, 3


def seen(blocks: list[engine_pb2.Block]) -> list[tuple[int, int]]:
    return [(block.state_digest, block.frames_digest) for block in blocks]


async def played(harness: Harness, first: int, count: int) -> list[tuple[int, int]]:
    async with harness.join(first) as player:
        await player.joined()
        return seen(await player.play(first, count))


async def registered(harness: Harness) -> Any:
    answer = await harness.ask("RegisterWorld", engine_pb2.RegisterWorldRequest(session_id="s1"))
    return answer.manifest


async def moved(source: Harness, target: Harness) -> Any:
    """Freeze, push, attach, activate, detach; the frozen manifest."""
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    await target.ask("Attach", attach_request(frozen, slot))
    await target.ask("Activate", activate())
    await source.ask("Detach", detach("there:1", 2))
    return frozen


def slot_digest(harness: Harness, slot_index: int, manifest: Any) -> int:
    """Digest of what lies in a slot, under a manifest's layout and scalars."""
    layout = manifest_from_proto(manifest).layout
    with harness.slots.server.bytes_of(slot_index) as held:
        return digest_slot(layout, memoryview(bytes(held))).whole


def test_which_models_own_their_state() -> None:
    assert isinstance(owning_world(), OwnsState)
    assert not isinstance(tiny_world(), OwnsState)


@pytest.mark.parametrize("owners", ["both", "source", "target"])
async def test_a_world_moves_between_slots_and_tensors(
    source: Harness, target: Harness, owners: str
) -> None:
    """Blocks before and after equal those of a twin in a slot that never moved (O6)."""
    here = make_owning(source) if owners != "target" else None
    there = make_owning(target) if owners != "source" else None
    held = [] if there is None else [addresses(state) for state in there.free]
    await source.open()
    before = await played(source, 0, BEFORE)
    frozen = await moved(source, target)
    after = await played(target, BEFORE, AFTER)
    assert before + after == twin_digests(BEFORE + AFTER)
    assert slot_digest(source, frozen.slot.slot_index, frozen.manifest) == before[-1][0]
    if here is not None:
        assert not here.lent, "the source still lends what moved away"
    if there is not None:
        (state,) = there.lent
        assert addresses(state) in held
        assert target.engine.session("s1").memory.state is state


async def test_there_and_back_into_the_same_addresses(source: Harness, target: Harness) -> None:
    here, there = make_owning(source, sets=1), make_owning(target, sets=1)
    held = addresses(here.free[0]), addresses(there.free[0])
    await source.open()
    blocks = await played(source, 0, 1)
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    await target.ask("Attach", attach_request(frozen, slot))
    await target.ask("Activate", activate())
    await source.ask("Detach", detach("there:1", 2))
    blocks += await played(target, 1, 1)
    frozen = await target.freeze("m2", epoch=2)
    slot = await push(target, source, frozen)
    await source.ask("Attach", attach_request(frozen, slot, move_id="m2"))
    await source.ask("Activate", activate(3, "m2"))
    await target.ask("Detach", detach("here:1", 3, "m2"))
    blocks += await played(source, 2, 2)
    assert blocks == twin_digests(4)
    assert (addresses(here.lent[0]), addresses(there.free[0])) == held


async def test_digests_cover_what_is_in_the_tensors(source: Harness) -> None:
    """Registering packs first: the slot's bytes of some earlier time prove nothing."""
    model = make_owning(source)
    await source.open()
    first = await registered(source)
    blocks = await played(source, 0, 2)
    second = await registered(source)
    assert second.digests.whole == blocks[-1][0] == twin_digests(2)[-1][0]
    assert first.digests.whole != second.digests.whole
    tensors_of(model.lent[0])[3].view(torch.uint8).view(-1)[5] ^= 1
    source.engine.session("s1").memory.changing()
    assert (await registered(source)).digests.whole != second.digests.whole


async def test_a_state_that_arrived_is_read_back_from_the_tensors(
    source: Harness, target: Harness
) -> None:
    """O1: what a target reports is of the installed tensors, not of the slot they came from."""
    model = make_owning(target)
    await source.open()
    await played(source, 0, 1)
    frozen = await moved(source, target)
    slot = target.engine.session("s1").slot.slot_index
    whole = slot_digest(target, slot, frozen.manifest)
    assert (await registered(target)).digests.whole == whole
    tensors_of(model.lent[0])[0].view(torch.uint8).view(-1)[0] ^= 1
    target.engine.session("s1").memory.changing()
    assert (await registered(target)).digests.whole != whole


async def test_a_repeated_freeze_writes_no_byte_of_the_slot(source: Harness) -> None:
    """Somebody may be sending it."""
    make_owning(source)
    await source.open()
    frozen = await source.freeze()
    with source.slots.server.bytes_of(frozen.slot.slot_index) as held:
        held[0] ^= 1
        marked = bytes(held)
        again = await source.freeze()
        await registered(source)
        assert bytes(held) == marked
        held[0] ^= 1
    assert again.manifest == frozen.manifest


async def test_a_freeze_taken_back_while_it_copies(source: Harness) -> None:
    make_owning(source)
    await source.open()
    await played(source, 0, 1)
    memory: Any = source.engine.session("s1").memory
    memory.changing()
    copying = Held(memory._carrier, "storing")
    freezing = asyncio.ensure_future(source.freeze())
    await copying.reached()
    await source.ask("Thaw", thaw())
    copying.let_go()
    with pytest.raises(Conflict) as caught:
        await freezing
    assert caught.value.reason == "FREEZE_DROPPED"
    assert await played(source, 1, 2) == twin_digests(3)[1:]


async def test_no_quantum_runs_while_the_state_is_copied(source: Harness) -> None:
    make_owning(source)
    await source.open()
    session = source.engine.session("s1")
    memory: Any = session.memory
    memory.changing()
    copying = Held(memory._carrier, "storing")
    asking = asyncio.ensure_future(registered(source))
    await copying.reached()
    async with source.join(0) as player:
        await player.joined()
        await player.act(script(0))
        await until(lambda: session.world.pending, session)
        assert session.world.phase is Phase.RUNNING
        copying.let_go()
        assert (await asking).block_index == 0
        assert seen([await player.block()]) == twin_digests(1)


async def test_more_sessions_than_tensors(source: Harness) -> None:
    model = make_owning(source, sets=1)
    await source.open("s1")
    with pytest.raises(CapacityExhausted) as caught:
        await source.open("s2")
    assert caught.value.reason == "TENSORS_LENT"
    assert "s2" not in source.engine.sessions
    assert len(source.slots.released) == 1
    await source.ask("CloseWorld", engine_pb2.CloseWorldRequest(session_id="s1", epoch=1))
    assert len(model.free) == 1
    await source.open("s2")


async def test_an_attach_without_free_tensors_leaves_nothing(
    source: Harness, target: Harness
) -> None:
    make_owning(target, sets=0)
    await source.open()
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    with pytest.raises(CapacityExhausted):
        await target.ask("Attach", attach_request(frozen, slot))
    assert not target.engine.sessions
    await source.ask("Thaw", thaw())
    assert await played(source, 0, 1) == twin_digests(1)
    make_owning(target, sets=1)
    frozen = await source.freeze("m2")
    slot = await push(source, target, frozen)
    await target.ask("Attach", attach_request(frozen, slot, move_id="m2"))


async def test_a_cancelled_attach_gives_the_tensors_back(source: Harness, target: Harness) -> None:
    model = make_owning(target)
    lending = Held(model, "lend")
    await source.open()
    frozen = await source.freeze()
    slot = await push(source, target, frozen)
    attaching = asyncio.ensure_future(target.ask("Attach", attach_request(frozen, slot)))
    await lending.reached()
    undoing = given_up(target.chores)
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    # The engine hears of it later than the client; only what it hears of while it lends counts.
    async with asyncio.timeout(DEADLINE_S):
        await undoing.wait()
    lending.let_go()
    async with asyncio.timeout(DEADLINE_S):
        while target.engine.arriving.under_way:
            await target.worker.run(lambda: None)
    assert not model.lent
    await target.ask("Attach", attach_request(frozen, slot))
    assert len(model.lent) == 1


@pytest.mark.parametrize(
    ("spoil", "leaf"),
    [
        (lambda state: state["noise"].pop("generator"), "first_frame"),  # the next one
        (lambda state: state.update(more=torch.zeros(1)), "more"),
        (lambda state: state.update(first_frame=torch.zeros(3, 3)), "first_frame"),
        (lambda state: state.update(first_frame=state["first_frame"].half()), "first_frame"),
    ],
)
async def test_tensors_of_another_shape_are_refused_and_given_back(
    source: Harness, spoil: Any, leaf: str
) -> None:
    model = make_owning(source)
    spoil(model.free[-1])
    with pytest.raises(InvalidInput) as caught:
        await source.open()
    assert caught.value.leaf == leaf
    assert not model.lent
    assert not source.engine.sessions
    assert not slot_mapped()


async def test_a_replaced_leaf_ends_its_world(source: Harness) -> None:
    model = make_owning(source)
    await source.open()
    state = model.lent[0]
    state["noise"]["generator"] = state["noise"]["generator"].clone()
    async with source.join(0) as player:
        await player.joined()
        await player.act(script(0))
        with pytest.raises(WorldlineError) as failed:
            await player.read()
    assert failed.value.reason == "LEAF_REPLACED"
    assert not model.lent


def test_tensors_on_another_device_are_refused() -> None:
    layout = plan({"a": TensorSpec(torch.float32, (4,))})
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    with pytest.raises(InvalidInput) as caught:
        carrier_for(layout, [torch.zeros(4, device="meta")], slot)
    assert caught.value.leaf == "a"


def test_every_stride_and_bit_pattern_is_carried() -> None:
    spec = {
        "rows": TensorSpec(torch.float32, (6, 5)),
        "wide": TensorSpec(torch.bfloat16, (3, 4, 5)),
        "one": TensorSpec(torch.int64, ()),
        "none": TensorSpec(torch.float32, (0, 3)),
        "pairs": TensorSpec(torch.complex128, (7,)),
    }
    layout = plan(spec)
    state = grown(spec, fresh)
    state["rows"] = torch.zeros(5, 12)[:, ::2].t()  # transposed, with gaps
    state["wide"] = torch.zeros(5, 3, 4, dtype=torch.bfloat16).permute(1, 2, 0)
    tensors = tensors_of(state)
    generator = torch.Generator().manual_seed(3)
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        tensor.copy_(noise.view(tensor.dtype).view(tensor.shape))  # NaNs of every kind
    expected = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    pack(state, layout, expected)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    carrier = HostCarrier(layout, tensors)
    before = addresses(state)
    carrier.to_slot(slot)
    assert torch.equal(slot, expected)
    for tensor in tensors:
        tensor.fill_(1)
    carrier.to_tensors(slot)
    again = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    pack(state, layout, again)
    assert torch.equal(again, expected)
    assert addresses(state) == before
    carrier.close()


def given_up(chores: Chores) -> asyncio.Event:
    """Set when whoever waits for a chore has its end from now on."""
    heard, end = asyncio.Event(), chores._end

    async def noting(chore: Any) -> None:
        heard.set()
        await end(chore)

    chores._end = noting  # type: ignore[method-assign]
    return heard


class Held:
    """A method that waits in its thread, once, until it is let go."""

    def __init__(self, owner: Any, name: str) -> None:
        self._inner = getattr(owner, name)
        self._reached, self._go = threading.Event(), threading.Event()
        setattr(owner, name, self._held)

    def _held(self, *args: Any) -> Any:
        self._reached.set()
        assert self._go.wait(DEADLINE_S)
        return self._inner(*args)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, DEADLINE_S)

    def let_go(self) -> None:
        self._go.set()
