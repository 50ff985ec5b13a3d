"""Device: what an engine computes on: its names, its numerics, its configuration fingerprint."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from worldline.cuda.availability import unavailable_reason
from worldline.cuda.devices import devices
from worldline.devicename import CPU, cuda_index, device_name
from worldline.errors import Unavailable
from worldline.numa import numa_node_of_process
from worldline.state.fingerprint import cpu_fingerprint, cuda_fingerprint
from worldline.state.manifest import Fingerprint


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """One device. `name` is this process's word for it, `uuid` everybody's; empty for the CPU."""

    name: str = CPU
    uuid: str = ""
    #: Nearest to the device; None where the machine does not say.
    numa_node: int | None = None

    @property
    def index(self) -> int | None:
        """A GPU's index in this process; None for the CPU."""
        return cuda_index(self.name)

    @property
    def asked_for(self) -> str:
        """How the mover is asked for a slot here: by a name that means the same to both."""
        return self.uuid or self.name

    @property
    def torch_device(self) -> torch.device:
        """What tensors are made on."""
        return torch.device(self.name)

    def enter(self) -> None:
        """Make it the calling thread's device, so that nothing is left on another by accident."""
        if self.index is not None:
            torch.cuda.set_device(self.index)

    def settle(self) -> None:
        """Wait until everything that this process has queued here, on any stream, is done.

        Raises:
            Unavailable: some of it failed, and with it the device for this process.
        """
        if self.index is None:
            return
        try:
            torch.cuda.synchronize(self.index)
        except RuntimeError as error:
            raise Unavailable(
                f"{self.name} has failed: {error}", reason="DEVICE_FAILED", field="device"
            ) from error

    def fingerprint(
        self, *, engine_code: str, weights_digest: str, threads: int | None = None
    ) -> Fingerprint:
        """What the next frame depends on beside the state, as this process is configured now."""
        if self.index is None:
            return cpu_fingerprint(
                engine_code=engine_code, weights_digest=weights_digest, threads=threads
            )
        return cuda_fingerprint(
            device_index=self.index,
            engine_code=engine_code,
            weights_digest=weights_digest,
            threads=threads,
        )


CPU_DEVICE = EngineDevice()


def describe_device(text: str) -> EngineDevice:
    """The device of that name, `cuda` for the first GPU.

    Raises:
        InvalidInput: it is no device's name.
        Unavailable: CUDA does not work here, or there is no such GPU; `field` is `device`.
    """
    name = device_name(text, "device")
    index = cuda_index(name)
    if index is None:
        return EngineDevice(CPU, numa_node=numa_node_of_process())
    reason = unavailable_reason()
    if reason is None and not torch.cuda.is_available():
        reason = f"torch {torch.__version__} was built without CUDA, or finds no device"
    if reason is not None:
        raise Unavailable(
            f"nothing can be computed on {name}: {reason}",
            reason="CUDA_UNAVAILABLE",
            field="device",
        )
    if index >= len(devices()):
        known = ", ".join(one.torch_name for one in devices())
        raise Unavailable(
            f"there is no {name} here; there are: {known}",
            reason="CUDA_DEVICE_UNKNOWN",
            field="device",
        )
    gpu = devices()[index]
    return EngineDevice(name, gpu.uuid, gpu.numa_node)


def fix_numerics(device: EngineDevice) -> None:
    """Choose kernels that give the same bits each time; before the first of them runs.

    On the CPU the number of threads decides and nothing is left to choose. On a GPU cuBLAS needs a
    fixed workspace, and cuDNN must not choose by trying kernels out. Its attention is left out
    altogether: with a mask, six of thirty decodings from one state differed on an H200, and none
    without it. Rounding (TF32) is no matter of chance: it is a fact of the fingerprint.
    """
    if device.index is None:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_cudnn_sdp(False)
