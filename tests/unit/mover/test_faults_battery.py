"""The battery: single bits changed at every stage of a move, none missed, each named.

Real movers over real transports in one process. The strata are those of `tests.flips`: every kind
of leaf, every meaning of a bit, the edges of the extent. Each stage gets one bit of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.mover import go
from services.mover.slots import SlotRole
from services.mover.transport.base import Transport
from services.mover.transport.lanes import Lane
from services.mover.transport.memory import MemoryTransport
from services.mover.transport.ucp import address_of
from services.mover.transport.ucx import UcxTransport
from tests.flips import Flip, flips, world_layout
from tests.unit.mover.cluster import MEBIBYTE, Cluster
from tests.unit.mover.parkbench import flip_in
from tests.unit.mover.tampering import (
    AfterDigest,
    BeforeDigest,
    InFlight,
    Landed,
    Stage,
    TamperedTransport,
    tamper,
)
from worldline.errors import Conflict, IntegrityError
from worldline.rpc.channel import call
from worldline.state.codec import manifest_to_proto
from worldline.state.layout import Layout
from worldline.v1 import move_pb2, mover_pb2, park_pb2

SIZES = {"slot_bytes": 16 * MEBIBYTE}
LAYOUT = world_layout()
LANES: dict[str, Callable[[], Transport]] = {
    "memory": MemoryTransport,
    "in-place": UcxTransport,
    "posix": lambda: UcxTransport(lane=Lane.POSIX),
    "cma": lambda: UcxTransport(lane=Lane.CMA),
    "tcp": lambda: UcxTransport(lane=Lane.TCP),
}
#: Stage, lanes, where digests run. A source that copies by itself digests before it sends, one
#: whose bytes are fetched does so meanwhile, and either may be told to at the end: whatever the
#: order, what changes between the one and the other is caught.
CASES: list[tuple[type[Stage], str, str]] = [
    (AfterDigest, "in-place", "TAIL"),
    (AfterDigest, "posix", "PIPELINED"),
    (AfterDigest, "tcp", "TAIL"),
    (BeforeDigest, "memory", "PIPELINED"),
    (BeforeDigest, "in-place", "SEQUENTIAL"),
    (InFlight, "memory", "SEQUENTIAL"),
    (InFlight, "in-place", "PIPELINED"),
    (InFlight, "cma", "TAIL"),
    (Landed, "in-place", "TAIL"),
    (Landed, "posix", "SEQUENTIAL"),
    (Landed, "memory", "PIPELINED"),
]


def strata_of(case: int) -> list[Flip]:
    """Every other stratum, the others in the next case."""
    return flips(LAYOUT, seed=1000 + case)[case % 2 :: 2]


def test_the_strata_are_many_and_of_every_kind() -> None:
    """At least 200 positions over leaves, significance and edges; more than one of each leaf."""
    every = [flip for case in range(len(CASES)) for flip in strata_of(case)]
    assert len(every) >= 200
    leaves = {flip.leaf for flip in every}
    for dtype in ("bfloat16", "float32", "int64", "uint8"):
        assert any(leaf.dtype == dtype and leaf.path in leaves for leaf in LAYOUT.tensors)
    assert len(leaves) > len(LAYOUT.tensors) * 3 // 4
    assert None in leaves, "padding"
    last = (LAYOUT.extent_bytes - 1) // MEBIBYTE
    assert {flip.granule for flip in every} == set(range(last + 1))
    assert LAYOUT.extent_bytes % MEBIBYTE, "the last granule is short"
    assert {flip.bit for flip in every} == set(range(8))


@dataclass
class Battery:
    """A live slot at `a`, and what is done to every move of it to `b`."""

    cluster: Cluster
    slot: move_pb2.SlotRef
    data: memoryview

    @classmethod
    async def load(cls, cluster: Cluster) -> Battery:
        slot = await cluster.live_slot(LAYOUT)
        data = np.random.default_rng(5).bytes(LAYOUT.extent_bytes)
        cluster.view("a", slot)[: len(data)] = data
        return cls(cluster, slot, memoryview(data))

    def view(self, side: str, slot: move_pb2.SlotRef) -> memoryview:
        return self.cluster.view(side, slot)[: LAYOUT.extent_bytes]

    async def reserve(self) -> tuple[Any, mover_pb2.ReserveResponse]:
        ticket = self.cluster.ticket(LAYOUT)
        return ticket, await self.cluster.reserve(ticket, LAYOUT)

    async def push(
        self, ticket: Any, reserved: mover_pb2.ReserveResponse, verification: str
    ) -> mover_pb2.PushOutcome:
        outcome, _ = await self.cluster.push(
            ticket,
            self.cluster.manifest(LAYOUT),
            reserved.reservation_id,
            self.slot,
            verification=f"VERIFICATION_{verification}",
            chunk_bytes=2 * MEBIBYTE,
            window_chunks=4,
        )
        return outcome

    @contextmanager
    def stage(self, make: type[Stage], flip: Flip, target: move_pb2.SlotRef) -> Iterator[Stage]:
        """Both ends and every digest ask the stage until the end; the source is whole again."""
        slot = self.slot if make.side == "a" else target
        stage = make(flip, address_of(self.cluster.view(make.side, slot)))
        transports = [node.runtime.transport for node in self.cluster.nodes.values()]
        with pytest.MonkeyPatch.context() as patch:
            tamper(patch, stage)
            for transport in transports:
                assert isinstance(transport, TamperedTransport)
                patch.setattr(transport, "stage", stage)
            yield stage
        source = self.view("a", self.slot)
        if not np.array_equal(source, self.data):
            flip.apply(source)
            assert np.array_equal(source, self.data)

    async def miss(self, make: type[Stage], flip: Flip, verification: str) -> str | None:
        """What is wrong about how this bit was caught; None where nothing is."""
        ticket, reserved = await self.reserve()
        with self.stage(make, flip, reserved.slot) as stage:
            try:
                await self.push(ticket, reserved, verification)
            except IntegrityError as error:
                found = error.leaf, error.granule
            else:
                assert await self.cluster.release("b", reserved.slot)
                return f"{flip} was missed"
        assert stage.done.is_set()
        with pytest.raises(Conflict):
            await self.cluster.promote(reserved.reservation_id, reserved.slot)
        await self.cluster.nodes["b"].until_free(reserved.slot)
        return None if found == flip.found else f"{flip} was taken for {found}"

    async def check_reusable(self) -> None:
        """A clean move goes through the same slots, and nothing is left of those before."""
        ticket, reserved = await self.reserve()
        outcome = await self.push(ticket, reserved, "TAIL")
        assert outcome.digests == outcome.receipt.digests
        assert np.array_equal(self.view("b", reserved.slot), self.data)
        assert await self.cluster.release("b", reserved.slot)
        assert self.cluster.nodes["a"].role(self.slot) is SlotRole.LIVE
        for node in self.cluster.nodes.values():
            await node.until_quiet()
            census = node.runtime.census()
            assert census["endpoints"] == census["requests_outstanding"] == 0
            assert all(state.pins == 0 for state in node.runtime.slots.states())


@pytest.mark.parametrize(
    "case",
    range(len(CASES)),
    ids=lambda at: "-".join(part if isinstance(part, str) else part.__name__ for part in CASES[at]),
)
async def test_no_bit_is_missed_on_the_way(build: Callable[..., Any], case: int) -> None:
    make, lanes, verification = CASES[case]
    factory = LANES[lanes]
    cluster = await build(TamperedTransport(factory()), TamperedTransport(factory()), **SIZES)
    battery = await Battery.load(cluster)
    misses = [await battery.miss(make, flip, verification) for flip in strata_of(case)]
    assert [miss for miss in misses if miss is not None] == []
    await battery.check_reusable()


async def test_no_bit_is_missed_in_the_slot(build: Callable[..., Any]) -> None:
    """After it landed, and after a verify that matched: only what was read back last counts."""
    cluster = await build(
        TamperedTransport(MemoryTransport()), TamperedTransport(MemoryTransport()), **SIZES
    )
    battery = await Battery.load(cluster)
    manifest = cluster.manifest(LAYOUT)
    ticket, reserved = await battery.reserve()
    outcome = await battery.push(ticket, reserved, "TAIL")
    view = battery.view("b", reserved.slot)

    async def verify() -> mover_pb2.VerifyResponse:
        return await cluster.verify(reserved.reservation_id, manifest, outcome.digests)

    misses = []
    for flip in flips(LAYOUT, seed=1):
        flip.apply(view)
        answer = await verify()
        found = answer.failure.leaf or None, answer.failure.granule
        if answer.equal or found != flip.found:
            misses.append(f"{flip} was taken for {found}")
        with pytest.raises(Conflict) as caught:
            await cluster.promote(reserved.reservation_id, reserved.slot)
        assert caught.value.reason == "NOT_VERIFIED"
        flip.apply(view)
        assert (await verify()).equal
    assert misses == []
    await cluster.promote(reserved.reservation_id, reserved.slot)
    assert await cluster.release("b", reserved.slot)
    await battery.check_reusable()


@pytest.mark.parametrize("kind", ["MEMORY", "FILE"])
async def test_no_bit_is_missed_in_a_parked_copy(
    build: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    cluster = await build(
        TamperedTransport(MemoryTransport()),
        TamperedTransport(MemoryTransport()),
        **SIZES,
        park_dir=tmp_path / "parked",
    )
    battery = await Battery.load(cluster)
    node = cluster.nodes["a"]
    order = park_pb2.ParkRequest(
        park_id="park-1",
        manifest=manifest_to_proto(cluster.manifest(LAYOUT)),
        slot=battery.slot,
        kind=f"PARK_KIND_{kind}",
    )
    await call(node.stub.Park, order, timeout_s=60)
    assert await cluster.release("a", battery.slot)
    back = park_pb2.UnparkRequest(park_id="park-1", session_id="session-1")

    def change(flip: Flip) -> None:
        if kind == "MEMORY":
            flip.apply(node.runtime.parking._buffers["park-1"][0].view)
        else:
            flip_in(tmp_path / "parked/a/park-1/state", flip.offset_bytes, flip.bit)

    misses = []
    for flip in flips(LAYOUT, seed=2):
        change(flip)
        try:
            await call(node.stub.Unpark, back, timeout_s=60)
        except IntegrityError as error:
            if (error.leaf, error.granule) != flip.found:
                misses.append(f"{flip} was taken for {error.leaf}, {error.granule}")
        else:
            misses.append(f"{flip} was missed")
        assert all(state.role is SlotRole.FREE for state in node.runtime.slots.states())
        change(flip)
    assert misses == []
    battery.slot = (await call(node.stub.Unpark, back, timeout_s=60)).slot
    assert np.array_equal(battery.view("a", battery.slot), battery.data)
    await battery.check_reusable()


async def test_a_scalar_that_changes_on_its_way_is_caught(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests' header covers what the bytes mean; no leaf and no granule is at fault."""
    cluster = await build(
        TamperedTransport(MemoryTransport()), TamperedTransport(MemoryTransport()), **SIZES
    )
    battery = await Battery.load(cluster)
    plain = go.frozen_from_proto

    def changed(message: mover_pb2.PushGo, layout: Layout) -> Any:
        frozen = plain(message, layout)
        return replace(frozen, layout=frozen.layout.with_scalars({"block_index": 1}))

    ticket, reserved = await battery.reserve()
    monkeypatch.setattr(go, "frozen_from_proto", changed)
    with pytest.raises(IntegrityError) as caught:
        await battery.push(ticket, reserved, "TAIL")
    assert (caught.value.leaf, caught.value.granule) == (None, None)
    monkeypatch.undo()
    await cluster.nodes["b"].until_free(reserved.slot)
    await battery.check_reusable()
