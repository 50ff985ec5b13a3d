"""Run it: real processes and bytes, faults from a seed; exit status 1 where anything was found."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.aftermath import aftermath
from tests.chaos.drains import Operator
from tests.chaos.faults import Saboteur, faults
from tests.chaos.journal import Journal
from tests.chaos.worlds import CONTRACT, SEED, Stage, Worlds
from tests.oracles import Oracles, script
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions
from worldline.sdk import Client
from worldline.sdk.block import Block


def main() -> None:
    """Parse the command line, run, report."""
    options = _parser().parse_args()
    journal = Journal(lambda line: print(line, file=sys.stderr, flush=True))
    path = options.dir or Path(tempfile.mkdtemp(prefix="worldline-chaos-"))
    path.mkdir(parents=True, exist_ok=True)  # what a cluster finds it leaves, the logs in it too
    asyncio.run(_run(options, path, journal))
    kept = path if journal.findings or options.dir else None
    if kept is None:
        shutil.rmtree(path)
    _report(journal, kept, as_json=options.json)
    raise SystemExit(1 if journal.findings else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Worlds that play, move, fork and sleep at random while nodes are drained and "
        "the processes under them are killed, ended and stopped. Every block is compared with a "
        "twin's that was left alone; at the end nothing may be left.",
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything drawn (default: 1)")
    parser.add_argument(
        "--duration-s", type=float, default=120.0, help="of the faults (default: 120)"
    )
    parser.add_argument("--nodes", type=int, default=3, help="of the cluster (default: 3)")
    parser.add_argument("--worlds", type=int, default=4, help="at once, at most (default: 4)")
    parser.add_argument(
        "--calm-s", type=float, default=4.0, help="between two faults, in the mean (default: 4)"
    )
    parser.add_argument("--blocks", type=int, default=200, help="of the twin (default: 200)")
    parser.add_argument(
        "--dir",
        type=Path,
        help="for the logs, which stay there (default: a new one, which stays where anything was "
        "found)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    return parser


async def _run(options: argparse.Namespace, path: Path, journal: Journal) -> None:
    parts = ClusterOptions(nodes=options.nodes, slots=4, slot_bytes=16 << 20)
    cluster = LocalCluster(parts, run_dir=path)
    async with cluster, Client(cluster.placement_address) as client:
        journal.note(f"{options.nodes} nodes are up; the twin plays {options.blocks} blocks")
        twin = await _twin(client, options.blocks)
        calm = await Oracles.observe(cluster, client)
        until_s = time.monotonic() + options.duration_s
        stage = Stage(client, journal, twin, tuple(cluster.nodes), options.worlds)
        planned = faults(options.seed, sorted(cluster.services), options.calm_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(Saboteur(cluster, journal).run(planned, until_s))
            group.create_task(Operator(client, journal, stage.nodes, options.seed).run(until_s))
            group.create_task(Worlds(stage, options.seed, until_s).run())
        journal.note("all worlds are closed; what is left?")
        for complaint in await aftermath(cluster, client, calm):
            journal.found(complaint)


async def _twin(client: Client, count: int) -> list[Block]:
    """Its blocks. Every path is taken once on the way: the baseline has all that is kept."""
    nodes = [node.node_id for node in await client.nodes()]
    async with await client.open("tiny", seed=SEED, contract=CONTRACT, node=nodes[0]) as session:
        for one, other in itertools.combinations(nodes, 2):
            for target in (one, other, one):
                if session.info.node_id != target:
                    (await session.move(target)).raise_unless_committed()
                    await session.refresh()
        return [block async for block in session.play(script(count), digests=True)]


def _report(journal: Journal, kept: Path | None, *, as_json: bool) -> None:
    outcomes = {f"{what}: {how}": count for (what, how), count in sorted(journal.outcomes.items())}
    done = {f"{kind} {what}": count for (what, kind), count in sorted(journal.faults.items())}
    if as_json:
        whole = {"blocks": journal.blocks, "outcomes": outcomes, "faults": done}
        print(json.dumps({**whole, "findings": journal.findings, "dir": str(kept or "")}, indent=2))
        return
    print(f"{journal.blocks} blocks, {len(journal.findings)} findings")
    for line in journal.findings:
        print(f"  {line}")
    for title, counts in (("asked", outcomes), ("faults", done)):
        print(title)
        for what, count in counts.items():
            print(f"  {count:5d}  {what}")
    if kept is not None:
        print(f"logs: {kept}/logs")


if __name__ == "__main__":
    main()
