"""CPU path: what the mover's settings cost and gain on one machine, measured against each other.

    python -m bench.cpu_path auto auto:off posix posix:off perftest:posix nixl

Each word is a contestant; all take turns over the payload of `mg2`. `LANE` or `LANE:off` is our own
transport over that lane, verified or not; further parts `chunk=MIB`, `window=N` and
`UCX_NAME=VALUE` change one thing. `perftest:LANE` is UCX's own tool, `nixl` a WRITE of NIXL without
a progress thread, `nixl:thread` with one.

The table shows the median rate, the extremes and the ratio to the first contestant. What else ran
on the machine is said at the end: figures of a busy machine are worth little.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Annotated

import psutil
import typer

from bench.contestant import Contestant
from bench.pair import Pair
from bench.payload import Payload
from bench.peers.ucx_perftest import UcxPerftest
from bench.rounds import Series, race
from services.mover.streaming import streaming_environment

_MIB = 1 << 20
_PERFTEST_BYTES = 64 * _MIB
_PERFTEST_ENV = {
    "posix": {"UCX_TLS": "posix,self"},
    "cma": {"UCX_TLS": "posix,cma,self"},
    "tcp": {"UCX_TLS": "tcp,self", "UCX_TCP_TX_SEG_SIZE": "1m", "UCX_TCP_RX_SEG_SIZE": "2m"},
}
#: Every change of these is part of a measurement's conditions.
_KNOBS = (
    "/proc/sys/vm/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/proc/sys/net/ipv4/tcp_congestion_control",
)

app = typer.Typer(add_completion=False)


def contestant(word: str, payload: Payload) -> Contestant:
    """What a word of the command line means."""
    kind, *parts = word.split(":")
    settings = dict(part.split("=", 1) for part in parts if "=" in part)
    env = {name: value for name, value in settings.items() if name.isupper()}
    if kind == "perftest":
        env = {**_PERFTEST_ENV[parts[0]], **env}
        size_bytes = int(settings.get("message", _PERFTEST_BYTES))
        return UcxPerftest(word, payload.size_bytes, size_bytes, env)
    if kind == "nixl":
        threaded = "y" if "thread" in parts else "n"
        options = {"progress_thread": threaded}
        return Pair(word, "bench.peers.nixl_", payload, options=options, env=env)
    options = {
        "lane": kind,
        "verify": "n" if "off" in parts else "y",
        "chunk_bytes": str(
            int(float(settings.get("chunk", "8" if kind in ("auto", "cma") else "32")) * _MIB)
        ),
        "window_chunks": settings.get("window", "8"),
    }
    streaming = streaming_environment({}, platform.machine()) or {}
    return Pair(word, "bench.datapath", payload, options=options, env={**streaming, **env})


@app.command()
def main(
    words: Annotated[list[str], typer.Argument(help="Contestants, see above.")],
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 7,
    seed: Annotated[int, typer.Option(help="Of the payload's random bytes.")] = 1,
    preset: Annotated[str, typer.Option(help="Whose caches are the payload.")] = "mg2",
) -> None:
    """Race contestants over one payload."""
    payload = Payload(preset, seed)
    before, started_s = psutil.cpu_times(), time.monotonic()
    try:
        contestants = [contestant(word, payload) for word in words]
        table = race(contestants, repeats, lambda _: None)
    finally:
        payload.close()
    first = table[words[0]]
    for word in words:
        print(_line(word, table[word], first, payload.size_bytes))
    print(_conditions(before, time.monotonic() - started_s))


def _line(word: str, series: Series, first: Series, size_bytes: int) -> str:
    if not series.complete:
        return f"{word:44} {series.skipped or series.failed}"
    low, high = (size_bytes / f(series.seconds) / 1e9 for f in (max, min))
    rate = series.rate_gb_per_s(size_bytes)
    over = rate / first.rate_gb_per_s(size_bytes) if first.complete else float("nan")
    return f"{word:44} {rate:6.2f} GB/s  {low:5.2f} to {high:5.2f}  {over:5.2f} x"


def _conditions(before: psutil._common.scpustats, passed_s: float) -> str:
    after = psutil.cpu_times()
    cores_s = passed_s * (os.cpu_count() or 1)
    stolen = (after.steal - before.steal) / cores_s
    niced = (after.nice - before.nice) / cores_s
    knobs = [f"{Path(knob).name}={Path(knob).read_text().strip()}" for knob in _KNOBS]
    return f"others: {niced:.0%} niced, {stolen:.1%} stolen; {', '.join(knobs)}"


if __name__ == "__main__":
    app()
