"""The slot map: fetched once per token, and really gone after close."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from pathlib import Path

import pytest
import torch

from services.engine.device import CPU_DEVICE
from services.engine.slotfetch import map_slot
from services.engine.slotmap import SlotMap
from tests.unit.engine.support import DEADLINE_S, SlotServer
from worldline.errors import InvariantBroken, Unavailable

SIZE_BYTES = 1 << 20


@pytest.fixture
def server(tmp_path: Path):
    server = SlotServer(str(tmp_path / "slots.sock"), SIZE_BYTES)
    server.make(0)
    yield server
    server.close()


def mapped_here(server: SlotServer) -> bool:
    inode = os.fstat(server.descriptors[0]).st_ino
    return any(
        "wl-test-slot-0" in line and line.split()[4] == str(inode)
        for line in Path("/proc/self/maps").read_text().splitlines()
    )


def slot_descriptors() -> int:
    """Only the slots': the server's thread closes its sockets when it gets to it."""
    links = Path("/proc/self/fd").iterdir()
    return sum("wl-test-slot" in os.readlink(link) for link in links if link.is_symlink())


def fetch(server: SlotServer) -> SlotMap:
    return map_slot(server.path, server.token(0), SIZE_BYTES, DEADLINE_S, CPU_DEVICE)


def test_writes_reach_the_movers_memory(server: SlotServer) -> None:
    slots = fetch(server)
    buffer = slots.buffer()
    assert (buffer.dtype, buffer.shape) == (torch.uint8, (SIZE_BYTES,))
    buffer[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    with server.bytes_of(0) as other:
        assert other[:4] == b"\x01\x02\x03\x04"
        other[4] = 9
    assert int(buffer[4]) == 9
    del buffer
    slots.close()


def test_close_unmaps_and_leaves_no_descriptor(server: SlotServer) -> None:
    before = slot_descriptors()
    slots = fetch(server)
    view = slots.buffer().view(torch.float32)[10:20]
    assert mapped_here(server)
    del view
    slots.close()
    slots.close()
    assert not mapped_here(server)
    assert slot_descriptors() == before


def test_a_view_that_is_still_alive_forbids_unmapping(server: SlotServer) -> None:
    """Unmapping under it would be a crash at its next use, long after the cause."""
    slots = fetch(server)
    view = slots.buffer()[100:200].view(torch.int16)
    with pytest.raises(InvariantBroken):
        slots.close()
    assert mapped_here(server)
    view.fill_(7)
    del view
    slots.close()
    assert not mapped_here(server)


def test_a_token_works_once(server: SlotServer) -> None:
    token = server.token(0)
    map_slot(server.path, token, SIZE_BYTES, DEADLINE_S, CPU_DEVICE).close()
    for bad in (token, secrets.token_bytes(32)):
        with pytest.raises(Unavailable) as refused:
            map_slot(server.path, bad, SIZE_BYTES, DEADLINE_S, CPU_DEVICE)
        assert refused.value.reason == "SLOT_REFUSED"


def test_no_socket_and_too_small_a_slot_are_told_apart(server: SlotServer, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as gone:
        map_slot(str(tmp_path / "none.sock"), bytes(32), SIZE_BYTES, DEADLINE_S, CPU_DEVICE)
    assert gone.value.reason == "SLOT_SOCKET_FAILED"
    with pytest.raises(InvariantBroken):
        map_slot(server.path, server.token(0), 2 * SIZE_BYTES, DEADLINE_S, CPU_DEVICE)


def test_a_silent_mover_is_given_up_on(tmp_path: Path) -> None:
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        kept: list[socket.socket] = []
        thread = threading.Thread(target=lambda: kept.append(listener.accept()[0]))
        thread.start()
        with pytest.raises(Unavailable):
            map_slot(path, bytes(32), SIZE_BYTES, 0.2, CPU_DEVICE)
        thread.join(DEADLINE_S)
        kept[0].close()
