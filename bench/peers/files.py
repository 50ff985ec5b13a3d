"""Files: what the peers that go through a file in shared memory have in common.

The source writes the file and says so; the target then reads it. Both halves count. Options
`source` and `target` are torch's names of the devices on which the tensors rest, else the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.peers.tensors import bytes_of, tensors
from bench.side import Side, Unfit


class FileSource(Side):
    """Writes its tensors to a new file in each run."""

    def prepare(self) -> str:
        status = os.statvfs(self.at.scratch)
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < self.at.view.nbytes:
            raise Unfit(
                f"{self.at.scratch} has {free_bytes} bytes free, the file takes "
                f"{self.at.view.nbytes}"
            )
        self._path = self.at.scratch / "state"
        place = self.at.options.get("source", "cpu")
        self._tensors = {path: tensor.to(place) for path, tensor in tensors(self.at).items()}
        return ""

    def run(self) -> None:
        self.save(self._tensors, self._path)
        self.at.tell()

    def save(self, state: dict[str, torch.Tensor], path: Path) -> None:
        """Write the file."""
        raise NotImplementedError

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


class FileTarget(Side):
    """Reads the file as soon as it is complete."""

    def connect(self, peer: str) -> None:
        self._path = self.at.scratch / "state"
        self._loaded: dict[str, torch.Tensor] = {}

    def run(self) -> None:
        self.at.hear()
        place = torch.device(self.at.options.get("target", "cpu"))
        self._loaded = self.load(self._path, place)
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    def load(self, path: Path, place: torch.device) -> dict[str, torch.Tensor]:
        """Read the file into tensors on a device."""
        raise NotImplementedError

    def landed(self) -> Iterator[memoryview]:
        return bytes_of(self.at, self._loaded)

    def clear(self) -> None:
        self._loaded = {}
