"""Where digests are computed is the push's choice, at both ends: while bytes move, or after."""

from __future__ import annotations

from collections import defaultdict

import pytest

from services.mover.chunking import Chunk
from services.mover.digesting import HostDigest
from services.mover.transfer import Transfer
from tests.unit.mover.cluster import MEBIBYTE, Cluster, layout_of

LAYOUT = layout_of()
CHUNK_BYTES = 4 * MEBIBYTE
MOVED, DIGESTED = "moved", "digested"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[tuple[str, int]]]:
    """What happens at each end, by its memory: chunks that moved, and bytes that were digested."""
    events: dict[int, list[tuple[str, int]]] = defaultdict(list)
    collect, update, begin = Transfer._collect, HostDigest._update, HostDigest.read

    def collected(transfer: Transfer, index: int) -> None:
        collect(transfer, index)
        size_bytes = transfer._plan.chunk(index).size_bytes
        events[id(transfer._memory)].append((MOVED, size_bytes))

    def updated(digest: HostDigest, first: int, count: int, at_bytes: int, size_bytes: int) -> None:
        events[id(digest._memory)].append((DIGESTED, size_bytes))
        update(digest, first, count, at_bytes, size_bytes)

    def begun(digest: HostDigest, chunk: Chunk) -> None:
        events[id(digest._memory)].append((DIGESTED, 0))  # a thread is told to
        begin(digest, chunk)

    monkeypatch.setattr(Transfer, "_collect", collected)
    monkeypatch.setattr(HostDigest, "_update", updated)
    monkeypatch.setattr(HostDigest, "read", begun)
    return events


async def push(cluster: Cluster, verification: str) -> None:
    slot = await cluster.live_slot(LAYOUT)
    ticket = cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    outcome, _ = await cluster.push(
        ticket,
        cluster.manifest(LAYOUT),
        reserved.reservation_id,
        slot,
        verification=f"VERIFICATION_{verification}",
        chunk_bytes=CHUNK_BYTES,
        window_chunks=1,
    )
    assert outcome.digests == outcome.receipt.digests


async def test_sequential_digests_nothing_before_the_last_byte(
    cluster: Cluster, seen: dict[int, list[tuple[str, int]]]
) -> None:
    await push(cluster, "SEQUENTIAL")
    assert len(seen) == 2
    for events in seen.values():
        kinds = [kind for kind, _ in events]
        last_moved = len(kinds) - 1 - kinds[::-1].index(MOVED)
        assert DIGESTED not in kinds[:last_moved]
        assert sum(size for kind, size in events if kind == DIGESTED) == LAYOUT.extent_bytes


@pytest.mark.parametrize("verification", ["PIPELINED", "TAIL"])
async def test_the_others_digest_each_chunk_before_the_next_has_moved(
    cluster: Cluster, seen: dict[int, list[tuple[str, int]]], verification: str
) -> None:
    await push(cluster, verification)
    assert len(seen) == 2
    for events in seen.values():
        left_bytes = 0
        for kind, size_bytes in events:
            left_bytes += size_bytes if kind == DIGESTED else -size_bytes
            assert left_bytes >= 0, "it moved and nobody had digested it"
        assert left_bytes == 0


async def test_off_digests_nothing(
    cluster: Cluster, seen: dict[int, list[tuple[str, int]]]
) -> None:
    slot, ticket = await cluster.live_slot(LAYOUT), cluster.ticket(LAYOUT)
    reserved = await cluster.reserve(ticket, LAYOUT)
    manifest, name = cluster.manifest(LAYOUT), reserved.reservation_id
    await cluster.push(ticket, manifest, name, slot, verification="VERIFICATION_OFF")
    assert {kind for events in seen.values() for kind, _ in events} == {MOVED}


@pytest.mark.parametrize(("verification", "tapers"), [("PIPELINED", False), ("TAIL", True)])
async def test_only_tail_ends_in_small_chunks(
    cluster: Cluster,
    seen: dict[int, list[tuple[str, int]]],
    verification: str,
    tapers: bool,
) -> None:
    await push(cluster, verification)
    for events in seen.values():
        sizes = [size for kind, size in events if kind == MOVED]
        assert sum(sizes) == LAYOUT.extent_bytes
        if tapers:
            assert sizes[0] == CHUNK_BYTES
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[-1] <= MEBIBYTE
            assert len(sizes) > -(-LAYOUT.extent_bytes // CHUNK_BYTES)
        else:
            assert set(sizes[:-1]) == {CHUNK_BYTES}
