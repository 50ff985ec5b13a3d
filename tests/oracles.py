"""Oracles: what must hold after every case, whatever it did. Written once, used by every test.

O1 integrity, O2 ownership, O3 bounded, O4 no leak, O5 typed outcome, O6 continuity, O7 trace.
`Oracles.observe` takes the baseline; `Oracles.hold` checks against it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from worldline.cli.cluster import LocalCluster
from worldline.rpc.channel import call, open_channel
from worldline.sdk import Client
from worldline.sdk.actions import Action
from worldline.sdk.block import Block
from worldline.sdk.move_record import MovePhase, MoveRecord
from worldline.sdk.session import Session
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    mover_pb2,
    mover_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
)

#: Every call of a test returns within its deadline plus this (O3).
BOUND_S = 150.0
#: Releases and renewals that follow an outcome are done within this (O4).
SETTLE_S = 60.0
POLL_S = 0.05
#: All that a cluster has seen, however many tests share it.
MOVES_MAX = 1_000
#: What the processes of one service may hold more than before: pools grow to their size once.
SLACK = {"tasks": 3, "threads": 16, "descriptors": 16}
#: Not held but kept: memory of the allocator, free slots, registrations (one a slot, for its
#: life), and what is remembered on purpose for a bounded time (used tickets, last blocks).
KEPT = frozenset(
    {"resident_bytes", "slots_free", "registrations", "tickets_remembered", "tombstones"}
)

Counts = dict[str, int]


@asynccontextmanager
async def bounded(limit_s: float = BOUND_S) -> AsyncIterator[None]:
    """O3: what is inside ends within the limit."""
    async with asyncio.timeout(limit_s):
        yield


async def until(holds: Callable[[], Awaitable[list[str]]], limit_s: float = SETTLE_S) -> None:
    """Ask until the list of complaints is empty; fail with the last list."""
    deadline_s = time.monotonic() + limit_s
    while complaints := await holds():
        if time.monotonic() >= deadline_s:
            raise AssertionError("; ".join(complaints))
        await asyncio.sleep(POLL_S)


def script(count: int, start: int = 0) -> list[Action]:
    """A fixed, varied play: the same index always gives the same action."""
    return [
        Action(
            keyboard=(index * 7 + 1) % 16,
            mouse_dx=((index * 37) % 21 - 10) / 10,
            mouse_dy=((index * 53) % 21 - 10) / 10,
        )
        for index in range(start, start + count)
    ]


async def play(session: Session, start: int, count: int) -> list[Block]:
    """Blocks `start` to `start + count` of the fixed play, with digests."""
    async with bounded():
        blocks = [each async for each in session.play(script(count, start), digests=True)]
    assert [each.index for each in blocks] == list(range(start, start + count))
    return blocks


def signature(block: Block) -> tuple[int, int | None, int, bytes]:
    """What must be equal for two blocks to be the same block of the same world."""
    return block.index, block.state_digest, block.frames_digest, block.frames.tobytes()


@dataclass
class Oracles:
    """The baseline of one cluster, and the checks against it."""

    cluster: LocalCluster
    client: Client
    baseline: dict[str, Counts] = field(default_factory=dict)
    known_moves: int = 0

    @classmethod
    async def observe(cls, cluster: LocalCluster, client: Client) -> Oracles:
        """Take the baseline. Do it after one ordinary move: caches and pools are filled then."""
        oracles = cls(cluster, client)
        await until(oracles._nothing_in_flight)
        oracles.baseline = await oracles._census()
        oracles.known_moves = len(await client.moves(limit=MOVES_MAX))
        return oracles

    async def hold(
        self,
        session: Session,
        twin: list[Block],
        next_index: int,
        *,
        attempts: int | None = 1,
        node_id: str | None = None,
        gone: frozenset[str] = frozenset(),
        blocks: int = 3,
        moved: bool = True,
    ) -> None:
        """All seven. `twin` are the blocks of a run that never moved, from index 0 on; `gone` are
        processes that the case killed; `node_id` is where the world must be; `attempts` is how
        many moves the case asked for, None where it cannot know; `moved` whether this session has
        ever been asked to move.
        """
        await until(self._nothing_in_flight)
        await self._owned_once(session, node_id, gone)
        await self._typed(attempts)
        await self._continues(session, twin, next_index, blocks)
        await self._integrity(session)
        await until(lambda: self._leaks(gone))
        if moved:
            await self._traced(session)

    async def _nothing_in_flight(self) -> list[str]:
        return [
            f"move {record.move_id} is still {record.phase.name}"
            for record in await self.client.moves(limit=MOVES_MAX)
            if not record.phase.terminal
        ]

    async def _owned_once(
        self, session: Session, node_id: str | None, gone: frozenset[str]
    ) -> None:
        """O2: one engine has the world, it is the directory's owner, in the directory's epoch."""

        async def complaints() -> list[str]:
            info = await session.refresh()
            holders = [
                (name, world.epoch, world.phase)
                for name, answer in (await self._engines(gone)).items()
                for world in answer.worlds
                if world.session_id == session.session_id
            ]
            expected = [(f"engine-{info.node_id}", info.epoch, "running")]
            found = [] if holders == expected else [f"holders {holders}, directory {expected}"]
            if node_id is not None and info.node_id != node_id:
                found.append(f"the world is at {info.node_id}, not at {node_id}")
            return found

        await until(complaints)

    async def _typed(self, attempts: int | None) -> None:
        """O5: every move ended as committed, aborted or rejected, with a reason; sums agree."""
        moves = await self.client.moves(limit=MOVES_MAX)
        if attempts is not None:
            assert len(moves) == self.known_moves + attempts
        self.known_moves = len(moves)
        for record in moves:
            assert record.phase.terminal, record
            if record.phase is MovePhase.ABORTED:
                assert record.failure is not None
                assert record.failure.reason
                assert record.failure.message
            if record.phase is MovePhase.REJECTED:
                assert record.verdict is not None
                assert not record.verdict.admitted

        async def counted() -> list[str]:
            outcomes = (await self.client.status()).moves_by_outcome
            return [] if sum(outcomes.values()) == len(moves) else [f"{outcomes} of {len(moves)}"]

        await until(counted)

    async def _continues(
        self, session: Session, twin: list[Block], next_index: int, count: int
    ) -> None:
        """O6: the next blocks are those of a run that never moved."""
        for block in await play(session, next_index, count):
            assert signature(block) == signature(twin[block.index])

    async def _integrity(self, session: Session) -> None:
        """O1: digests over the installed tensors, read back by the engine that owns them."""
        manifest = await session.register_state()
        assert manifest.digests is not None
        for record in await self.client.moves(limit=MOVES_MAX):
            if record.session_id == session.session_id and record.phase is MovePhase.DONE:
                assert record.source_digest == record.target_digest != 0

    async def _leaks(self, gone: frozenset[str]) -> list[str]:
        """O4: what each service's processes hold together is back at the baseline.

        Together, because a world that has moved is held by another node than before.
        """
        now = await self._census(gone)
        return [
            f"{service}.{name}: {before} before, {now[service].get(name, 0)} now"
            for service, counts in self.baseline.items()
            for name, before in counts.items()
            if now[service].get(name, 0) > before + SLACK.get(name, 0)
        ]

    async def _traced(self, session: Session) -> None:
        """O7: the newest move's trace ended and covers every party that took part."""
        record = (await self.client.moves(session.session_id))[0]

        async def complaints() -> list[str]:
            spans = (await self.client.trace(record.move_id)).spans
            services = {span.service for span in spans}
            missing = expected_services(record) - services
            roots = [span for span in spans if span.name == "move"]
            found = [f"no span of {name}" for name in sorted(missing)]
            return found + ([] if len(roots) == 1 else [f"{len(roots)} root spans"])

        await until(complaints)

    async def _census(self, gone: frozenset[str] = frozenset()) -> dict[str, Counts]:
        found: dict[str, Counts] = {}
        for name, process in self.cluster.services.items():
            if name in gone:
                continue
            total = found.setdefault(process.spec.service, {})
            for what, count in (await _describe(process.spec.service, process.address)).items():
                if what not in KEPT:
                    total[what] = total.get(what, 0) + count
        return found

    async def _engines(self, gone: frozenset[str]) -> dict[str, engine_pb2.DescribeEngineResponse]:
        found = {}
        for name, service in self.cluster.services.items():
            if service.spec.service != "engine" or name in gone:
                continue
            async with open_channel(service.address) as channel:
                stub = engine_pb2_grpc.EngineServiceStub(channel)
                found[name] = await call(
                    stub.DescribeEngine, engine_pb2.DescribeEngineRequest(), timeout_s=60
                )
        return found


def expected_services(record: MoveRecord) -> set[str]:
    """Who must have left a span, by how far the move came."""
    if record.phase is MovePhase.REJECTED:
        return {"placement"}
    if record.phase is MovePhase.DONE:
        return {"placement", "admission", "mover", "engine"}
    return {"placement", "admission"}


async def _describe(service: str, address: str) -> Counts:
    async with open_channel(address) as channel:
        if service == "mover":
            answer = await call(
                mover_pb2_grpc.MoverServiceStub(channel).DescribeMover,
                mover_pb2.DescribeMoverRequest(),
                timeout_s=60,
            )
            used = sum(slot.role != 1 for slot in answer.slots)
            own = {"slots_used": used, "reservations_open": len(answer.reservations)}
        elif service == "engine":
            answer = await call(
                engine_pb2_grpc.EngineServiceStub(channel).DescribeEngine,
                engine_pb2.DescribeEngineRequest(),
                timeout_s=60,
            )
            own = {"worlds_held": len(answer.worlds)}
        elif service == "admission":
            answer = await call(
                admission_pb2_grpc.AdmissionServiceStub(channel).DescribeAdmission,
                admission_pb2.DescribeAdmissionRequest(),
                timeout_s=60,
            )
            own = {"holds_open": len(answer.holds)}
        else:
            answer = await call(
                placement_pb2_grpc.PlacementServiceStub(channel).DescribePlacement,
                placement_pb2.DescribePlacementRequest(),
                timeout_s=60,
            )
            own = {}
        return {**dict(answer.census.counts), **own}
