"""Weights: seeded tensors, the only thing a model object holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from services.engine.model.config import WorldConfig

#: Channels of the embedding of a latent frame's keys or mouse motion.
ACTION_CHANNELS = 16
#: Inputs of an embedding: four keys; two mouse axes and their magnitudes.
KEYBOARD_INPUTS = 4
MOUSE_INPUTS = 4
#: Sinusoids that the noise level is embedded with.
SIGMA_CHANNELS = 32


Part = TypeVar("Part", "ActionWeights", "BlockWeights")


@dataclass(frozen=True)
class ActionWeights:
    """Keyboard and mouse attention of one block; shapes are (inputs, outputs)."""

    mouse_qkv: Tensor
    mouse_out: Tensor
    keyboard_q: Tensor
    keyboard_kv: Tensor
    keyboard_out: Tensor


@dataclass(frozen=True)
class BlockWeights:
    """One transformer block; shapes are (inputs, outputs)."""

    modulation: Tensor
    qkv: Tensor
    out: Tensor
    cross_q: Tensor
    cross_kv: Tensor
    cross_out: Tensor
    ffn_in: Tensor
    ffn_out: Tensor
    action: ActionWeights | None


@dataclass(frozen=True)
class DecoderConstants:
    """What no seed decides; tensors, so that decoding sends nothing to its device."""

    #: How far latents alone move the camera, and what is kept of its pose: the pitch is pulled back
    #: to the horizon, since nobody walks with the eyes at the sky.
    wander: Tensor
    pull: Tensor
    #: Colours of water, sand, grass and rock, and of the sky below and above.
    ground: Tensor
    sky: Tensor


@dataclass(frozen=True)
class DecoderWeights:
    """The decoder: ego-motion, latent fields, terrain waves, colours."""

    motion: Tensor
    fields: Tensor
    waves: Tensor
    wave_phases: Tensor
    ridges: Tensor
    palette: Tensor
    constants: DecoderConstants


@dataclass(frozen=True)
class Weights:
    """Everything a world model of one preset and seed knows."""

    config: WorldConfig
    latent_in: Tensor
    first_frame_in: Tensor
    positions: Tensor
    sigma_in: Tensor
    sigma_modulation: Tensor
    keyboard_in: Tensor
    mouse_in: Tensor
    latent_out: Tensor
    blocks: tuple[BlockWeights, ...]
    decoder: DecoderWeights

    @property
    def dtype(self) -> torch.dtype:
        """What the products of the transformer's blocks are made in."""
        return self.blocks[0].qkv.dtype


def in_bfloat16(weights: Weights) -> Weights:
    """The same weights for blocks whose products are made in bfloat16.

    What enters the residual stream and what leaves it stays float32, and so does the modulation.
    """
    return replace(weights, blocks=tuple(_narrowed(block) for block in weights.blocks))


def _narrowed(part: Part) -> Part:
    changed: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, ActionWeights):
            changed[field.name] = _narrowed(value)
        elif isinstance(value, Tensor) and field.name != "modulation":
            changed[field.name] = value.to(torch.bfloat16)
    return replace(part, **changed)


class _Source:
    """Draws matrices in a fixed order from one seeded generator."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def normal(self, *shape: int, std: float) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator, dtype=torch.float32)
        return drawn.mul_(std).to(self._device)

    def constant(self, *values: float | tuple[float, ...]) -> Tensor:
        """Draws nothing."""
        return torch.tensor(values, device=self._device)

    def matrix(self, inputs: int, outputs: int, gain: float = 1.0) -> Tensor:
        """Keeps the variance of what it multiplies, times `gain` squared."""
        return self.normal(inputs, outputs, std=gain * inputs**-0.5)


def build_weights(config: WorldConfig, seed: int, device: torch.device) -> Weights:
    """The weights of `config` for `seed`: a pure function of both (and of torch's version)."""
    source = _Source(seed, device)
    dim = config.dim
    return Weights(
        config=config,
        latent_in=source.matrix(config.latent_channels, dim),
        first_frame_in=source.matrix(config.latent_channels, dim),
        positions=source.normal(config.tokens_per_frame, dim, std=0.3),
        sigma_in=source.matrix(SIGMA_CHANNELS, dim),
        sigma_modulation=source.matrix(dim, 6 * dim, gain=0.3),
        keyboard_in=source.matrix(KEYBOARD_INPUTS, ACTION_CHANNELS, gain=2.0),
        mouse_in=source.matrix(MOUSE_INPUTS, ACTION_CHANNELS, gain=2.0),
        latent_out=source.matrix(dim, config.latent_channels),
        blocks=tuple(_block(config, source, index) for index in range(config.layers)),
        decoder=_decoder(config, source),
    )


def _block(config: WorldConfig, source: _Source, index: int) -> BlockWeights:
    dim = config.dim
    return BlockWeights(
        modulation=source.normal(6, dim, std=0.5),
        qkv=source.matrix(dim, 3 * dim),
        out=source.matrix(dim, dim),
        cross_q=source.matrix(dim, dim),
        cross_kv=source.matrix(dim, 2 * dim),
        cross_out=source.matrix(dim, dim, gain=0.5),
        ffn_in=source.matrix(dim, config.ffn_dim),
        ffn_out=source.matrix(config.ffn_dim, dim),
        action=_action(config, source) if index < config.action_layers else None,
    )


def _action(config: WorldConfig, source: _Source) -> ActionWeights:
    dim, action_dim = config.dim, config.action_dim
    return ActionWeights(
        mouse_qkv=source.matrix(dim + ACTION_CHANNELS, 3 * action_dim),
        mouse_out=source.matrix(action_dim, dim, gain=0.5),
        keyboard_q=source.matrix(dim, action_dim),
        keyboard_kv=source.matrix(ACTION_CHANNELS, 2 * action_dim),
        keyboard_out=source.matrix(action_dim, dim, gain=0.5),
    )


def _decoder(config: WorldConfig, source: _Source) -> DecoderWeights:
    return DecoderWeights(
        motion=source.matrix(config.latent_channels, 4, gain=0.15),
        fields=source.matrix(config.latent_channels, 3),
        waves=source.normal(7, 2, std=1.0),
        wave_phases=source.normal(7, std=3.0),
        ridges=source.normal(5, std=2.0),
        palette=source.matrix(config.latent_channels, 18, gain=0.25),
        constants=DecoderConstants(
            wander=source.constant(0.02, 0.03, 0.01, 0.004),
            pull=source.constant(1.0, 1.0, 1.0, 0.97),
            ground=source.constant(
                (0.10, 0.30, 0.48), (0.80, 0.72, 0.48), (0.25, 0.50, 0.20), (0.46, 0.41, 0.38)
            ),
            sky=source.constant((0.93, 0.80, 0.66), (0.28, 0.50, 0.84)),
        ),
    )
