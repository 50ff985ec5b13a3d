"""Device side: a contestant's side whose end of the payload rests on a GPU."""

from __future__ import annotations

import torch

from bench.payload import digest_from, spoil
from bench.side import Side
from worldline.cuda.digest import CudaDigester
from worldline.cuda.memory import DeviceMemory
from worldline.cuda.stream import Stream

_WITHIN_S = 60.0


class DeviceSide(Side):
    """Holds the extent in one allocation on the GPU whose index its role's option names."""

    def prepare(self) -> str:
        """See `Side.prepare`. The source's bytes come from the shared payload."""
        self.index = int(self.at.options[self.at.role])
        extent_bytes = self.at.layout.extent_bytes
        self.memory = DeviceMemory(extent_bytes, self.index)
        stream = Stream(self.index)
        stream.copy(self.memory.address, self.at.address, extent_bytes)
        stream.wait(_WITHIN_S)
        stream.close()
        return ""

    def spoil(self) -> None:
        """See `Side.spoil`."""
        spoil(self.memory.whole.tensor())
        torch.cuda.synchronize(self.index)

    def digest(self) -> int:
        """See `Side.digest`. By the kernel, which the host's digest of the payload checks."""
        digester = CudaDigester(self.at.layout, self.index)
        digester.update(0, digester.granule_count, self.memory.whole)
        digests = digester.digests()
        digester.close()
        return digest_from(self.at.layout, digests)

    def close(self) -> None:
        """See `Side.close`."""
        self.memory.close()
