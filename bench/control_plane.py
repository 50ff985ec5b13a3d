"""Control plane: what a move costs besides its bytes, on a real cluster of this machine.

An idle `tiny` world goes back and forth between two nodes. Its state of 1.4 MB makes push and
verify small, and they do not count anyway: the row is the sum of all other phases of a move, as
placement records them. Its note says how long the world stood still too, push and verify included.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Collection, Sequence

from bench.rounds import Say
from bench.row import Row, RowSpec, at_most
from bench.suite import Options
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions
from worldline.contract import Contract, ServiceClass
from worldline.errors import WorldlineError
from worldline.sdk import Client, MoveRecord

OVERHEAD = RowSpec("control.overhead", "ms", at_most(15.0))
#: The phases that move and compare bytes.
_BYTES = frozenset({"push", "verify"})
_WARMUPS = 4
_NODES = ("node-1", "node-2")
#: Moves for each repeat that was asked for: one move is short.
_MOVES_PER_REPEAT = 10
_CONTRACT = Contract(service_class=ServiceClass.C3_BULK, horizon_ms=3_600_000.0)


class ControlPlane:
    """The suite of the one row."""

    @property
    def specs(self) -> Sequence[RowSpec]:
        """See `Suite.specs`."""
        return (OVERHEAD,)

    def measure(self, wanted: Collection[str], options: Options, say: Say) -> list[Row]:
        """See `Suite.measure`."""
        if OVERHEAD.name not in wanted:
            return []
        moves = options.repeats * (2 if options.quick else _MOVES_PER_REPEAT)
        say(f"control plane: {moves} moves of an idle tiny world between two nodes")
        try:
            records = asyncio.run(_move(moves, options.seed))
        except WorldlineError as error:
            return [OVERHEAD.failed(f"{type(error).__name__}: {error}")]
        return [overhead_row(records)]


def overhead_row(records: Sequence[MoveRecord]) -> Row:
    """The median of what the phases other than push and verify took together."""
    overheads = [
        sum(took for phase, took in record.timings_ms.items() if phase not in _BYTES)
        for record in records
    ]
    phases = list(dict.fromkeys(phase for record in records for phase in record.timings_ms))
    medians = {
        phase: statistics.median(record.timings_ms.get(phase, 0.0) for record in records)
        for phase in phases
    }
    frozen_ms = statistics.median(record.frozen_ms for record in records)
    took_each = ", ".join(f"{phase} {took:.2f}" for phase, took in medians.items())
    detail = f"medians: {took_each}; freeze to thaw {frozen_ms:.2f}"
    return OVERHEAD.measured(statistics.median(overheads), len(records), detail)


async def _move(moves: int, seed: int) -> list[MoveRecord]:
    records = []
    async with (
        LocalCluster(ClusterOptions(nodes=len(_NODES), slots=2)) as cluster,
        Client(cluster.placement_address) as client,
    ):
        session = await client.open("tiny", seed=seed, contract=_CONTRACT, node=_NODES[0])
        for number in range(_WARMUPS + moves):
            record = await session.move(_NODES[(number + 1) % 2])
            record.raise_unless_committed()
            if number >= _WARMUPS:
                records.append(record)
        await session.close()
    return records
