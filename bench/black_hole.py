"""What a collector that is none costs: moves beside a cluster without one, and exits.

    python -m bench.black_hole
    python -m bench.black_hole --moves 40 --json black-hole.json

For each way in which a collector can be away (`silent`: takes connections and says nothing;
`drops`: the kernel drops every SYN; `down`: refuses; `none`: neither cluster has one, which shows
how far two equal clusters are apart at this time), two clusters of two nodes take turns moving
an idle `tiny` world: one has that collector, the other none. RATIO is the median over all turns of
the move of the one over that of the other in the same turn, so that what else the machine does
falls on both; FROZEN the same of the time that the world stood still. CPU is the ratio of the
processor time that the six services of each took for all moves, waits between them included: it
says the same where the machine is too busy for clocks to say anything. EXIT is how long the slowest
of the six services took from SIGTERM to all of them, with that collector and without. The bars: a
ratio of at most 1.05, an exit of less than 5 s. Exit status 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions
from worldline.contract import Contract, ServiceClass
from worldline.sdk import Client, MoveRecord
from worldline.sdk.session import Session

KINDS = ("none", "silent", "drops", "down")
RATIO_MAX, EXIT_S_MAX = 1.05, 5.0
_WARMUPS = 4
_NODES = ("node-2", "node-1")
_CONTRACT = Contract(service_class=ServiceClass.C3_BULK, horizon_ms=3_600_000.0)


@dataclass(frozen=True, slots=True)
class Found:
    """One kind of absence. Medians; `moves` of each cluster."""

    kind: str
    moves: int
    ratio: float
    frozen_ratio: float
    cpu_ratio: float
    with_ms: float
    without_ms: float
    exit_with_s: float
    exit_without_s: float

    @property
    def held(self) -> bool:
        """Whether both bars are met; where there is no collector there are none."""
        if self.kind == "none":
            return True
        return self.ratio <= RATIO_MAX and self.exit_with_s < EXIT_S_MAX


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=120, help="of each cluster, for each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    found = []
    for kind in options.kind or KINDS:
        sys.stderr.write(f"{kind}: two clusters, {options.moves} moves each\n")
        with absent(kind) as address:
            found.append(asyncio.run(_compare(kind, address, options.moves)))
    print(f"{'COLLECTOR':<11}{'RATIO':>7}{'FROZEN':>8}{'CPU':>7}{'MOVE MS':>9}{'NONE':>8}", end="")
    print(f"{'EXIT S':>8}{'NONE':>7}  OK")
    for each in found:
        print(
            f"{each.kind:<11}{each.ratio:>7.3f}{each.frozen_ratio:>8.3f}{each.cpu_ratio:>7.3f}{each.with_ms:>9.1f}"
            f"{each.without_ms:>8.1f}{each.exit_with_s:>8.2f}{each.exit_without_s:>7.2f}"
            f"  {'yes' if each.held else 'no'}"
        )
    if options.json is not None:
        rows = [asdict(each) | {"held": each.held} for each in found]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(each.held for each in found) else 1


@contextmanager
def absent(kind: str) -> Iterator[str]:
    """host:port of a collector that is away in this way; empty: there is none."""
    if kind == "none":
        yield ""
        return
    listener, waiting = socket.socket(), list[socket.socket]()
    listener.bind(("127.0.0.1", 0))
    host, port = listener.getsockname()
    if kind == "down":
        listener.close()
    else:
        listener.listen(128 if kind == "silent" else 0)
    if kind == "drops":
        for _ in range(2):  # one more than the queue holds
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, port))
            waiting.append(one)
    try:
        yield f"{host}:{port}"
    finally:
        for each in (listener, *waiting):
            each.close()


async def _compare(kind: str, address: str, moves: int) -> Found:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}"} if address else {}
    beside = ClusterOptions(env=env), ClusterOptions()
    async with LocalCluster(beside[0]) as with_it, LocalCluster(beside[1]) as without:
        async with (
            Client(with_it.placement_address) as one,
            Client(without.placement_address) as other,
        ):
            sessions = [
                await each.open("tiny", contract=_CONTRACT, node="node-1") for each in (one, other)
            ]
            before_s = [_cpu_s(each) for each in (with_it, without)]
            records = await _turns(sessions, moves)
            after_s = [_cpu_s(each) for each in (with_it, without)]
        exits = [await _exit_s(each) for each in (with_it, without)]
    totals = [[sum(each.timings_ms.values()) for each in side] for side in records]
    frozen = [[each.frozen_ms for each in side] for side in records]
    return Found(
        kind,
        moves,
        _ratio(*totals),
        _ratio(*frozen),
        (after_s[0] - before_s[0]) / (after_s[1] - before_s[1]),
        *(statistics.median(each) for each in totals),
        *exits,
    )


def _cpu_s(cluster: LocalCluster) -> float:
    """Processor time of all its services so far, seconds."""
    times = [psutil.Process(each.pid).cpu_times() for each in cluster.services.values()]
    return float(sum(each.user + each.system for each in times))


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios turn by turn."""
    return statistics.median(mine / theirs for mine, theirs in zip(one, other, strict=True))


async def _turns(sessions: Sequence[Session], moves: int) -> list[list[MoveRecord]]:
    """The records of each session's moves; they take turns, and who is first takes turns too."""
    records: list[list[MoveRecord]] = [[] for _ in sessions]
    for number in range(_WARMUPS + moves):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for index in order:
            record = await sessions[index].move(_NODES[number % 2])
            record.raise_unless_committed()
            if number >= _WARMUPS:
                records[index].append(record)
    return records


async def _exit_s(cluster: LocalCluster) -> float:
    """Seconds from SIGTERM to all of them until the last has ended."""
    began_s = time.monotonic()
    for each in cluster.services.values():
        each.signal(signal.SIGTERM)
    await asyncio.gather(*(each.wait() for each in cluster.services.values()))
    return time.monotonic() - began_s


if __name__ == "__main__":
    raise SystemExit(main())
