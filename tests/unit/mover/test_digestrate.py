"""The rate at which a host digests: measured on its own threads, and told per device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from services.mover import digestrate
from services.mover.devices import Device
from services.mover.digestrate import measured_digest_rate
from services.mover.membership import Membership
from worldline.errors import InvalidInput
from worldline.rpc.channel import ChannelPool
from worldline.rpc.server import GrpcServer
from worldline.state.digest import GRANULE_BYTES, crc64
from worldline.v1 import placement_pb2, placement_pb2_grpc


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Clock:
    """Goes on by a fixed time with every granule that anybody digests, and not otherwise."""

    def __init__(self, granule_s: float) -> None:
        self._granule_s = granule_s
        self._lock = threading.Lock()
        self.granules: list[bytes] = []

    def perf_counter(self) -> float:
        with self._lock:
            return len(self.granules) * self._granule_s

    def digest(self, data: memoryview) -> int:
        with self._lock:
            self.granules.append(bytes(data))
        return crc64(data)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.001)
    monkeypatch.setattr(digestrate, "time", clock)
    monkeypatch.setattr(digestrate, "crc64", clock.digest)
    return clock


async def test_the_rate_is_bytes_over_time_of_all_threads(
    pool: ThreadPoolExecutor, clock: Clock
) -> None:
    rate = await measured_digest_rate(pool, 2, measure_s=0.02)
    assert rate == pytest.approx(GRANULE_BYTES / 0.001)
    # The budget, and at most what each thread had begun.
    assert 20 <= len(clock.granules) <= 22


async def test_noise_is_digested_and_not_the_same_granule_again(
    pool: ThreadPoolExecutor, clock: Clock
) -> None:
    await measured_digest_rate(pool, 1, measure_s=0.008)
    assert len(set(clock.granules)) == len(clock.granules) == 8
    assert all(len(set(granule)) == 256 for granule in clock.granules)


async def test_even_the_slowest_host_digests_something(
    pool: ThreadPoolExecutor, clock: Clock
) -> None:
    clock._granule_s = 10.0
    assert await measured_digest_rate(pool, 1, measure_s=0.001) == pytest.approx(
        GRANULE_BYTES / 10.0
    )


async def test_a_real_host_is_measured(pool: ThreadPoolExecutor) -> None:
    assert await measured_digest_rate(pool, 2, measure_s=0.001) > 0


@pytest.mark.parametrize(("threads", "measure_s"), [(0, 0.1), (1, 0.0)])
async def test_no_threads_or_no_time_measure_nothing(
    pool: ThreadPoolExecutor, threads: int, measure_s: float
) -> None:
    with pytest.raises(InvalidInput):
        await measured_digest_rate(pool, threads, measure_s)


class Registrations(placement_pb2_grpc.PlacementServiceServicer):
    """Placement's half of a registration."""

    def __init__(self) -> None:
        self.seen: list[placement_pb2.RegisterNodeRequest] = []

    async def RegisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.seen.append(request)
        return placement_pb2.RegisterNodeResponse(lease_ms=600_000)


async def test_a_node_registers_the_rate_of_its_cores_and_none_for_a_gpu(
    pool: ThreadPoolExecutor, clock: Clock
) -> None:
    server, registrations = GrpcServer(), Registrations()
    address = server.bind("127.0.0.1:0")
    server.add(
        placement_pb2_grpc.add_PlacementServiceServicer_to_server, registrations, "placement"
    )
    await server.start()
    channels = ChannelPool()
    runtime: Any = SimpleNamespace(
        pool=pool,
        channels=channels,
        devices=(Device("cpu"), Device("cuda:0", uuid="GPU-1")),
        now=lambda: 0.0,
        settings=SimpleNamespace(
            node_id="n1", placement_address=address, digest_threads=2, register_within_s=60.0
        ),
        slots=SimpleNamespace(shelf=lambda name: SimpleNamespace(slot_count=1, slot_bytes=1)),
    )
    membership = Membership(runtime, "127.0.0.1:1")
    try:
        await membership.join()
    finally:
        await membership.leave()
        await channels.close()
        await server.stop(0)
    (request,) = registrations.seen
    rates = {device.name: device.digest_rate_bytes_per_s for device in request.devices}
    assert rates == {"cpu": pytest.approx(GRANULE_BYTES / 0.001), "cuda:0": 0.0}
