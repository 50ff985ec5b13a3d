"""safetensors through a file in shared memory; the target maps it instead of reading it."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from bench.peers.files import FileSource, FileTarget


class Source(FileSource):
    """Saves."""

    def save(self, state: dict[str, torch.Tensor], path: Path) -> None:
        safetensors.torch.save_file(state, path)


class Target(FileTarget):
    """Loads."""

    def load(self, path: Path, place: torch.device) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = safetensors.torch.load_file(path, device=str(place))
        return loaded


SIDES = {"source": Source, "target": Target}
