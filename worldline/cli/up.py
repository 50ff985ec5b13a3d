"""Up: a local cluster in the foreground."""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from typing import Annotated

import typer

from worldline.cli.cluster import LocalCluster
from worldline.cli.common import (
    DevicesOption,
    DirOption,
    JsonOption,
    ModelsOption,
    model_names,
    run,
)
from worldline.cli.cores import share_out, told
from worldline.cli.output import console, err_console, print_json_line, print_table
from worldline.cli.parts import ClusterOptions
from worldline.cli.process import ServiceProcess
from worldline.cli.rundir import default_run_dir
from worldline.cli.stopping import stopping, unless_stopped
from worldline.devicename import CPU
from worldline.fields import positive
from worldline.numa import cpus_by_node

#: Fewer have nowhere to move a world to.
_NODES_MIN = 2
#: What a mover takes: 16 TiB.
_SLOT_MB_MAX = 1 << 24


class LogLevel(StrEnum):
    """What typer offers and checks."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def up(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many nodes; default: one for each of --devices, at least 2."),
    ] = None,
    directory: DirOption = None,
    slots: Annotated[int, typer.Option(help="Slots per node.")] = 4,
    slot_mb: Annotated[
        float, typer.Option(help="Size of each slot, MiB; a world's state must fit one.")
    ] = 64.0,
    threads: Annotated[int, typer.Option(help="Compute threads of each engine.")] = 1,
    devices: DevicesOption = CPU,
    models: ModelsOption = "",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Placement's port on loopback; 0: a free one.")
    ] = 7400,
    log_level: Annotated[LogLevel, typer.Option(help="Least level that is logged.")] = (
        LogLevel.INFO
    ),
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics", help="Answer Prometheus: GET /metrics on a loopback port of each service."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a local cluster until Ctrl-C: admission, placement, and a mover and engine per node."""

    async def work() -> int:
        given = tuple(devices.split(","))
        count = max(_NODES_MIN, len(given)) if nodes is None else nodes
        cores = _cores(count, threads, given)
        options = ClusterOptions(
            nodes=count,
            cores=cores,
            slots=slots,
            slot_bytes=_slot_bytes(slot_mb),
            threads=threads,
            devices=given,
            models=model_names(models),
            port=port,
            log_level=log_level.value,
            metrics=metrics,
        )
        run_dir = (directory or default_run_dir()).absolute()
        say = (lambda _text: None) if as_json else _say
        if set(given) == {CPU}:
            say(told(cores, count, threads, len(os.sched_getaffinity(0))))
        async with stopping() as stop:
            cluster = LocalCluster(options, run_dir=run_dir, on_event=say, keep_logs=True)
            try:
                if not await unless_stopped(stop, _started(cluster)):
                    return 0
                _announce(cluster, as_json)
                try:
                    await _watch(cluster, stop)
                finally:
                    killed = await cluster.stop()
            finally:
                if cluster.kept_log_path is not None:
                    _say(f"the logs stay in {cluster.kept_log_path}")
            for name in killed:
                err_console.print(f"{name} did not stop in time and was killed", markup=False)
            return 1 if killed else 0

    run(work)


def _slot_bytes(slot_mb: float) -> int:
    return int(positive(slot_mb, "--slot-mb", at_least=1, at_most=_SLOT_MB_MAX) * (1 << 20))


def _cores(nodes: int, threads: int, devices: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """CPUs for each engine alone. One on a GPU goes to its GPU's NUMA node by itself."""
    if nodes < 1 or threads < 1 or set(devices) != {CPU}:
        return ()
    return share_out(frozenset(os.sched_getaffinity(0)), cpus_by_node(), nodes, threads)


async def _started(cluster: LocalCluster) -> bool:
    await cluster.start()
    return True


async def _watch(cluster: LocalCluster, stop: asyncio.Event) -> None:
    """Until `stop`, or until nothing runs; says which children ended."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set() and any(each.running for each in cluster.services.values()):
            ended = asyncio.ensure_future(cluster.wait_any())
            await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                child = ended.result()
                err_console.print(
                    f"{child.name} ended with status {child.status}; log: {child.log_path}",
                    markup=False,
                )
            else:
                ended.cancel()
                await asyncio.wait({ended})
    finally:
        stopped.cancel()


def _announce(cluster: LocalCluster, as_json: bool) -> None:
    if as_json:
        print_json_line(
            {
                "placement_address": cluster.placement_address,
                "admission_address": cluster.admission_address,
                "dir": str(cluster.path),
                "services": {each.name: _described(each) for each in cluster.services.values()},
            }
        )
        return
    rows = [(each.name, each.address, each.pid) for each in cluster.services.values()]
    print_table(("SERVICE", "ADDRESS", "PID"), rows)
    scraped = [each for each in cluster.services.values() if each.metrics_address]
    if scraped:
        console.print()
        print_table(
            ("SERVICE", "METRICS"),
            [(each.name, _metrics_url(each)) for each in scraped],
        )
    console.print(f"\nserving; logs in {cluster.path / 'run' / 'logs'}; Ctrl-C stops", markup=False)
    if cluster.path != default_run_dir().absolute():
        named = f"WORLDLINE_PLACEMENT={cluster.placement_address}"
        console.print(f"other commands find it by {named}", markup=False, highlight=False)


def _described(service: ServiceProcess) -> dict[str, object]:
    found: dict[str, object] = {"address": service.address, "pid": service.pid}
    return found | ({"metrics": _metrics_url(service)} if service.metrics_address else {})


def _metrics_url(service: ServiceProcess) -> str:
    return f"http://{service.metrics_address}/metrics"


def _say(text: str) -> None:
    err_console.print(text, markup=False, highlight=False)
