"""What holds for every test on GPUs: without one it is skipped, and says why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from worldline.cuda.availability import unavailable_reason
from worldline.cuda.devices import devices
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream

TIMEOUT_S = 30.0

# As `fix_numerics` does in every engine, but before any test: cuBLAS reads it with the process's
# first kernel, and processes that were given other workspaces may choose other kernels.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def _device_present() -> None:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def peer_index() -> int:
    """Index of a second device that device 0 reaches directly."""
    peers = devices()[0].peers
    if not peers:
        pytest.skip(f"device 0 of {len(devices())} reaches no other one directly")
    return peers[0]


@pytest.fixture(scope="module")
def stream() -> Iterator[Stream]:
    """A stream on device 0."""
    if unavailable_reason() is not None:
        pytest.skip(str(unavailable_reason()))
    found = Stream(0)
    yield found
    found.close()


Upload = Callable[[bytes, int], DeviceMemory]


@pytest.fixture(scope="module")
def upload(stream: Stream) -> Upload:
    """Bytes in fresh memory of device 0, starting so many bytes behind its start."""

    def place(data: bytes, offset_bytes: int = 0) -> DeviceMemory:
        memory = DeviceMemory(offset_bytes + max(len(data), 1), 0)
        tensor = memory.whole.tensor()
        if data:
            import torch

            host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            tensor[offset_bytes : offset_bytes + len(data)].copy_(host)
            torch.cuda.synchronize(0)
        return memory

    return place
