"""Slot server and slot memory: one-time tokens, descriptors, files that do not stay."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import stat
from pathlib import Path

import pytest

from services.mover.memory.base import Descriptor, IpcHandle
from services.mover.memory.host import HostMemory
from services.mover.slotserver import TOKEN_BYTES, SlotServer, Tokens
from tests.unit.mover.cluster import Cluster, layout_of, receive_descriptor
from worldline.errors import Fenced, Unavailable
from worldline.rpc.channel import call
from worldline.v1 import mover_pb2


def test_a_token_works_once_and_expires() -> None:
    tokens = Tokens(valid_s=10.0)
    token = tokens.issue(lambda: Descriptor(7), 0.0)
    assert len(token) == TOKEN_BYTES
    assert tokens.redeem(bytes(TOKEN_BYTES), 0.0) is None
    opened = tokens.redeem(token, 9.9)
    assert opened is not None
    assert opened() == Descriptor(7)
    assert tokens.redeem(token, 9.9) is None
    late = tokens.issue(lambda: Descriptor(7), 0.0)
    assert tokens.redeem(late, 10.0) is None
    tokens.issue(lambda: Descriptor(7), 0.0)
    tokens.issue(lambda: Descriptor(7), 100.0)
    assert len(tokens) == 1  # expired ones are dropped


def test_tokens_that_nobody_redeems_are_forgotten() -> None:
    tokens = Tokens(valid_s=10)
    tokens.issue(lambda: Descriptor(7), 0.0)
    late = tokens.issue(lambda: Descriptor(8), 5.0)
    tokens.expire(12.0)
    assert len(tokens) == 1
    assert tokens.redeem(late, 12.0) is not None


async def test_a_mapped_slot_is_the_movers_memory(memory_cluster: Cluster) -> None:
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    answer = await call(
        cluster.nodes["a"].stub.MapSlot,
        mover_pb2.MapSlotRequest(slot=slot, session_id="session-1"),
        timeout_s=60,
    )
    assert stat.S_IMODE(os.stat(answer.socket_path).st_mode) == 0o600
    reply, (descriptor,) = await asyncio.to_thread(
        receive_descriptor, answer.socket_path, answer.token
    )
    assert reply == b"\x01"
    try:
        with mmap.mmap(descriptor, answer.slot_bytes) as mapped:
            assert mapped[: layout.extent_bytes] == cluster.view("a", slot)[: layout.extent_bytes]
            mapped[5] = (mapped[5] + 1) % 256
            assert cluster.view("a", slot)[5] == mapped[5]
    finally:
        os.close(descriptor)
    again = await asyncio.to_thread(receive_descriptor, answer.socket_path, answer.token)
    assert again == (b"\x00", [])


async def test_a_slot_released_before_redemption_is_not_handed_out(
    memory_cluster: Cluster,
) -> None:
    cluster, layout = memory_cluster, layout_of()
    slot = await cluster.live_slot(layout)
    request = mover_pb2.MapSlotRequest(slot=slot, session_id="session-1")
    answer = await call(cluster.nodes["a"].stub.MapSlot, request, timeout_s=60)
    await cluster.release("a", slot)
    await cluster.live_slot(layout, "session-2")
    reply = await asyncio.to_thread(receive_descriptor, answer.socket_path, answer.token)
    assert reply == (b"\x00", [])
    with pytest.raises(Fenced):
        await call(cluster.nodes["a"].stub.MapSlot, request, timeout_s=60)


async def test_stale_socket_file_is_replaced_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "slots.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = SlotServer(path, Tokens())
    await server.start()
    assert await asyncio.to_thread(receive_descriptor, str(path), b"x" * 32) == (b"\x00", [])
    await server.stop()
    assert not path.exists()


async def test_device_memory_goes_by_handle_and_uuid(tmp_path: Path) -> None:
    """No descriptor comes along: the client opens what CUDA's handle names, on that GPU."""
    handle = bytes(range(64))
    tokens = Tokens()
    server = SlotServer(tmp_path / "slots.sock", tokens)
    await server.start()
    try:
        now = asyncio.get_running_loop().time()
        token = tokens.issue(lambda: IpcHandle(handle, "GPU-a1b2"), now)

        def fetch() -> bytes:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(server.path))
                client.sendall(token)
                return b"".join(iter(lambda: client.recv(16), b""))

        assert await asyncio.to_thread(fetch) == b"\x02" + handle + b"GPU-a1b2"
    finally:
        await server.stop()


async def test_a_client_that_says_nothing_or_too_little(tmp_path: Path) -> None:
    path = tmp_path / "slots.sock"
    server = SlotServer(path, Tokens())
    await server.start()
    _, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"short")
    writer.close()
    await writer.wait_closed()
    silent, writer = await asyncio.open_unix_connection(str(path))
    await asyncio.wait_for(server.stop(), 60)
    assert await asyncio.wait_for(silent.read(), 60) == b""
    writer.close()


@pytest.mark.parametrize("path", ["x" * 120, "missing/slots.sock"])
async def test_unusable_socket_paths_name_the_setting(tmp_path: Path, path: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await SlotServer(tmp_path / path, Tokens()).start()
    assert caught.value.field == "runtime_dir"


def test_prepared_memory_has_pages_and_zeros_only_when_asked() -> None:
    memory = HostMemory("test", 5 * mmap.PAGESIZE + 1)
    try:
        assert os.fstat(memory.descriptor).st_blocks == 0  # lazily: nothing taken yet
        memory.prepare(2 * mmap.PAGESIZE + 1, zero=True)
        assert os.fstat(memory.descriptor).st_blocks * 512 == 3 * mmap.PAGESIZE
        memory.whole[:] = b"\xff" * len(memory.whole)
        memory.prepare(100, zero=False)
        assert memory.whole[0] == 0xFF
        memory.prepare(4 * mmap.PAGESIZE, zero=True)
        assert not any(memory.whole[: 2 * mmap.PAGESIZE])
    finally:
        memory.close()


def test_zeroing_covers_bytes_that_a_tenant_wrote_beyond_its_extent() -> None:
    """A tenant maps the whole slot: what it wrote past its extent must not reach the next."""
    memory = HostMemory("test", 8 * mmap.PAGESIZE)
    try:
        memory.prepare(mmap.PAGESIZE, zero=True)
        memory.whole[:] = b"\xff" * len(memory.whole)
        memory.prepare(8 * mmap.PAGESIZE, zero=True)
        assert not any(memory.whole)
    finally:
        memory.close()


def test_populate_falls_back_to_touching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.mover.memory.pages._MADV_POPULATE_WRITE", 9999)
    memory = HostMemory("test", 5 * mmap.PAGESIZE)
    try:
        memory.whole[0] = 7
        memory.prepare(5 * mmap.PAGESIZE, zero=False)
        assert memory.whole[0] == 7
        assert os.fstat(memory.descriptor).st_blocks * 512 == 5 * mmap.PAGESIZE
    finally:
        memory.close()


def test_a_slot_larger_than_the_address_space_is_refused() -> None:
    with pytest.raises(Unavailable) as caught:
        HostMemory("test", 1 << 62)
    assert caught.value.field == "slot_bytes"
