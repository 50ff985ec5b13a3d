"""Factory: which class serves a preset on a device, and what identifies its code and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from services.engine.model.causal import CausalWorld
from services.engine.model.config import PRESETS
from services.engine.model.dirty import DirtyWorld
from services.engine.model.graph_world import graph_world
from services.engine.model.weights import build_weights
from services.engine.plugin import NO_PLUGINS, Plugin
from services.engine.world import WorldModel
from worldline.errors import InvalidInput
from worldline.state.fingerprint import code_digest

#: Presets whose compute needs a GPU: on a CPU only their state is real.
FULL_SIZE = frozenset({"mg2"})


def presets(plugins: Mapping[str, Plugin] = NO_PLUGINS) -> tuple[str, ...]:
    """Every preset that an engine with these plug-ins serves, the built-in ones first."""
    return (*PRESETS, *plugins)


def build_world(
    name: str,
    weights_seed: int,
    device: torch.device,
    plugins: Mapping[str, Plugin] = NO_PLUGINS,
) -> WorldModel:
    """The model of a preset. Weights of a built-in one follow from preset, seed and torch.

    Raises:
        InvalidInput: no such preset, or the plug-in that serves it cannot be made.
        Unavailable: a preset that is compiled, and nothing to compile it with.
    """
    if name in plugins:
        return plugins[name].build(weights_seed, device)
    config = PRESETS.get(name)
    if config is None:
        raise InvalidInput(
            f"unknown preset {name!r}: choose one of {', '.join(presets(plugins))}",
            field="world.preset",
        )
    if name not in FULL_SIZE:
        return CausalWorld(build_weights(config, weights_seed, device))
    if device.type == "cpu":
        return DirtyWorld(config)
    return graph_world(build_weights(config, weights_seed, device))


def engine_code(plugins: Mapping[str, Plugin] = NO_PLUGINS) -> str:
    """SHA-256 over the source of the built-in models and the code of every plug-in.

    Part of the configuration fingerprint.
    """
    own = code_digest(Path(__file__).parent)
    named = [f"{one.preset}={one.name}:{one.code}" for _, one in sorted(plugins.items())]
    return _digest(own, *named) if named else own


def weights_digest(weights_seed: int, plugins: Mapping[str, Plugin] = NO_PLUGINS) -> str:
    """SHA-256 that names the weights of every preset.

    Those of built-in models follow from code and seed; a plug-in says itself what it reads.
    """
    named = [one.weights(weights_seed) for _, one in sorted(plugins.items())]
    return _digest(engine_code(plugins), str(weights_seed), *named)


def _digest(*parts: str) -> str:
    return hashlib.sha256(":".join(parts).encode()).hexdigest()
