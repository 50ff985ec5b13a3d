"""Slot memory: what the mover asks of the bytes of one slot, wherever they rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.mover.transport.base import Buffer

#: One answer for each granule of an extent.
Granules = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How host memory is handed to another process: a memory file's descriptor, still ours."""

    number: int


@dataclass(frozen=True, slots=True)
class IpcHandle:
    """How device memory is handed to another process: CUDA's name for it, on which GPU."""

    handle: bytes
    device_uuid: str


Export: TypeAlias = Descriptor | IpcHandle


class SlotMemory(ABC):
    """The bytes of one slot. Its blocking calls are for threads."""

    #: Where the bytes rest: `cpu`, `cuda:0`, ...
    device: str
    size_bytes: int

    @abstractmethod
    def prepare(self, extent_bytes: int, *, zero: bool) -> None:
        """Make [0, extent) ready to be written at full speed, zeroed when asked.

        Raises:
            CapacityExhausted: the machine or device has no memory for it.
        """

    def has_pages(self, extent_bytes: int) -> bool:
        """Whether preparing [0, extent) without zeros takes no time: no thread is needed for it."""
        return True

    def populate(self, extent_bytes: int) -> None:  # noqa: B027 - most memory has its pages
        """Take the memory of [0, extent) for good, and leave what is there.

        Raises:
            CapacityExhausted: the machine has not that much.
        """

    @abstractmethod
    def part(self, offset_bytes: int, size_bytes: int) -> Buffer:
        """The bytes [offset, offset + size), without a copy; release it before `close`."""

    @property
    def whole(self) -> Buffer:
        """All bytes, for registration."""
        return self.part(0, self.size_bytes)

    @abstractmethod
    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Copy host bytes to [offset, offset + size); returns when they are there."""

    @abstractmethod
    def zero_granules(self, extent_bytes: int, among: Granules | None = None) -> Granules:
        """For each granule of [0, extent), whether it holds nothing but zeros: by its every byte.

        `among`: looks at these alone, of the others the answer is False. Whoever owns the slot may
        write meanwhile, and then gets one answer or the other.

        Raises:
            WorldlineError: the device cannot say.
        """

    @abstractmethod
    def clear(self, runs: Iterable[tuple[int, int]]) -> None:
        """Make these runs of bytes zeros, (offset, size); returns when they are.

        Raises:
            DeadlineExceeded, Unavailable: the device has failed; see `CudaMemory.has_pages`.
        """

    @abstractmethod
    def export(self) -> Export:
        """What another process of this machine needs to map it; good until `close`."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back. Processes that mapped it keep their pages."""
