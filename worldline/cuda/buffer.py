"""Buffer: a run of bytes in device memory, in the form that transports, kernels and torch take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldline.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    import torch


class DeviceBuffer:
    """Bytes [address, address + nbytes) of a device.

    It keeps its owner alive, and with it the memory, as long as nobody closes the owner.
    """

    __slots__ = ("_owner", "address", "device_index", "nbytes")

    def __init__(self, address: int, nbytes: int, device_index: int, owner: object) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device_index = device_index
        self._owner = owner

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        return f"DeviceBuffer(cuda:{self.device_index}, 0x{self.address:x}, {self.nbytes} bytes)"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface: a writable, dense, one-dimensional uint8 array."""
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "stream": None,
        }

    def part(self, offset_bytes: int, size_bytes: int) -> DeviceBuffer:
        """The bytes [offset, offset + size), without a copy.

        Raises:
            InvalidInput: they are not all in this buffer.
        """
        if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self.nbytes:
            raise InvalidInput(
                f"bytes {offset_bytes}+{size_bytes} of a buffer of {self.nbytes}",
                field="size_bytes",
            )
        address = self.address + offset_bytes
        return DeviceBuffer(address, size_bytes, self.device_index, self._owner)

    def tensor(self) -> torch.Tensor:
        """The same bytes as a uint8 tensor; it keeps the owner alive as well.

        Raises:
            Unavailable: torch places the memory on another device, so that it would be a copy.
        """
        import torch

        device = torch.device("cuda", self.device_index)
        if not self.nbytes:
            return torch.empty(0, dtype=torch.uint8, device=device)
        tensor = torch.as_tensor(self, device=device)
        if tensor.data_ptr() != self.address:
            raise Unavailable(f"{self} rests on another device", reason="CUDA_DEVICE_MISMATCH")
        return tensor
