"""Fault 38: every RPC of a move, cancelled or out of time at the step where it waits.

Whoever calls, whichever way the call ends, the move comes to one typed end, the world runs in one
place, nothing is left behind, and the next move goes as any other. Between movers the same of
`Land`: tests/unit/mover/test_faults_wire.py and test_faults_ends.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.placement.cluster import DEADLINES, Cluster, running_cluster
from worldline.errors import Unavailable
from worldline.v1 import move_pb2, placement_pb2

#: Only what a case is about runs out of time, however busy the machine.
SOON_S = 0.2
#: What bounds each RPC of placement's, in the order of a move.
FORWARD = {
    "AdmitMove": {"admit_s": SOON_S},
    "n2.Reserve": {"reserve_s": SOON_S},
    "e2.WarmWorld": {"warm_s": SOON_S},
    "n1.Arm": {"arm_s": SOON_S, "reserve_s": 3.0},
    "e1.Freeze": {"freeze_s": SOON_S},
    "n1.Push": {"push_s": SOON_S},
    "n2.Verify": {"verify_s": SOON_S},
    "e2.Attach": {"attach_s": SOON_S},
    "e2.Activate": {"quick_s": SOON_S},
    "e1.Detach": {"quick_s": SOON_S},
    "n1.Release": {"quick_s": SOON_S},
    "FinishMove": {"quick_s": SOON_S},
}
#: What undoes a move whose target could not attach, or whose reservation's reply was lost.
BACKWARD = {"e1.Thaw": "e2.Attach", "e2.Detach": "e2.Attach", "n2.Release": "e2.Attach",
            "n2.DescribeMover": "n2.Reserve"}  # fmt: skip
#: After these nothing but forward is possible.
COMMITTED = ("e2.Activate", "e1.Detach", "n1.Release")


@dataclass
class Stuck:
    """A peer's method that waits until it is let go, and knows when its caller has gone."""

    cluster: Cluster
    method: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._around = self.cluster.faults.around
        self.cluster.faults.around = self.around  # type: ignore[method-assign]

    async def around(self, method: str, work: Callable[[], Any]) -> Any:
        if method == self.method:
            self.reached.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.left.set()
                raise
        return await self._around(method, work)

    @property
    def address(self) -> str:
        """Of the peer whose method it is."""
        peer, _, named = self.method.partition(".")
        return self.cluster.addresses[peer if named else "admission"]


async def check_end(
    cluster: Cluster, session_id: str, record: Any, method: str, *, in_time: bool = True
) -> None:
    """One typed end, one world, nothing left; and then a move as any other, where its own calls
    are `in_time` for sure.
    """
    committed = record.phase == move_pb2.MOVE_PHASE_DONE
    assert committed or record.phase == move_pb2.MOVE_PHASE_ABORTED
    if method in COMMITTED:
        assert committed
    if not committed:
        assert record.failure.reason
        assert record.failure.message
    cluster.check_at(session_id, "e2" if committed else "e1")
    session = await cluster.resolve(session_id)
    assert (session.epoch, session.state) == (2 if committed else 1, "live")
    described = await cluster.ask("DescribePlacement", placement_pb2.DescribePlacementRequest())
    assert sum(described.moves_by_outcome.values()) == 1
    assert described.census.counts["owned_tasks"] == 1, "the lease reaper"
    if not in_time:
        return
    cluster.faults.errors.clear()
    again = await cluster.move(session_id, "n1" if committed else "n2")
    assert again.phase == move_pb2.MOVE_PHASE_DONE
    cluster.check_at(session_id, "e1" if committed else "e2")


def the_move(cluster: Cluster) -> str:
    assert cluster.placement is not None
    (move,) = cluster.placement.runtime.open_move_tasks()
    return move.move_id


def spoil(cluster: Cluster, method: str) -> None:
    """Have the move need what undoes it."""
    failed = BACKWARD.get(method)
    if failed == "n2.Reserve":
        cluster.faults.lose_reply(failed, Unavailable("the reply is lost"))
    elif failed is not None:
        cluster.faults.fail(failed, *[Unavailable("away")] * 3)


@pytest.mark.parametrize("method", [*FORWARD, *BACKWARD])
async def test_the_caller_gives_up_at_each_step(tmp_path: Path, method: str) -> None:
    """MoveSession cancelled: the move goes to its end without it, and its key finds it again."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        spoil(cluster, method)
        stuck = Stuck(cluster, method)
        request = placement_pb2.MoveSessionRequest(
            session_id=session_id, target_node_id="n2", idempotency_key="k"
        )
        call = cluster.stub.MoveSession(request, timeout=60)
        await call.read()
        async with asyncio.timeout(60):
            await stuck.reached.wait()
        move_id = the_move(cluster)
        call.cancel()
        stuck.go.set()
        record = await cluster.move(session_id, key="k")
        assert record.move_id == move_id
        assert not stuck.left.is_set(), "a caller that leaves cancels nothing of the move"
        if method in FORWARD:
            assert record.phase == move_pb2.MOVE_PHASE_DONE
        else:
            assert record.phase == move_pb2.MOVE_PHASE_ABORTED
        await check_end(cluster, session_id, record, method)


async def test_the_caller_runs_out_of_time_at_each_step(tmp_path: Path) -> None:
    """As above by the deadline of MoveSession: all steps at once, so that it is waited for once."""
    async with AsyncExitStack() as stack:
        cases = []
        for number, method in enumerate([*FORWARD, *BACKWARD]):
            (path := tmp_path / str(number)).mkdir()
            cluster = await stack.enter_async_context(running_cluster(path))
            session_id = await cluster.session()
            spoil(cluster, method)
            cases.append((cluster, session_id, Stuck(cluster, method)))
        calls = []
        for cluster, session_id, _ in cases:
            request = placement_pb2.MoveSessionRequest(session_id=session_id, target_node_id="n2")
            calls.append(asyncio.ensure_future(_out_of_time(cluster, request)))
        for _, _, stuck in cases:
            async with asyncio.timeout(60):
                await stuck.reached.wait()
        await asyncio.gather(*calls)
        for cluster, session_id, stuck in cases:
            move_id = the_move(cluster)
            stuck.go.set()
            record = await cluster.ended(move_id)
            assert not stuck.left.is_set()
            await check_end(cluster, session_id, record, stuck.method)


async def _out_of_time(cluster: Cluster, request: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in cluster.stub.MoveSession(request, timeout=8):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("method", [*FORWARD, *BACKWARD])
async def test_placements_own_call_is_cancelled_at_each_step(tmp_path: Path, method: str) -> None:
    """Its channel is dropped under it, as when the peer has registered anew."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        spoil(cluster, method)
        stuck = Stuck(cluster, method)
        moving = asyncio.ensure_future(cluster.move(session_id))
        async with asyncio.timeout(60):
            await stuck.reached.wait()
            assert cluster.placement is not None
            await cluster.placement.peers.forget(stuck.address)
            await stuck.left.wait()
            stuck.go.set()
            record = await moving
        await check_end(cluster, session_id, record, method)


@pytest.mark.parametrize("method", [*FORWARD, *BACKWARD])
async def test_placements_own_call_runs_out_of_time_at_each_step(
    tmp_path: Path, method: str
) -> None:
    limits = FORWARD.get(method, {"quick_s": SOON_S})
    async with running_cluster(tmp_path, deadlines=replace(DEADLINES, **limits)) as cluster:
        session_id = await cluster.session()
        spoil(cluster, method)
        stuck = Stuck(cluster, method)
        moving = asyncio.ensure_future(cluster.move(session_id))
        left = asyncio.ensure_future(stuck.left.wait())
        async with asyncio.timeout(80):
            # It may be over before the peer has heard of it: then there is nobody to let go.
            await asyncio.wait({left, moving}, return_when=asyncio.FIRST_COMPLETED)
            stuck.go.set()
            record = await moving
        left.cancel()
        await check_end(cluster, session_id, record, method, in_time=False)


@pytest.mark.parametrize("method", FORWARD)
async def test_placement_is_told_to_stop_at_each_step(tmp_path: Path, method: str) -> None:
    """Fault 37: before its commit a move is rolled back, after it it goes on; within the grace."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        stuck = Stuck(cluster, method)
        moving = asyncio.ensure_future(cluster.move(session_id))
        committed = method in (*COMMITTED, "FinishMove")
        async with asyncio.timeout(80):
            await stuck.reached.wait()
            assert cluster.placement is not None
            stopping = asyncio.ensure_future(cluster.placement.runtime.stop(60))
            if committed:
                stuck.go.set()
            else:
                await stuck.left.wait()
                stuck.go.set()
            await stopping
            record = await moving
        if committed:
            assert record.phase == move_pb2.MOVE_PHASE_DONE
        else:
            assert record.phase == move_pb2.MOVE_PHASE_ABORTED
            assert record.failure.reason == "PLACEMENT_STOPPING"
        cluster.check_at(session_id, "e2" if committed else "e1")


VERBS = {
    "Admit": "AdmitMove",
    "Migrate": "n1.Push",
    "Verify": "n2.Verify",
    "Commit": "e2.Attach",
    "Rollback": "e1.Thaw",
}


async def _verb(cluster: Cluster, name: str, session_id: str, move_id: str) -> Any:
    if name == "Admit":
        request = placement_pb2.AdmitMigrationRequest(
            session_id=session_id, target_node_id="n2", idempotency_key="k"
        )
        return await cluster.ask("AdmitMigration", request)
    if name == "Migrate":
        return await cluster.migrate(move_id)
    return await cluster.verb(name, move_id)


@pytest.mark.parametrize("broken", VERBS)
async def test_each_verb_is_cancelled_and_asked_again(tmp_path: Path, broken: str) -> None:
    """A verb whose caller went is under way all the same; asking again joins it."""
    async with running_cluster(tmp_path) as cluster:
        session_id = await cluster.session()
        stuck = Stuck(cluster, VERBS[broken])
        ends = "Rollback" if broken == "Rollback" else "Commit"
        move_id = ""
        for name in ("Admit", "Migrate", "Verify", ends):
            if name == broken:
                asking = asyncio.ensure_future(_verb(cluster, name, session_id, move_id))
                async with asyncio.timeout(60):
                    await stuck.reached.wait()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert not stuck.left.is_set()
                stuck.go.set()
            answer = await _verb(cluster, name, session_id, move_id)
            if name == "Admit":
                assert answer.verdict.admitted
                move_id = answer.move_id
        record = await cluster.ended(move_id)
        assert record.phase == (
            move_pb2.MOVE_PHASE_ABORTED if broken == "Rollback" else move_pb2.MOVE_PHASE_DONE
        )
        await check_end(cluster, session_id, record, "")
