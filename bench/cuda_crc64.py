"""CUDA CRC-64: what digests and gathers cost on this machine's first GPU, as JSON on stdout.

    python -m bench.cuda_crc64

Rates are over the bytes digested, by the device's own clock, median of the repeats. Data is random;
zeros are there to show that they make no difference.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

from tests.unit.state.test_mg2 import state
from worldline.cuda.availability import unavailable_reason
from worldline.cuda.devices import devices
from worldline.cuda.digest import CudaDigester
from worldline.cuda.event import Event
from worldline.cuda.gather import Gather
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream
from worldline.state.digest import GRANULE_BYTES
from worldline.state.harvest import TORCH_DTYPES
from worldline.state.layout import Layout
from worldline.state.tree import plan

REPEATS = 30
RUN_GRANULES = (1, 8, 64, 128, 512)

Row = dict[str, object]


def device_ms(stream: Stream, queue: Callable[[], object]) -> float:
    """Median time of what it queues."""
    start, end = Event(0, timed=True), Event(0, timed=True)
    found = []
    for _ in range(REPEATS):
        stream.record(start)
        queue()
        stream.record(end)
        stream.wait(30.0)
        found.append(end.since_ms(start))
    return statistics.median(found)


def host_us(call: Callable[[], object], after: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - start_s) * 1e6)
        after()
    return statistics.median(found)


def row(name: str, value: float, unit: str) -> Row:
    return {"name": name, "value": round(value, 4), "unit": unit, "repeats": REPEATS}


def whole_rows(layout: Layout, digester: CudaDigester, memory: DeviceMemory, what: str) -> Row:
    elapsed_ms = device_ms(
        digester.stream, lambda: digester.update(0, digester.granule_count, memory.whole)
    )
    return row(f"digest of the whole, {what}", layout.extent_bytes / elapsed_ms / 1e9, "TB/s")


def run_rows(digester: CudaDigester, memory: DeviceMemory) -> list[Row]:
    rows = []
    for count in RUN_GRANULES:
        part = memory.part(0, count * GRANULE_BYTES)

        def queue(count: int = count, part: object = part) -> None:
            digester.update(0, count, part)  # type: ignore[arg-type]

        def finish() -> None:
            digester.segment_crcs()

        def both(queue: Callable[[], None] = queue) -> None:
            queue()
            digester.segment_crcs()

        name = f"run of {count} MiB"
        rows.append(row(f"{name}, on the device", device_ms(digester.stream, queue) * 1e3, "us"))
        rows.append(row(f"{name}, queued", host_us(queue, finish), "us"))
        rows.append(row(f"{name}, until its CRCs are here", host_us(both, finish), "us"))
    return rows


def gather_rows(layout: Layout, memory: DeviceMemory) -> list[Row]:
    stream = Stream(0)
    tensors = [
        torch.empty(leaf.shape, dtype=TORCH_DTYPES[leaf.dtype], device="cuda:0")
        for leaf in layout.tensors
    ]
    torch.cuda.synchronize(0)
    gather = Gather(layout, tensors, stream)
    return [
        row(
            f"{name} of {len(tensors)} leaves",
            device_ms(stream, lambda f=call: f(memory.whole)),
            "ms",
        )
        for name, call in (("gather", gather.gather), ("scatter", gather.scatter))
    ]


def measured() -> list[Row]:
    layout = plan(state())
    start_s = time.perf_counter()
    digester = CudaDigester(layout, 0)
    rows = [row("first digester, compiling", time.perf_counter() - start_s, "s")]
    start_s = time.perf_counter()
    CudaDigester(layout, 0).close()
    rows.append(row("further digester", (time.perf_counter() - start_s) * 1e6, "us"))
    with (
        DeviceMemory(layout.extent_bytes, 0) as memory,
        DeviceMemory(layout.extent_bytes, 0) as other,
    ):
        whole = memory.whole.tensor()
        whole.random_(0, 256)
        torch.cuda.synchronize(0)
        rows.append(whole_rows(layout, digester, memory, "random"))
        rows.extend(run_rows(digester, memory))
        stream = digester.stream
        copy_ms = device_ms(
            stream, lambda: stream.copy(other.address, memory.address, layout.extent_bytes)
        )
        rows.append(row("copy within the device", layout.extent_bytes / copy_ms / 1e9, "TB/s"))
        rows.extend(gather_rows(layout, memory))
        whole.zero_()
        torch.cuda.synchronize(0)
        rows.append(whole_rows(layout, digester, memory, "zeros"))
    return rows


def main() -> int:
    reason = unavailable_reason()
    if reason is not None:
        print(json.dumps({"skipped": reason}))
        return 0
    report = {
        "device": devices()[0].name,
        "versions": {name: version(name) for name in ("cuda-core", "cuda-bindings", "torch")},
        "rows": measured(),
    }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
