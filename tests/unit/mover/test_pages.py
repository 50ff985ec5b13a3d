"""Pages: slots have theirs before any move, and large ones where the machine has some to give."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.mover.memory import host, pages
from services.mover.memory.host import HostMemory
from services.mover.memory.pages import HUGE_BYTES, HugePages, PageKind, kinds_to_try, memory_file
from services.mover.transport.memory import MemoryTransport
from tests.unit.mover.cluster import Node, layout_of
from worldline.errors import Unavailable

SIZE_BYTES = 2 * HUGE_BYTES + 5
RESERVED, TRANSPARENT, SMALL = PageKind.RESERVED, PageKind.TRANSPARENT, PageKind.SMALL


# --- taken before any move ---------------------------------------------------------------------


def taken_bytes(node: Node) -> list[int]:
    """What each slot's file has in pages."""
    slots = [memory for memory in node.runtime._memories if isinstance(memory, HostMemory)]
    return [os.fstat(memory.descriptor).st_blocks * 512 for memory in slots]


async def test_no_move_takes_pages_or_registers(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport())
    again: list[Any] = []
    for node in cluster.nodes.values():
        monkeypatch.setattr(
            node.runtime.transport, "register", lambda *buffer: again.append(buffer)
        )
    before = {name: taken_bytes(node) for name, node in cluster.nodes.items()}
    for name, node in cluster.nodes.items():
        settings = node.runtime.settings
        assert len(before[name]) == settings.slot_count
        assert min(before[name]) >= settings.slot_bytes
        assert node.runtime.census()["registrations"] == settings.slot_count
    layout = layout_of()
    slot = await cluster.live_slot(layout)
    for _ in range(3):
        ticket = cluster.ticket(layout)
        reserved = await cluster.reserve(ticket, layout)
        manifest, name = cluster.manifest(layout), reserved.reservation_id
        await cluster.push(ticket, manifest, name, slot)
        assert await cluster.release("b", reserved.slot)
    assert {name: taken_bytes(node) for name, node in cluster.nodes.items()} == before
    assert again == []


async def test_pages_come_with_the_first_use_where_nobody_wants_them_before(
    build: Callable[..., Any],
) -> None:
    cluster = await build(MemoryTransport(), MemoryTransport(), prefault=False)
    node, layout = cluster.nodes["a"], layout_of()
    assert set(taken_bytes(node)) == {0}
    slot = await cluster.live_slot(layout)
    assert taken_bytes(node)[slot.slot_index] >= layout.extent_bytes
    assert node.runtime.census()["registrations"] == 1


# --- of which size -----------------------------------------------------------------------------


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets what the kernel says of large pages in shared memory."""

    def says(chosen: str) -> None:
        path = tmp_path / "shmem_enabled"
        words = ("always", "within_size", "advise", "never", "deny", "force")
        path.write_text(" ".join(f"[{word}]" if word == chosen else word for word in words))
        monkeypatch.setattr(pages, "_SHMEM_ENABLED", path)

    says("never")
    return says


@pytest.mark.parametrize(
    ("wanted", "chosen", "kinds"),
    [
        (HugePages.AUTO, "never", (RESERVED, SMALL)),
        (HugePages.AUTO, "deny", (RESERVED, SMALL)),
        (HugePages.AUTO, "advise", (RESERVED, TRANSPARENT, SMALL)),
        (HugePages.AUTO, "always", (RESERVED, TRANSPARENT, SMALL)),
        (HugePages.REQUIRE, "advise", (RESERVED, TRANSPARENT)),
        (HugePages.REQUIRE, "never", (RESERVED,)),
        (HugePages.NEVER, "always", (SMALL,)),
    ],
)
def test_large_pages_are_tried_first(
    kernel: Callable[[str], None], wanted: HugePages, chosen: str, kinds: tuple[PageKind, ...]
) -> None:
    kernel(chosen)
    assert kinds_to_try(wanted, SIZE_BYTES) == kinds
    assert kinds_to_try(wanted, HUGE_BYTES - 1) == (SMALL,)


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[[str], None]
) -> Callable[[frozenset[PageKind], str], None]:
    """A machine that has these kinds of pages; its reserved ones are small ones in disguise."""

    def make(kinds: frozenset[PageKind], chosen: str) -> None:
        kernel(chosen)

        def file(name: str, size_bytes: int, kind: PageKind) -> int:
            if kind not in kinds:
                raise OSError(errno.ENOMEM, "no such pages")
            whole = HUGE_BYTES if kind is RESERVED else 1
            return memory_file(name, -(-size_bytes // whole) * whole, SMALL)

        monkeypatch.setattr(host, "memory_file", file)

    return make


@pytest.mark.parametrize(
    ("kinds", "chosen", "kind"),
    [
        ({RESERVED, TRANSPARENT, SMALL}, "advise", RESERVED),
        ({TRANSPARENT, SMALL}, "advise", TRANSPARENT),
        ({TRANSPARENT, SMALL}, "never", SMALL),
        ({SMALL}, "advise", SMALL),
    ],
)
def test_a_slot_has_the_largest_there_are(
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    kinds: set[PageKind],
    chosen: str,
    kind: PageKind,
) -> None:
    machine(frozenset(kinds), chosen)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(host, "request_huge", lambda *run: asked.append(run))
    memory = HostMemory("test", SIZE_BYTES)
    try:
        assert memory.pages is kind
        assert memory.whole.nbytes == SIZE_BYTES
        assert asked == ([(memory._address, SIZE_BYTES)] if kind is TRANSPARENT else [])
    finally:
        memory.close()


def test_reserved_pages_are_taken_whole(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(frozenset({RESERVED}), "never")
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(host, "populate", lambda *run: taken.append(run))
    memory = HostMemory("test", SIZE_BYTES)
    try:
        memory.populate(HUGE_BYTES + 1)
        memory.populate(SIZE_BYTES)
        first, second = ((address - memory._address, size) for address, size in taken)
        assert first == (0, 2 * HUGE_BYTES)
        assert second == (HUGE_BYTES, 2 * HUGE_BYTES)
        assert os.fstat(memory.descriptor).st_size == 3 * HUGE_BYTES
    finally:
        memory.close()


def test_large_pages_that_are_required_and_not_there_name_setting_and_remedy(
    machine: Callable[..., None],
) -> None:
    machine(frozenset({SMALL}), "never")
    with pytest.raises(Unavailable) as caught:
        HostMemory("test", SIZE_BYTES, HugePages.REQUIRE)
    assert (caught.value.reason, caught.value.field) == ("HUGE_PAGES_UNAVAILABLE", "huge_pages")
    assert "vm.nr_hugepages to at least 3" in caught.value.message
