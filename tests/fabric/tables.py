"""Tables: both experiments as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any

from tests.fabric.cell import ShapedCell

Rounds = Iterable[Mapping[str, Any]]


def incast_table(rounds: Rounds, port: str) -> list[str]:
    """A row for each number of movers; `port` names the buffer."""
    by_count: dict[int, list[Mapping[str, Any]]] = {}
    for each in rounds:
        by_count.setdefault(len(each["movers"]), []).append(each)
    return [_incast_row(port, count, of_count) for count, of_count in sorted(by_count.items())]


INCAST_HEAD = [
    "| port | movers | per move, Mbit/s | into the receiver, Mbit/s | slowest, ms | on time "
    "| packets lost |",
    "|---|---|---|---|---|---|---|",
]


def _incast_row(port: str, count: int, rounds: list[Mapping[str, Any]]) -> str:
    movers = [mover for each in rounds for mover in each["movers"]]
    into = fmean(each["aggregate_bytes_per_s"] for each in rounds)
    slowest = median(max(mover["ended_ms"] for mover in each["movers"]) for each in rounds)
    return (
        f"| {port} | {count} | {_mbit(fmean(mover['rate_bytes_per_s'] for mover in movers))} "
        f"| {_mbit(into)} | {slowest:.0f} | {sum(mover['on_time'] for mover in movers)} of "
        f"{len(movers)} | {sum(each['dropped_packets'] for each in rounds)} |"
    )


SWEEP_HEAD = [
    "| load | offered | on time | missed | failed | rejected | withdrawn at the wire "
    "| simulated: on time, missed | same verdict | move, median ms (horizon share) |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def sweep_row(
    load: Mapping[str, Any], simulated: Mapping[str, Any], agreement: float, cell: ShapedCell
) -> str:
    """One load, and what the simulation makes of it."""
    moved = [move for move in load["moves"] if move["verified_s"] is not None]
    took_ms = median(move["took_ms"] for move in moved) if moved else 0.0
    return (
        f"| {load['load']:g}x | {load['offered']} | {load['on_time']} | {load['missed']} "
        f"| {load['failed']} | {load['rejected']} | {load['withdrawn']} "
        f"| {simulated['on_time']}, {simulated['missed']} | {agreement:.0%} "
        f"| {took_ms:.0f} ({took_ms / cell.horizon_ms:.0%}) |"
    )


OPEN_HEAD = [
    "| load | offered | on time | missed | failed | move, median ms | slowest, ms | packets lost |",
    "|---|---|---|---|---|---|---|---|",
]


def open_row(load: Mapping[str, Any]) -> str:
    """One load where nobody decides."""
    took_ms = [move["took_ms"] for move in load["moves"] if move["verified_s"] is not None]
    middle, most = (median(took_ms), max(took_ms)) if took_ms else (0.0, 0.0)
    return (
        f"| {load['load']:g}x | {load['offered']} | {load['on_time']} | {load['missed']} "
        f"| {load['failed']} | {middle:.0f} | {most:.0f} "
        f"| {sum(load['dropped_packets'].values())} |"
    )


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e6:.1f}"
