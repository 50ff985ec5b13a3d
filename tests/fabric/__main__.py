"""Both experiments by hand: `python -m tests.fabric --moves 72 --loads 1 1.4 2 4 --json FILE`.

As root, on a machine with nothing else to do. Prints tables; the file has every move.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.facts import machine
from tests.fabric.caps import overlaps
from tests.fabric.cell import SHALLOW_PORT, ShapedCell
from tests.fabric.namespaces import CONGESTION_CONTROL, why_not
from tests.fabric.order import IncastOrder, OpenOrder, SweepOrder
from tests.fabric.replayed import replay
from tests.fabric.run import run
from tests.fabric.simulated import simulate
from tests.fabric.tables import (
    INCAST_HEAD,
    OPEN_HEAD,
    SWEEP_HEAD,
    incast_table,
    open_row,
    sweep_row,
)

#: Of each move in the file, one line; times in milliseconds, the first four since the load's begin.
_COLUMNS = (
    "move,source,target,verdict,simulated,offered,asked_wire,granted,verified,took,starved,"
    "retry_after"
)
_STARTS_S = 60.0
_MOVE_S = 3.0


def main() -> None:
    """Entry point."""
    options = _options()
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    cell = ShapedCell()
    found: dict[str, Any] = {
        "machine": machine(),
        "congestion_control": CONGESTION_CONTROL,
        "cell": cell.to_json(),
    }
    if options.rounds:
        found["incast"] = _incasts(cell, options.rounds)
        _keep(found, options.json)
    if options.moves:
        found["sweep"] = _sweep(cell, options)
        _keep(found, options.json)
        found["unscheduled"] = _unscheduled(cell, options, found["sweep"]["capacity_per_s"])
        _keep(found, options.json)


def _keep(found: Mapping[str, Any], path: Path | None) -> None:
    """After each experiment: a later one may fail."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fabric", description=__doc__)
    parser.add_argument("--moves", type=int, default=72, help="offers at each load; 0: no sweep")
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0, 1.4, 2.0, 4.0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="incasts of each size; 0: none")
    parser.add_argument("--json", type=Path, help="where everything goes")
    return parser.parse_args()


def _incasts(cell: ShapedCell, rounds: int) -> dict[str, Any]:
    """The cell's own port, and one with hardly a buffer."""
    found: dict[str, Any] = {}
    _print(*INCAST_HEAD)
    for name, port in (("cell", cell.port), ("shallow", SHALLOW_PORT)):
        order = IncastOrder(rounds=rounds)
        limit_s = _STARTS_S + _MOVE_S * 3 * (rounds + 1)
        found[name] = run(order, limit_s, replace(cell, port=port))["rounds"]
        _print(*incast_table(found[name], f"{name}, {port.limit_bytes >> 10} KiB"))
    return found


def _sweep(cell: ShapedCell, options: argparse.Namespace) -> dict[str, Any]:
    order = SweepOrder(tuple(options.loads), options.moves, options.seed)
    result = run(order, _limit_s(options), cell)
    simulated = simulate(result, cell)
    _print("", *SWEEP_HEAD)
    for load, again in zip(result["loads"], simulated, strict=True):
        _print(sweep_row(load, again.to_json(), again.agreement(load["moves"]), cell))
    replayed = replay(result)
    _print(
        "",
        f"Replayed: {replayed.agreement:.2%} of {replayed.compared} verdicts are the same.",
        *(f"- {each.move_id}: {each.real}; the core: {each.pure}" for each in replayed.differing),
    )
    return {
        "solo_s": result["solo_s"],
        "capacity_per_s": result["capacity_per_s"],
        "columns": _COLUMNS,
        "loads": [
            {
                **load,
                "moves": [_line(move, again.verdicts[move["move_id"]]) for move in load["moves"]],
                "overlaps": overlaps(load["moves"]),
                "simulated": again.to_json(),
            }
            for load, again in zip(result["loads"], simulated, strict=True)
        ],
        "replayed": replayed.to_json(),
    }


def _unscheduled(
    cell: ShapedCell, options: argparse.Namespace, capacity_per_s: float
) -> list[dict[str, Any]]:
    """The same offers where nobody decides."""
    order = OpenOrder(tuple(options.loads), options.moves, options.seed, capacity_per_s)
    loads: list[dict[str, Any]] = run(order, _limit_s(options), cell)["loads"]
    _print("", *OPEN_HEAD, *(open_row(load) for load in loads))
    return [{**load, "moves": [_line(move, "") for move in load["moves"]]} for load in loads]


def _limit_s(options: argparse.Namespace) -> float:
    return 2 * _STARTS_S + _MOVE_S * float(options.moves) * len(options.loads)


def _line(move: Mapping[str, Any], simulated: str) -> str:
    names = ("move_id", "source", "target", "verdict")
    times_s = (move[name] for name in ("offered_s", "asked_wire_s", "granted_s", "verified_s"))
    times = ("" if at_s is None else f"{at_s * 1e3:.0f}" for at_s in times_s)
    ends = (f"{move[name]:.0f}" for name in ("took_ms", "starved_ms", "retry_after_ms"))
    return ",".join([*(move[name] for name in names), simulated, *times, *ends])


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
