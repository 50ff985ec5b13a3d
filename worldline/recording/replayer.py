"""Replayer: re-executes a run as a C4 session and compares block by block (paper, section 6.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from worldline.contract import Contract, DeterminismTier, ServiceClass
from worldline.errors import Conflict, InvalidInput, NotFound
from worldline.recording.comparison import (
    Difference,
    DifferenceKind,
    compare_blocks,
    compare_starts,
)
from worldline.recording.directory import RunWriter, check_free
from worldline.recording.recorder import begin, play_blocks
from worldline.recording.run import Run, RunBlock, RunHeader
from worldline.sdk.client import Client
from worldline.sdk.records import Engine
from worldline.sdk.session import Session
from worldline.state.manifest import Fingerprint
from worldline.state.remedies import mismatch

OnReplayed = Callable[[RunBlock, Difference | None], None]


@dataclass(frozen=True, slots=True)
class ReplayWish:
    """How to replay. All empty: on any engine that equals the run's, at T0, from the run's seed.

    `node_id` names the node. `snapshot_id` names a session that stands where the run began, and
    that nobody else plays: it is played on, and kept. At T1 any engine of the same world will do.
    """

    node_id: str = ""
    snapshot_id: str = ""
    tier: DeterminismTier = DeterminismTier.T0_BITWISE


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it: the run that was made, and where it first differs from the one replayed."""

    run: Run
    difference: Difference | None
    blocks_differing: int


async def replay(
    client: Client,
    run: Run,
    wish: ReplayWish | None = None,
    out: Path | None = None,
    on_block: OnReplayed | None = None,
) -> Replayed:
    """Re-execute every block of the run: the same actions, the same denoising steps.

    With `out` the run that comes of it is written there. Goes on to the end behind a difference, so
    that a second run is whole.

    Raises:
        InvalidInput: `out` is there already; or the run began later than its seed and no snapshot
            is named.
        Conflict: FINGERPRINT_MISMATCH, no engine equals the run's at T0; the session that was named
            stands elsewhere (SNAPSHOT_DIFFERS).
        Rejected: there is no room for it.
    """
    wish = ReplayWish() if wish is None else wish
    if out is not None:
        check_free(out)
    async with _session(client, run.header, wish) as session:
        header = await begin(session, run.header.digests.granule_bytes)
        found = compare_starts(run.header, header)
        if found is not None and wish.snapshot_id:
            raise Conflict(
                f"session {wish.snapshot_id} does not stand where the run began ({found.message}): "
                "name one that does, such as a fork with the same noise made before the recording",
                reason="SNAPSHOT_DIFFERS",
                field="from",
            )
        writer = None if out is None else RunWriter(out, header)
        try:
            return await _replayed(session, run, header, found, writer, on_block)
        finally:
            if writer is not None:
                writer.close()


async def _replayed(
    session: Session,
    run: Run,
    header: RunHeader,
    found: Difference | None,
    writer: RunWriter | None,
    on_block: OnReplayed | None,
) -> Replayed:
    comparable = found is None or found.kind is not DifferenceKind.START
    blocks: list[RunBlock] = []
    differing = 0
    actions = (replace(one.action, steps=_steps(one)) for one in run.blocks)
    async with aclosing(play_blocks(session, header, actions)) as played:
        async for block in played:
            difference = None
            if comparable:
                recorded = run.blocks[len(blocks)]
                difference = compare_blocks(run.header.layout, recorded, block)
            blocks.append(block)
            if writer is not None:
                writer.append(block)
            differing += difference is not None
            found = found or difference
            if on_block is not None:
                on_block(block, difference)
    return Replayed(Run(header, tuple(blocks)), found, differing)


def _steps(block: RunBlock) -> int:
    """What the replay must ask for: full quality is what it gets anyway."""
    return block.steps if block.steps < block.steps_full else 0


@asynccontextmanager
async def _session(client: Client, header: RunHeader, wish: ReplayWish) -> AsyncIterator[Session]:
    """A session at the run's start; one that was opened for it is closed again."""
    if wish.snapshot_id:
        yield await client.session(wish.snapshot_id)
        return
    if header.block_index > 0:
        raise InvalidInput(
            f"the run begins at block {header.block_index}, which no seed gives: name a session "
            "that stands there and that nobody plays (--from), for example a fork that was made "
            "when the recording began",
            field="from",
        )
    node_id = await _node(client, header, wish)
    session = await client.open(
        header.world.preset,
        seed=header.world.seed,
        contract=replay_contract(header.contract, wish.tier),
        node=node_id,
    )
    try:
        yield session
    finally:
        await asyncio.shield(session.close())


def replay_contract(recorded: Contract, tier: DeterminismTier) -> Contract:
    """Of a session that replays one of that contract: C4, paced by its client, decoded alike."""
    return Contract(
        service_class=ServiceClass.C4_REPLAY,
        horizon_ms=recorded.horizon_ms,
        determinism_tier=tier,
        decode_tier=recorded.decode_tier,
    )


async def _node(client: Client, header: RunHeader, wish: ReplayWish) -> str:
    """A node whose engine equals the run's; the one that was named, or empty for any, at T1.

    Raises:
        NotFound: no such node, or no engine is alive.
        Conflict: FINGERPRINT_MISMATCH.
    """
    if wish.tier is not DeterminismTier.T0_BITWISE:
        return wish.node_id
    nodes = [one for one in await client.nodes() if wish.node_id in ("", one.node_id)]
    engines = [one for node in nodes if node.alive for one in node.engines if one.alive]
    if not engines:
        where = f"on node {wish.node_id}" if wish.node_id else "in this cluster"
        raise NotFound(f"no engine is alive {where}", reason="NODE_UNKNOWN", field="node")
    equal = [one for one in engines if one.fingerprint == header.fingerprint.hash.hex()]
    if not equal:
        raise Conflict(_unequal(header, engines), reason="FINGERPRINT_MISMATCH", field="tier")
    return min(equal, key=lambda one: (one.sessions, one.node_id)).node_id


def _unequal(header: RunHeader, engines: list[Engine]) -> str:
    """Why none will do; in words for the one that comes nearest."""
    found = [(mismatch(header.fingerprint, Fingerprint.of(one.facts)), one) for one in engines]
    text, nearest = min(found, key=lambda pair: (len(pair[0]), pair[1].engine_id))
    return (
        f"no engine equals the one that the run was recorded on; {nearest.engine_id} comes nearest "
        f"(here: recorded, there: {nearest.engine_id}): {text}. Or replay it at T1 (--tier t1): "
        "digests then may differ"
    )
