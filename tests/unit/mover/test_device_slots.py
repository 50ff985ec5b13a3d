"""Slots on GPUs, over a fake CUDA: taken once, handed out by handle, moved like any other."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from services.mover.devices import describe_devices
from services.mover.memory.copier import CudaCopier
from services.mover.memory.cuda import CudaMemory
from services.mover.staged import STAGED_LANE
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucx import UcxTransport
from tests.unit.fakecuda import FakeRuntime, bytes_at, fake_cuda
from tests.unit.mover.cluster import Cluster, PushCall, layout_of, start_admission, start_node
from worldline.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    IntegrityError,
    InvalidInput,
    Unavailable,
)
from worldline.rpc.channel import call
from worldline.state.digest import digest_slot
from worldline.state.layout import flat_layout
from worldline.ticket import MovePurpose
from worldline.v1 import move_pb2, mover_pb2

MEBIBYTE = 1 << 20


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    with fake_cuda(monkeypatch) as fake:
        yield fake


def test_devices_are_described_for_placement(cuda: FakeRuntime) -> None:
    cpu, second = describe_devices(("cpu", "cuda:1"))
    assert (cpu.name, cpu.uuid) == ("cpu", "")
    assert (second.name, second.uuid) == ("cuda:1", "GPU-01010101-0101-0101-0101-010101010101")


def test_a_device_that_is_not_there_names_the_setting(cuda: FakeRuntime) -> None:
    with pytest.raises(Unavailable) as caught:
        describe_devices(("cuda:0", "cuda:2"))
    assert (caught.value.reason, caught.value.field) == ("CUDA_DEVICE_UNKNOWN", "devices")
    assert "cuda:0, cuda:1" in caught.value.message


def test_without_a_gpu_the_reason_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch, device_count=0), pytest.raises(Unavailable) as caught:
        describe_devices(("cuda:0",))
    assert (caught.value.reason, caught.value.field) == ("CUDA_UNAVAILABLE", "devices")


def test_a_full_device_says_how_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch, memory_bytes=10_000) as fake:
        first = CudaMemory("cuda:1", 6_000)
        with pytest.raises(CapacityExhausted) as caught:
            CudaMemory("cuda:1", 6_001)
        assert caught.value.reason == "MEMORY_EXHAUSTED"
        for number in ("6001 bytes on cuda:1", "4000 of 10000"):
            assert number in caught.value.message
        first.close()
        assert not fake.allocations
        assert not fake.streams


def test_zeroing_is_done_when_it_returns(cuda: FakeRuntime) -> None:
    memory = CudaMemory("cuda:0", 5_000)
    memory.write(0, memoryview(b"\xff" * 5_000))
    here = bytes_at(memory.whole.address, 5_000)
    assert set(here) == {0xFF}
    memory.prepare(4_000, zero=False)
    assert set(here) == {0xFF}
    memory.prepare(4_000, zero=True)
    assert set(here[:4_000]) == {0}
    assert set(here[4_000:]) == {0xFF}
    memory.close()


def test_a_staged_chunk_that_was_given_up_lands_before_the_next_tenant(
    cuda: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 4: the device can be asked for no longer, and yet it goes on."""
    monkeypatch.setattr("services.mover.memory.copier._COPY_S", 0.01)
    monkeypatch.setattr("services.mover.memory.cuda._DEVICE_S", 0.01)
    memory, other = CudaMemory("cuda:0", 5_000), CudaMemory("cuda:1", 5_000)
    copier = CudaCopier(("cuda:0",))
    cuda.hangs = True
    with pytest.raises(DeadlineExceeded):
        copier.to_device(memoryview(bytearray(b"\xee" * 100)), memory.part(0, 100))
    copier.close()
    assert not memory.has_pages(5_000)
    assert other.has_pages(5_000)
    with pytest.raises(DeadlineExceeded):
        memory.prepare(5_000, zero=True)
    cuda.hangs = False
    memory.prepare(5_000, zero=True)
    for stream in list(cuda.streams):
        cuda.cudaStreamQuery(stream)
    assert not any(bytes_at(memory.whole.address, 5_000))
    assert memory.has_pages(5_000)
    memory.close()
    other.close()
    assert not cuda.events


Build = Callable[..., Any]


@pytest.fixture(params=["memory", "ucx"])
async def build(
    request: pytest.FixtureRequest, cuda: FakeRuntime, tmp_path: Path
) -> AsyncIterator[Build]:
    """Movers `a` and `b`, each on devices of its own."""
    kind = {"memory": MemoryTransport, "ucx": UcxTransport}[request.param]
    async with AsyncExitStack() as stack:

        async def build(a: str, b: str) -> Cluster:
            admission, address = await start_admission(stack)
            nodes = {
                name: await start_node(
                    stack, name, tmp_path, address, kind(), devices=devices, staging_rings=1
                )
                for name, devices in (("a", a), ("b", b))
            }
            return Cluster(admission, nodes)

        yield build
    assert not cuda.allocations  # slots and rings are given back
    assert not cuda.opened


def raw(cluster: Cluster, node: str, slot: move_pb2.SlotRef, size_bytes: int) -> memoryview:
    whole = cluster.nodes[node].runtime._memories[slot.slot_index].whole
    view = whole if isinstance(whole, memoryview) else bytes_at(whole.address, whole.nbytes)
    return view[:size_bytes]


@pytest.mark.parametrize(
    ("a", "b", "staged"),
    [
        ("cuda:0", "cpu", True),
        ("cpu", "cuda:1", False),  # the source's lanes need nothing; the target stages
        ("cuda:0", "cuda:1", True),
        ("cpu", "cpu", False),
    ],
)
@pytest.mark.parametrize("verification", ["TAIL", "SEQUENTIAL"])
async def test_a_state_moves_between_all_kinds_of_memory(
    build: Build, cuda: FakeRuntime, a: str, b: str, staged: bool, verification: str
) -> None:
    """Same manifest, same digests, whatever is at the ends; nothing is allocated by a move."""
    cluster: Cluster = await build(a, b)
    layout = layout_of()
    answer = await call(
        cluster.nodes["a"].stub.Allocate,
        mover_pb2.AllocateRequest(session_id="session-1", extent_bytes=layout.extent_bytes),
        timeout_s=60,
    )
    data = random.Random(5).randbytes(layout.extent_bytes)
    raw(cluster, "a", answer.slot, len(data))[:] = data
    expected = digest_slot(layout, memoryview(data)).whole
    allocations, streams = dict(cuda.allocations), set(cuda.streams)
    for epoch in range(4, 7):
        claims = cluster.claims(layout, epoch=epoch)
        ticket, manifest = cluster.sign(claims), cluster.manifest(layout, epoch=epoch)
        reserved = await cluster.reserve(ticket, layout)
        outcome, _ = await cluster.push(
            ticket,
            manifest,
            reserved.reservation_id,
            answer.slot,
            verification=f"VERIFICATION_{verification}",
        )
        assert outcome.digests.whole == outcome.receipt.digests.whole == expected
        assert (STAGED_LANE in outcome.push_stats.lanes) is staged
        assert raw(cluster, "b", reserved.slot, len(data)) == data
        verified = await cluster.verify(reserved.reservation_id, manifest, outcome.digests)
        assert verified.equal
        await cluster.release("b", reserved.slot)
        await cluster.nodes["b"].until_free(reserved.slot)
        for node in cluster.nodes.values():
            await node.until_quiet()
    assert cuda.allocations == allocations
    assert set(cuda.streams) == streams
    for node in cluster.nodes.values():
        census = node.runtime.census()
        assert census["endpoints"] == census["requests_outstanding"] == 0


@pytest.mark.parametrize("way", ["to_host", "to_device"])
async def test_a_bit_flipped_in_pinned_memory_is_caught(
    build: Build, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Digests are of what rests on the devices: nothing that happens between them is missed."""
    cluster: Cluster = await build("cuda:0", "cuda:1")
    layout = layout_of()
    slot = await call(
        cluster.nodes["a"].stub.Allocate,
        mover_pb2.AllocateRequest(session_id="session-1", extent_bytes=layout.extent_bytes),
        timeout_s=60,
    )
    data = random.Random(5).randbytes(layout.extent_bytes)
    raw(cluster, "a", slot.slot, len(data))[:] = data
    copy = getattr(CudaCopier, way)
    left = [3]

    def corrupting(self: CudaCopier, source: Any, target: Any) -> None:
        if way == "to_host":
            copy(self, source, target)
        left[0] -= 1
        if left[0] == 0:
            (target if way == "to_host" else source)[77] ^= 0x10
        if way == "to_device":
            copy(self, source, target)

    monkeypatch.setattr(CudaCopier, way, corrupting)
    claims = cluster.claims(layout)
    ticket = cluster.sign(claims)
    reserved = await cluster.reserve(ticket, layout)
    with pytest.raises(IntegrityError) as caught:
        await cluster.push(
            ticket, cluster.manifest(layout), reserved.reservation_id, slot.slot, window_chunks=1
        )
    assert caught.value.granule == 2  # the third chunk's first: chunks are of one granule here
    assert caught.value.leaf == "leaf0"
    await cluster.nodes["b"].until_free(reserved.slot)
    for node in cluster.nodes.values():
        await node.until_quiet()
        census = node.runtime.census()
        assert census["staging_rings_free"] == 2
        assert census["requests_outstanding"] == 0


async def test_a_slot_is_asked_for_by_name_or_uuid(build: Build) -> None:
    cluster: Cluster = await build("cuda:1,cpu", "cpu")
    stub = cluster.nodes["a"].stub
    uuid = cluster.nodes["a"].runtime.devices[0].uuid
    for device, wanted in (("", "cuda:1"), (uuid, "cuda:1"), ("cpu", "cpu")):
        request = mover_pb2.AllocateRequest(session_id="s", extent_bytes=9, device=device)
        slot = (await call(stub.Allocate, request, timeout_s=60)).slot
        described = await call(stub.DescribeMover, mover_pb2.DescribeMoverRequest(), timeout_s=60)
        assert described.slots[slot.slot_index].device == wanted
        mapped = mover_pb2.MapSlotRequest(slot=slot, session_id="s")
        assert (await call(stub.MapSlot, mapped, timeout_s=60)).device == wanted
    request = mover_pb2.AllocateRequest(session_id="s", extent_bytes=9, device="cuda:0")
    with pytest.raises(InvalidInput) as caught:
        await call(stub.Allocate, request, timeout_s=60)
    assert caught.value.reason == "DEVICE_UNKNOWN"


async def test_the_slot_socket_gives_handle_and_uuid(build: Build, cuda: FakeRuntime) -> None:
    cluster: Cluster = await build("cuda:1", "cpu")
    stub = cluster.nodes["a"].stub
    request = mover_pb2.AllocateRequest(session_id="s", extent_bytes=9)
    slot = (await call(stub.Allocate, request, timeout_s=60)).slot
    mapped = mover_pb2.MapSlotRequest(slot=slot, session_id="s")
    answer = await call(stub.MapSlot, mapped, timeout_s=60)

    def fetch() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(answer.socket_path)
            client.sendall(answer.token)
            return b"".join(iter(lambda: client.recv(4096), b""))

    said = await asyncio.to_thread(fetch)
    assert said[:1] == b"\x02"
    memory = cluster.nodes["a"].runtime._memories[slot.slot_index]
    assert cuda.exported[said[1:65]] == memory.whole.address  # type: ignore[union-attr]
    assert said[65:].decode() == cluster.nodes["a"].runtime.devices[0].uuid


async def test_a_probe_sends_from_the_device_it_is_about(build: Build, cuda: FakeRuntime) -> None:
    cluster: Cluster = await build("cpu,cuda:0", "cpu")
    layout = flat_layout("probe", 3 * MEBIBYTE + 5)
    ticket = cluster.ticket(layout, purpose=MovePurpose.PROBE, session_id="probe-1", epoch=1)
    manifest = cluster.manifest(layout, session_id="probe-1", epoch=1)
    reserved = await cluster.reserve(ticket, layout)
    before = set(cuda.allocations)
    order = cluster.order(
        ticket,
        manifest,
        reserved.reservation_id,
        None,
        probe_device="cuda:0",
        verification="VERIFICATION_OFF",
    )
    push = PushCall(cluster.nodes["a"].stub, order, 20)
    try:
        await push.arm()
        assert len(set(cuda.allocations) - before) == 1
        await push.go(0, layout)
        outcome = await push.outcome()
    finally:
        await push.close()
    assert STAGED_LANE in outcome.push_stats.lanes
    landed = bytes(raw(cluster, "b", reserved.slot, layout.extent_bytes))
    assert len(set(landed)) == 256
    for node in cluster.nodes.values():
        await node.until_quiet()
    assert set(cuda.allocations) == before
