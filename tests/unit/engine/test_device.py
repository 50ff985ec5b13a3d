"""Engines on GPUs, over a fake CUDA: slots by handle, work waited for, facts without an index."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from services.engine.cudaslot import CudaSlot
from services.engine.device import CPU_DEVICE, EngineDevice, describe_device, fix_numerics
from services.engine.slotfetch import map_slot
from services.engine.worker import Worker
from tests.unit.engine.support import DEADLINE_S
from tests.unit.engine.test_process import command
from tests.unit.fakecuda import FakeRuntime, bytes_at, fake_cuda
from worldline.cuda.availability import unavailable_reason
from worldline.cuda.buffer import DeviceBuffer
from worldline.cuda.devices import devices
from worldline.cuda.memory import DeviceMemory
from worldline.errors import Conflict, InvalidInput, InvariantBroken, Unavailable
from worldline.state import gpu_facts as read_gpu
from worldline.state.digest import digest_slot
from worldline.state.fingerprint import cpu_fingerprint, cuda_fingerprint
from worldline.state.gpu_facts import gpu_facts
from worldline.state.layout import flat_layout
from worldline.state.remedies import REMEDIES

SIZE_BYTES = 1 << 20


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    """torch sees the fake's memory as the host's: it has no GPU to see."""

    def tensor(buffer: DeviceBuffer) -> torch.Tensor:
        class Bytes(ctypes.c_ubyte * buffer.nbytes):  # type: ignore[misc]
            """Keeps the buffer alive, like torch's own tensors over it."""

        found = Bytes.from_address(buffer.address)
        found.buffer = buffer
        return torch.frombuffer(found, dtype=torch.uint8)

    with fake_cuda(monkeypatch) as fake:
        monkeypatch.setattr(DeviceBuffer, "tensor", tensor)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
        yield fake


def gpu(index: int) -> EngineDevice:
    return EngineDevice(f"cuda:{index}", devices()[index].uuid)


@pytest.fixture
def slot(cuda: FakeRuntime) -> Iterator[tuple[DeviceMemory, CudaSlot]]:
    memory = DeviceMemory(SIZE_BYTES, 1)
    yield memory, CudaSlot(memory.export(), SIZE_BYTES, gpu(1))
    memory.close()


def test_writes_reach_the_movers_memory(
    cuda: FakeRuntime, slot: tuple[DeviceMemory, CudaSlot]
) -> None:
    memory, mapped = slot
    buffer = mapped.buffer()
    assert (buffer.dtype, buffer.shape) == (torch.uint8, (SIZE_BYTES,))
    buffer[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    assert bytes_at(memory.address, 4) == b"\x01\x02\x03\x04"
    assert cuda.opened == [memory.address]
    del buffer
    mapped.close()
    mapped.close()
    assert not cuda.opened


def test_a_view_that_is_still_alive_forbids_unmapping(
    cuda: FakeRuntime, slot: tuple[DeviceMemory, CudaSlot]
) -> None:
    _, mapped = slot
    view = mapped.buffer()[100:200].view(torch.int16)[3:]
    with pytest.raises(InvariantBroken):
        mapped.close()
    assert cuda.opened
    view.fill_(7)
    del view
    mapped.close()
    assert not cuda.opened


def test_a_view_in_a_reference_cycle_is_found(
    cuda: FakeRuntime, slot: tuple[DeviceMemory, CudaSlot]
) -> None:
    _, mapped = slot
    cycle: list[object] = [mapped.buffer()]
    cycle.append(cycle)
    del cycle
    mapped.close()
    assert not cuda.opened


async def test_work_is_done_when_its_result_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    device = EngineDevice("cuda:0", "GPU-0")
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: order.append(f"enter {index}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: order.append(f"settle {index}"))
    worker = Worker(torch.get_num_threads(), device)
    try:
        await worker.run(lambda: order.append("work"))
        assert order == ["enter 0", "enter 0", "work", "settle 0"]

        def fail(index: int) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        with pytest.raises(Unavailable) as caught:
            await worker.run(lambda: None)
        assert caught.value.reason == "DEVICE_FAILED"
        assert "illegal memory access" in caught.value.message
    finally:
        worker.close()


def test_digests_are_those_of_the_host(slot: tuple[DeviceMemory, CudaSlot]) -> None:
    memory, mapped = slot
    data = random.Random(3).randbytes(SIZE_BYTES - 77)
    bytes_at(memory.address, len(data))[:] = data
    layout = flat_layout("state", len(data))
    assert mapped.digest(layout) == digest_slot(layout, memoryview(data))
    mapped.close()


class OneAnswer:
    """A slot socket that gives the same answer to one client."""

    def __init__(self, path: Path, answer: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, args=(answer, descriptors))
        self._thread.start()

    def _serve(self, answer: bytes, descriptors: tuple[int, ...]) -> None:
        client, _ = self._listener.accept()
        with client:
            client.recv(32)
            if descriptors:
                socket.send_fds(client, [answer], descriptors)
            else:
                for start in range(0, len(answer), 7):  # in pieces: a stream has no messages
                    client.sendall(answer[start : start + 7])

    def close(self) -> None:
        self._thread.join(DEADLINE_S)
        self._listener.close()


Answering = Callable[..., OneAnswer]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Answering]:
    servers: list[OneAnswer] = []

    def answer(said: bytes, *descriptors: int) -> OneAnswer:
        servers.append(OneAnswer(tmp_path / f"{len(servers)}.sock", said, descriptors))
        return servers[-1]

    yield answer
    for server in servers:
        server.close()


def fetch(server: OneAnswer, device: EngineDevice) -> object:
    return map_slot(server.path, bytes(32), SIZE_BYTES, DEADLINE_S, device)


def test_a_slot_of_the_engines_own_gpu_is_mapped(cuda: FakeRuntime, answering: Answering) -> None:
    memory = DeviceMemory(SIZE_BYTES, 0)
    said = b"\x02" + memory.export() + gpu(0).uuid.encode()
    mapped = fetch(answering(said), gpu(0))
    assert isinstance(mapped, CudaSlot)
    assert cuda.opened == [memory.address]
    mapped.close()
    memory.close()


def test_a_slot_elsewhere_is_refused_before_it_is_opened(
    cuda: FakeRuntime, answering: Answering
) -> None:
    """Over NVLink a peer's memory could even be opened, and would be slow for ever after."""
    memory = DeviceMemory(SIZE_BYTES, 0)
    said = b"\x02" + memory.export() + gpu(0).uuid.encode()
    for device in (gpu(1), CPU_DEVICE):
        with pytest.raises(Conflict) as caught:
            fetch(answering(said), device)
        assert caught.value.reason == "SLOT_ELSEWHERE"
    assert not cuda.opened
    memory.close()


def test_host_memory_for_an_engine_on_a_gpu_is_refused_and_closed(
    cuda: FakeRuntime, answering: Answering
) -> None:
    descriptor = os.memfd_create("wl-test-elsewhere")

    def held() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum("wl-test-elsewhere" in os.readlink(one) for one in links if one.is_symlink())

    try:
        with pytest.raises(Conflict) as caught:
            fetch(answering(b"\x01", descriptor), gpu(0))
        assert caught.value.reason == "SLOT_ELSEWHERE"
        assert held() == 1
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("said", [b"", b"\x00", b"\x01", b"\x02", b"\x02" + bytes(64), b"\x03"])
def test_what_is_no_answer_is_a_refusal(said: bytes, answering: Answering) -> None:
    with pytest.raises(Unavailable) as caught:
        fetch(answering(said), CPU_DEVICE)
    assert caught.value.reason == "SLOT_REFUSED"


def test_an_engines_device_by_name(monkeypatch: pytest.MonkeyPatch, cuda: FakeRuntime) -> None:
    assert describe_device("cpu").asked_for == "cpu"
    with pytest.raises(InvalidInput):
        describe_device("gpu")
    with pytest.raises(Unavailable) as caught:
        describe_device("cuda")  # torch is built without CUDA here, or has no driver
    assert (caught.value.reason, caught.value.field) == ("CUDA_UNAVAILABLE", "device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = describe_device("cuda")
    assert (found.name, found.index, found.asked_for) == ("cuda:0", 0, devices()[0].uuid)
    with pytest.raises(Unavailable) as caught:
        describe_device("cuda:2")
    assert (caught.value.reason, caught.value.field) == ("CUDA_DEVICE_UNKNOWN", "device")


def test_numerics_are_fixed_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    fix_numerics(CPU_DEVICE)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    fix_numerics(EngineDevice("cuda:0", "GPU-0"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.backends.cudnn.deterministic


def test_equal_gpus_have_equal_fingerprints(cuda: FakeRuntime) -> None:
    arguments = {"engine_code": "c0de", "weights_digest": "5eed"}
    first = cuda_fingerprint(device_index=0, **arguments)
    assert first == cuda_fingerprint(device_index=1, **arguments)
    facts = first.facts
    assert (facts["device"], facts["gpu"], facts["compute_capability"]) == (
        "cuda",
        "Fake GPU",
        "9.0",
    )
    assert facts["driver_api"] == "13000"
    assert facts["torch"] == torch.__version__
    assert first.differences(cpu_fingerprint(**arguments))


def test_the_driver_and_each_switch_are_facts(
    cuda: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    driver.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    facts = gpu_facts(0, driver)
    assert facts["driver"] == "580.95.05"
    assert gpu_facts(0, tmp_path / "none")["driver"] == "unknown"
    monkeypatch.setattr(
        torch.backends.cudnn, "deterministic", not torch.backends.cudnn.deterministic
    )
    assert changed_facts(facts, driver) == {"cudnn_deterministic"}
    assert facts.keys() <= REMEDIES.keys()


MATMUL: Any = torch.backends.cuda.matmul


@pytest.mark.parametrize(
    ("owner", "name", "fact"),
    [
        (torch.version, "cuda", "cuda"),
        (torch.backends.cudnn, "version", "cudnn"),
        (torch.backends.cudnn, "enabled", "cudnn_enabled"),
        (torch.backends.cudnn, "benchmark", "cudnn_benchmark"),
        (read_gpu, "_cublas_version", "cublas"),
        (torch.backends.cuda, "preferred_blas_library", "blas"),
        (torch.backends.cuda, "preferred_linalg_library", "linalg"),
    ],
)
def test_each_library_of_a_gpu_is_a_fact(
    owner: Any,
    name: str,
    fact: str,
    cuda: FakeRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = tmp_path / "version"
    before = gpu_facts(0, driver)
    present = getattr(owner, name)
    other = (lambda *_: "another") if callable(present) else f"not {present}"
    # cuDNN's are properties of a module that torch put there, which only its class can replace.
    monkeypatch.setattr(type(owner) if name in vars(type(owner)) else owner, name, other)
    assert changed_facts(before, driver) == {fact}


@pytest.mark.parametrize(
    ("owner", "name", "value", "fact"),
    [
        (MATMUL, "allow_fp16_reduced_precision_reduction", False, "matmul_fp16_reduction"),
        (MATMUL, "allow_bf16_reduced_precision_reduction", False, "matmul_bf16_reduction"),
        (MATMUL, "allow_fp16_accumulation", True, "matmul_fp16_accumulation"),
        (MATMUL, "fp32_precision", "tf32", "matmul_fp32"),
        (torch.backends.cudnn.conv, "fp32_precision", "ieee", "cudnn_conv_fp32"),
        (torch.backends.cudnn.rnn, "fp32_precision", "ieee", "cudnn_rnn_fp32"),
    ],
)
def test_each_precision_of_a_gpus_sums_is_a_fact(
    owner: Any, name: str, value: object, fact: str, cuda: FakeRuntime, tmp_path: Path
) -> None:
    driver = tmp_path / "version"
    before, present = gpu_facts(0, driver), getattr(owner, name)
    setattr(owner, name, value)
    try:
        assert changed_facts(before, driver) == {fact}
    finally:
        setattr(owner, name, present)
    assert gpu_facts(0, driver) == before


def test_a_process_without_cublas_says_so() -> None:
    assert read_gpu._cublas_version("no-such-release") == "unknown"


def changed_facts(before: Mapping[str, str], driver: Path) -> set[str]:
    after = gpu_facts(0, driver)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.skipif(unavailable_reason() is None, reason="this machine has a GPU")
def test_without_a_gpu_the_process_says_so_in_one_line() -> None:
    arguments = command("--placement-address", "127.0.0.1:1", "--device", "cuda:0")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "CUDA_UNAVAILABLE (device)" in done.stderr
    assert "Traceback" not in done.stderr
