"""Bench: what a move costs, measured on a cluster of its own."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from worldline.cli.cluster import LocalCluster
from worldline.cli.common import run
from worldline.cli.film import scripted
from worldline.cli.machine import machine, versions
from worldline.cli.moves import ProgressView
from worldline.cli.output import (
    console,
    err_console,
    hex_digest,
    human_bytes,
    jsonable,
    print_table,
)
from worldline.cli.parts import ClusterOptions
from worldline.cli.rawpush import RawPath, push_unverified
from worldline.cli.strip import check_writable
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvalidInput
from worldline.sdk import Client, MoveRecord, PushStats, Session

app = typer.Typer(help="Measure.", no_args_is_help=True)

#: Slot sizes that hold each preset's state, rounded up to whole granules.
_SLOT_BYTES = {"tiny": 64 << 20, "small": 256 << 20, "mg2": 1_600 << 20}
_NODES = ("node-1", "node-2")
#: One for the session and one for what lands.
_SLOTS = 2
_SEED = 1
#: Long enough that no machine is too slow to be measured.
_CONTRACT = Contract(service_class=ServiceClass.C3_BULK, horizon_ms=3_600_000.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured."""

    preset: str
    records: tuple[MoveRecord, ...]
    raw: tuple[PushStats, ...]


@app.callback()
def bench() -> None:
    """Measure."""


@app.command("move")
def move(
    preset: Annotated[str, typer.Option(help=f"{', '.join(_SLOT_BYTES)}.")] = "mg2",
    repeats: Annotated[int, typer.Option(min=1, help="Moves, there and back in turn.")] = 3,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks played before each move.")] = 2,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write figures here.")] = None,
    threads: Annotated[int, typer.Option(help="Compute threads of each engine.")] = 1,
) -> None:
    """Move a world between two local nodes, verified, and push the same bytes unverified."""

    async def work() -> int:
        slot_bytes = _SLOT_BYTES.get(preset)
        if slot_bytes is None:
            known = ", ".join(_SLOT_BYTES)
            raise InvalidInput(f"--preset must be one of {known}; got {preset!r}", field="--preset")
        if json_path is not None:
            check_writable(json_path, "--json")
        options = ClusterOptions(
            nodes=len(_NODES), slots=_SLOTS, slot_bytes=slot_bytes, threads=threads
        )
        async with (
            LocalCluster(options, on_event=_say) as cluster,
            Client(cluster.placement_address, move_timeout_s=600, open_timeout_s=600) as client,
        ):
            figures = await _measure(cluster, client, preset, repeats, blocks)
        document = to_document(figures)
        if json_path is not None:
            json_path.write_text(json.dumps(document, indent=2) + "\n")
        _print(document)
        return 0

    run(work)


async def _measure(
    cluster: LocalCluster, client: Client, preset: str, repeats: int, blocks: int
) -> Figures:
    _say(f"opening {preset} on {_NODES[0]}")
    session = await client.open(preset, seed=_SEED, contract=_CONTRACT, node=_NODES[0])
    records, raw = [], []
    for repeat in range(repeats):
        # Fresh caches are zeros, and zeros prove nothing: blocks fill them.
        await _play(session, blocks)
        source, target = _NODES[repeat % 2], _NODES[(repeat + 1) % 2]
        _say(f"move {repeat + 1} of {repeats}: {source} to {target}")
        with ProgressView() as view:
            record = await session.move(target, view.show)
        record.raise_unless_committed()
        records.append(record)
        size_bytes = record.push_stats.wire_bytes if record.push_stats is not None else 0
        _say(f"the same {human_bytes(size_bytes)} with verification off")
        raw.append(await push_unverified(_path(cluster, source, target), size_bytes, _CONTRACT))
    await session.close()
    return Figures(preset, tuple(records), tuple(raw))


async def _play(session: Session, blocks: int) -> None:
    actions = (scripted(block_index) for block_index in range(blocks))
    async for block in session.play(actions, frames=False):
        _say(f"block {block.index}: {block.generate_ms:.0f} ms")


def _path(cluster: LocalCluster, source: str, target: str) -> RawPath:
    return RawPath(
        admission_address=cluster.admission_address,
        source_node_id=source,
        source_address=cluster.nodes[source].mover.address,
        target_node_id=target,
        target_address=cluster.nodes[target].mover.address,
    )


def to_document(figures: Figures) -> dict[str, Any]:
    """The figures as JSON: medians first, then every repeat.

    Raises:
        InvalidInput: a committed move has no figures of its push.
    """
    verified = [record.push_stats for record in figures.records if record.push_stats is not None]
    if len(verified) != len(figures.records) or not verified:
        raise InvalidInput("a move has no figures of its push", field="push_stats")
    phases = sorted({name for record in figures.records for name in record.timings_ms})
    return {
        "preset": figures.preset,
        "bytes": verified[-1].wire_bytes,
        "blank_bytes": verified[-1].blank_bytes,
        "phases_s": {
            name: _median([record.timings_ms.get(name, 0.0) / 1e3 for record in figures.records])
            for name in phases
        },
        "frozen_s": _median([record.frozen_ms / 1e3 for record in figures.records]),
        "verified_gb_per_s": _median([stats.rate_bytes_per_s / 1e9 for stats in verified]),
        "unverified_gb_per_s": _median([stats.rate_bytes_per_s / 1e9 for stats in figures.raw]),
        "chunks": verified[-1].chunks,
        "chunk_bytes": verified[-1].chunk_bytes,
        "window_chunks": verified[-1].window_chunks,
        "lanes": list(verified[-1].lanes),
        "digest": hex_digest(figures.records[-1].target_digest),
        "moves": [
            {
                "timings_ms": jsonable(record.timings_ms),
                "frozen_ms": record.frozen_ms,
                "push": jsonable(record.push_stats),
            }
            for record in figures.records
        ],
        "unverified_pushes": jsonable(figures.raw),
        "machine": machine(),
        "versions": versions(),
    }


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _print(document: dict[str, Any]) -> None:
    rows = [(f"{name} s", f"{value:.4f}") for name, value in document["phases_s"].items()]
    rows += [
        ("frozen s", f"{document['frozen_s']:.4f}"),
        ("verified GB/s", f"{document['verified_gb_per_s']:.2f}"),
        ("unverified GB/s", f"{document['unverified_gb_per_s']:.2f}"),
        ("bytes on the wire", f"{document['bytes']:,}"),
        ("zeros that stayed", f"{document['blank_bytes']:,}"),
        ("chunk bytes", f"{document['chunk_bytes']:,}"),
        ("window chunks", str(document["window_chunks"])),
        ("lanes", ", ".join(document["lanes"]) or "unknown"),
    ]
    console.print(f"{document['preset']}: medians of {len(document['moves'])} moves")
    print_table(("FIGURE", "VALUE"), rows)


def _say(text: str) -> None:
    err_console.print(text, markup=False, highlight=False)
