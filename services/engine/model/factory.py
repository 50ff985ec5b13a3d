"""Factory: which class serves a preset on a device, and what identifies its code."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from services.engine.model.causal import CausalWorld
from services.engine.model.config import preset
from services.engine.model.dirty import DirtyWorld
from services.engine.model.weights import build_weights
from services.engine.world import WorldModel
from worldline.state.fingerprint import code_digest

#: Presets whose compute needs a GPU: on a CPU only their state is real.
STATE_ONLY_ON_CPU = frozenset({"mg2"})


def build_world(name: str, weights_seed: int, device: torch.device) -> WorldModel:
    """The model of a preset. Weights are a pure function of preset, seed and torch's version.

    Raises:
        InvalidInput: no such preset.
    """
    config = preset(name)
    if device.type == "cpu" and name in STATE_ONLY_ON_CPU:
        return DirtyWorld(config)
    return CausalWorld(build_weights(config, weights_seed, device))


def engine_code() -> str:
    """SHA-256 over the model's source files: part of the configuration fingerprint."""
    return code_digest(Path(__file__).parent)


def weights_digest(weights_seed: int) -> str:
    """SHA-256 that names the weights of every preset: they follow from code and seed."""
    return hashlib.sha256(f"{engine_code()}:{weights_seed}".encode()).hexdigest()
