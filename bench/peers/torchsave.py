"""torch.save and torch.load through a file in shared memory: how most people move a state."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.peers.files import FileSource, FileTarget


class Source(FileSource):
    """Saves."""

    def save(self, state: dict[str, torch.Tensor], path: Path) -> None:
        torch.save(state, path)


class Target(FileTarget):
    """Loads."""

    def load(self, path: Path, place: torch.device) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(path, map_location=place, weights_only=True)
        return loaded


SIDES = {"source": Source, "target": Target}
