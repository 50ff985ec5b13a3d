"""Driver: the process that starts the services of a fabric and plays placement's part.

It runs inside the fabric's driver namespace, as `python -m tests.fabric.driver ORDER RESULT`, both
of them JSON files. What it starts dies with it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.office import ticket_office
from tests.fabric.cell import ShapedCell
from tests.fabric.desk import SLOTS_FREE, Desk
from tests.fabric.incast import incast
from tests.fabric.leftovers import left_behind
from tests.fabric.namespaces import dropped_packets
from tests.fabric.offers import offers_of
from tests.fabric.opendesk import OpenDesk
from tests.fabric.order import IncastOrder, OpenOrder, Order, SweepOrder
from tests.fabric.probing import Prober
from tests.fabric.pushes import now_s
from tests.fabric.services import services_of
from tests.fabric.sweep import Stage, offer_all
from tests.fabric.warming import warm_up
from worldline.contract import Contract, ServiceClass

#: As many as a mover can be told to let in.
_WIRES_MAX = "64"


async def carry_out(order: Order) -> dict[str, Any]:
    """Do what was ordered; what came of it."""
    with tempfile.TemporaryDirectory(prefix="worldline-fabric-") as directory:
        if isinstance(order.experiment, IncastOrder):
            return await _incast(order, order.experiment, Path(directory))
        if isinstance(order.experiment, OpenOrder):
            return await _open(order, order.experiment, Path(directory))
        return await _sweep(order, order.experiment, Path(directory))


async def _incast(order: Order, experiment: IncastOrder, directory: Path) -> dict[str, Any]:
    cell, fabric = order.cell, order.fabric
    fan_in_max = max(experiment.fan_ins)
    async with ticket_office(fabric.driver.control_ip) as office:
        services = services_of(
            fabric,
            directory,
            slot_count=fan_in_max + 1,
            slot_bytes=cell.size_bytes,
            admission_address=office.address,
            mover={"wires_into_max": str(fan_in_max)},
        )
        async with services as running:
            rounds = await incast(
                fabric,
                running,
                office,
                fan_ins=experiment.fan_ins,
                rounds=experiment.rounds,
                size_bytes=cell.size_bytes,
                horizon_ms=cell.horizon_ms,
            )
            return {"rounds": [each.to_json() for each in rounds]}


async def _sweep(order: Order, experiment: SweepOrder, directory: Path) -> dict[str, Any]:
    cell = order.cell
    contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=cell.horizon_ms)
    services = services_of(
        order.fabric,
        directory,
        slot_count=_resident(cell, experiment.moves) + SLOTS_FREE,
        slot_bytes=cell.size_bytes,
    )
    async with services as running:
        desk = Desk(running, contract)
        await desk.know_nothing()
        prober = Prober(running, desk, cell.size_bytes)
        stage = Stage(running, desk, prober, contract, cell.size_bytes)
        await prober.measure_all(experiment.probe_rounds)
        solo_s = prober.solo_s
        capacity_per_s = len(solo_s) / fmean(solo_s.values())
        warm = await warm_up(stage, experiment.warm_rounds)
        loads = await _offer_loads(order, stage, experiment, capacity_per_s)
        return {
            "horizon_ms": cell.horizon_ms,
            "solo_s": solo_s,
            "capacity_per_s": capacity_per_s,
            "warm_up": warm.to_json(),
            "loads": loads,
            "log": desk.log(),
        }


async def _open(order: Order, experiment: OpenOrder, directory: Path) -> dict[str, Any]:
    """The same offers where nobody decides: neither admission nor any mover's wires."""
    cell = order.cell
    contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=cell.horizon_ms)
    everybody = {"wires_into_max": _WIRES_MAX, "wires_out_of_max": _WIRES_MAX}
    async with ticket_office(order.fabric.driver.control_ip) as office:
        services = services_of(
            order.fabric,
            directory,
            slot_count=2 * _resident(cell, experiment.moves) + SLOTS_FREE,
            slot_bytes=cell.size_bytes,
            admission_address=office.address,
            mover=everybody,
        )
        async with services as running:
            stage = Stage(running, OpenDesk(office), None, contract, cell.size_bytes)
            await warm_up(stage, 1)
            return {
                "loads": await _offer_loads(order, stage, experiment, experiment.capacity_per_s)
            }


async def _offer_loads(
    order: Order, stage: Stage, experiment: SweepOrder | OpenOrder, capacity_per_s: float
) -> list[dict[str, Any]]:
    """Each load in turn, from the same baseline."""
    fabric, names, running = order.fabric, order.cell.nodes, stage.services
    baseline = await running.census()
    loads: list[dict[str, Any]] = []
    for load in experiment.loads:
        offers = offers_of(names, experiment.moves, load, capacity_per_s, experiment.seed)
        dropped = {name: dropped_packets(fabric, name) for name in names}
        begun_s, used_s = now_s(), running.processor_s()
        done = await offer_all(stage, offers, load)
        lost = {name: dropped_packets(fabric, name) - dropped[name] for name in names}
        processors = (running.processor_s() - used_s) / (now_s() - begun_s)
        loads.append(
            {
                **done.to_json(),
                "dropped_packets": lost,
                "processors": processors,
                "left_behind": await left_behind(running, baseline),
            }
        )
    return loads


def _resident(cell: ShapedCell, moves: int) -> int:
    """Worlds that each node has before anything moves."""
    return -(-moves // len(cell.nodes))


def main() -> None:
    """Entry point."""
    order_path, result_path = map(Path, sys.argv[1:])
    order = Order.from_json(json.loads(order_path.read_text()))
    result_path.write_text(json.dumps(asyncio.run(carry_out(order))))


if __name__ == "__main__":
    main()
