"""Scenes: what is done to a world in containers, and what must hold of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import wire
from fleet import NODES, Fleet
from viewer import Viewer

from worldline.cli.demo import Checks
from worldline.contract import Contract, ServiceClass
from worldline.errors import DeadlineExceeded, Unavailable
from worldline.sdk import Block, Client, MoveRecord, Progress, Session

_SEED = 20_260
#: Long enough that a slow wire is no reason to refuse a move.
_CONTRACT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=60_000)
#: The world's 1.4 MB would take eleven seconds on it: time to cut the wire meanwhile.
_SLOW_BITS_PER_S = 1_000_000
_BLOCKS = 4
#: Nodes that start on a busy machine, leases that run out.
_PATIENCE_S = 240.0
_POLL_S = 0.25
_BENCH_S = 300.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Stage:
    """What every scene has: the containers, a client, what held, and who tells it."""

    fleet: Fleet
    client: Client
    say: Say
    checks: Checks = field(default_factory=Checks)
    records: list[MoveRecord] = field(default_factory=list)

    async def open(self, node: str) -> Session:
        """The demo's world, on that node."""
        return await self.client.open("tiny", seed=_SEED, node=node, contract=_CONTRACT)

    async def move(self, viewer: Viewer, target: str) -> MoveRecord:
        """Move, and watch some blocks there."""
        self.say(f"moving to {target} after block {viewer.blocks[-1].index}")
        record = await viewer.session.move(target)
        self.records.append(record)
        self.checks.add(f"the move to {target} committed", record.committed, record.reason)
        same = record.source_digest == record.target_digest != 0
        self.checks.add(f"both digests of the move to {target} are equal", same)
        if record.committed:
            await viewer.more(_BLOCKS, record.source_epoch + 1)
        return record


async def wait_for_nodes(stage: Stage, names: tuple[str, ...] = NODES) -> None:
    """Until each of them is alive and has an engine that is."""

    async def missing() -> list[str]:
        try:
            nodes = {node.node_id: node for node in await stage.client.nodes()}
        except Unavailable as error:
            return [error.message]
        up = [n for n, node in nodes.items() if node.alive and any(e.alive for e in node.engines)]
        return [name for name in names if name not in up]

    await until(missing)


async def across(stage: Stage, viewer: Viewer) -> None:
    """There and back between containers, under the client's eyes."""
    await viewer.more(_BLOCKS)
    for target in (NODES[2], NODES[0]):
        record = await stage.move(viewer, target)
        lanes = record.push_stats.lanes if record.push_stats is not None else ()
        tcp = bool(lanes) and all(lane.startswith("tcp/") for lane in lanes)
        stage.checks.add("between nodes bytes travel over TCP alone", tcp, ", ".join(lanes))


async def within(stage: Stage) -> None:
    """Two movers in one node's namespaces share memory."""
    stage.say("moving a world between two movers of one node")
    path = "/tmp/bench.json"  # noqa: S108 - in the container
    command = ("worldline", "bench", "move", "--preset", "tiny", "--repeats", "1", "--json", path)
    await stage.fleet.execute(NODES[0], *command, timeout_s=_BENCH_S)
    shm_bytes = await stage.fleet.shared_memory_bytes(NODES[0])
    lanes = sorted(_lanes(json.loads(await stage.fleet.execute(NODES[0], "cat", path))))
    shared = bool(lanes) and not any(lane.startswith("tcp") for lane in lanes)
    found = f"{', '.join(lanes)}; /dev/shm of {shm_bytes >> 20} MiB"
    stage.checks.add("within a node they go through shared memory", shared, found)


async def cut_off(stage: Stage, viewer: Viewer) -> None:
    """The target's wire is cut in the middle of a move to it, and mended."""
    source, target = NODES[0], NODES[2]
    session_id = viewer.session.session_id
    await wire.slow_down(stage.fleet, target, _SLOW_BITS_PER_S)
    stage.say(f"{target}'s wire is slow now; moving there, to cut it in the middle")
    pushing = asyncio.Event()
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        if progress.total_bytes:
            pushing.set()

    moving = asyncio.create_task(viewer.session.move(target, on_progress), name="move")
    waiting = asyncio.create_task(pushing.wait())
    await asyncio.wait({moving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await stage.fleet.disconnect(target)
    cut_at = f"{seen[-1].phase.name}, {seen[-1].total_bytes} bytes to push" if seen else "nothing"
    stage.checks.add("the wire was cut while bytes were on it", not moving.done(), cut_at)
    stage.say(f"{target} is cut off ({cut_at}); the world stands still, and waits for the outcome")
    record = await moving
    stage.records.append(record)
    stage.checks.add(
        "the move ended with a reason", record.outcome == "aborted" and bool(record.reason),
        f"{record.outcome}: {record.reason}",
    )  # fmt: skip
    await viewer.more(_BLOCKS)
    same = viewer.blocks[-1].epoch == record.source_epoch
    stage.checks.add(f"the world plays on at {source}, in the same epoch", same)
    await heal(stage, target)
    owners = [one for one in await stage.client.sessions() if one.session_id == session_id]
    where = [f"{one.state} on {one.node_id}" for one in owners]
    stage.checks.add("exactly one owner is on record", where == [f"live on {source}"], str(where))
    stage.checks.add("nothing of the move is left at its target", await free(stage, target))
    await stage.move(viewer, target)


async def heal(stage: Stage, node: str) -> None:
    """Back on the network. The new interface is another one, which a running UCX never uses."""
    stage.say(f"{node} is back; its mover starts again, to use the new interface")
    await stage.fleet.connect(node)
    await wait_for_nodes(stage)
    await stage.fleet.halt(f"{node}-mover")
    await until(lambda: _alive(stage, node))
    await stage.fleet.start(f"{node}-mover")
    await wait_for_nodes(stage)


async def _alive(stage: Stage, node: str) -> list[str]:
    """A complaint while the directory takes the node for alive."""
    alive = [one.node_id for one in await stage.client.nodes() if one.alive]
    return [f"{node} is alive"] * (node in alive)


async def killed(stage: Stage, viewer: Viewer) -> None:
    """A node dies with a world on it; the directory says so, and the others go on."""
    victim = NODES[1]
    lost = await stage.open(victim)
    async with Viewer(lost) as unlucky:
        await unlucky.more(_BLOCKS)
    stage.say(f"killing {victim}, where {lost.session_id} has played {len(unlucky.blocks)} blocks")
    await stage.fleet.kill(victim)

    async def believed() -> list[str]:
        state = (await lost.refresh()).state
        return await _alive(stage, victim) + [f"its session is {state}"] * (state != "lost")

    await until(believed)
    stage.checks.add("the directory says that its session is lost, and its node silent", True)
    await viewer.more(_BLOCKS)
    await lost.close()


async def revived(stage: Stage) -> None:
    """The node that was killed comes back, and holds nothing."""
    victim = NODES[1]
    await stage.fleet.up()
    await wait_for_nodes(stage)
    stage.checks.add("the node comes back, and is empty", await free(stage, victim))
    stage.say(f"{victim} is back")


async def twin_of(stage: Stage, blocks: list[Block]) -> None:
    """The same actions on one node, never moved: every block is the same."""
    twin = await stage.open(NODES[1])
    stage.say(f"twin {twin.session_id} plays the same {len(blocks)} actions and stays")
    async with Viewer(twin) as still:
        while len(still.blocks) < len(blocks):
            await still.more(1)  # each has its own deadline: how many there are depends on the day
    different = [
        one.index
        for one, other in zip(blocks, still.blocks, strict=False)
        if one.state_digest is None
        or (one.index, one.state_digest, one.frames_digest)
        != (other.index, other.state_digest, other.frames_digest)
    ]
    consecutive = [block.index for block in blocks] == list(range(len(blocks)))
    stage.checks.add("the client saw consecutive blocks", consecutive, f"{len(blocks)} blocks")
    stage.checks.add(
        "every block equals the twin's (state and frames)", not different, str(different[:5] or "")
    )


async def stopped(stage: Stage) -> None:
    """Everything ends in its grace although worlds are live: nobody is killed."""
    live = len([one for one in await stage.client.sessions() if one.state == "live"])
    stage.say(f"stopping everything, with {live} live worlds")
    began_s = time.monotonic()
    codes = await stage.fleet.stop()
    killed_ones = [f"{name}: {code}" for name, code in codes.items() if code]
    found = ", ".join(killed_ones) or f"{len(codes)} in {time.monotonic() - began_s:.1f} s"
    stage.checks.add("every container ended by itself, with status 0", not killed_ones, found)
    stage.checks.add("worlds were live when it was stopped", live > 0, f"{live} worlds")


async def free(stage: Stage, name: str) -> bool:
    """Whether all slots of a node become free."""

    async def taken() -> list[str]:
        nodes = [node for node in await stage.client.nodes() if node.node_id == name]
        held = sum(node.slots_total - node.slots_free for node in nodes)
        return [f"{held} slots of {name} are held"] * (held > 0 or not nodes)

    try:
        await until(taken)
    except DeadlineExceeded:
        return False
    return True


async def until(complaints: Callable[[], Awaitable[list[str]]]) -> None:
    """Ask until nobody complains.

    Raises:
        DeadlineExceeded: with the last complaints.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while found := await complaints():
        if time.monotonic() >= deadline_s:
            raise DeadlineExceeded(f"after {_PATIENCE_S:g} s: {', '.join(found)}")
        await asyncio.sleep(_POLL_S)


def _lanes(value: object) -> set[str]:
    """Every lane that a bench's figures name, wherever."""
    if isinstance(value, dict):
        named = value.get("lanes")
        here = set(named) if isinstance(named, list) else set()
        return here.union(*(_lanes(each) for each in value.values()))
    if isinstance(value, list):
        return set().union(*(_lanes(each) for each in value))
    return set()
