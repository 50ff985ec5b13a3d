"""Decoder: latents to RGB, causal over frames, with its own cache.

The cache is the smoothed previous latent frame, the camera's pose (x, z, heading, pitch) and its
velocity. Latents move the camera, bend the terrain and tint it; weights fix the terrain's waves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.model.config import WorldConfig
from services.engine.model.weights import Weights
from services.engine.world import Action, StateTree

#: How much of a new latent frame enters the smoothed one.
_LATENT_BLEND = 0.35
#: How fast the camera takes up the motion that is asked for, per video frame.
_INERTIA = 0.25


@dataclass(frozen=True)
class DecodeInputs:
    """What a block is decoded from beside weights and state.

    `latents` (frames_per_block * tokens_per_frame, latent_channels); `asked` (4), the motion that
    the action asks for: right, forward, turn, tilt.
    """

    latents: Tensor
    asked: Tensor


def asked_motion(action: Action, device: torch.device) -> Tensor:
    """What keys and mouse ask of the camera, per video frame: keys walk, the mouse looks."""
    keys = [action.keyboard >> bit & 1 for bit in range(4)]
    walk = (0.08 * (keys[3] - keys[2]), 0.12 * (keys[0] - keys[1]))
    return torch.tensor([*walk, 0.06 * action.mouse_dx, 0.03 * action.mouse_dy], device=device)


def decode(weights: Weights, state: StateTree, inputs: DecodeInputs) -> Tensor:
    """RGB of one block, uint8 (frames, height, width, 3); advances the cache."""
    config, cache = weights.config, state["decoder"]
    frames = inputs.latents.view(config.frames_per_block, config.tokens_per_frame, -1)
    smooth = _smooth(config, cache["latent"], frames)
    poses = _drive(weights, cache, smooth, inputs.asked)
    palette = (state["first_frame"].mean(dim=0) @ weights.decoder.palette).view(6, 3)
    return _render(weights, smooth, poses, palette)


def _smooth(config: WorldConfig, previous: Tensor, frames: Tensor) -> Tensor:
    """One latent frame for every video frame, between the smoothed neighbours in time."""
    steps = config.video_frames_per_latent
    between: list[Tensor] = []
    current = previous.clone()
    for frame in frames:
        target = current + _LATENT_BLEND * (frame - current)
        between.extend(current + (target - current) * ((i + 1) / steps) for i in range(steps))
        current = target
    previous.copy_(current)
    return torch.stack(between)


def _drive(weights: Weights, cache: StateTree, smooth: Tensor, asked: Tensor) -> Tensor:
    """Camera poses of the video frames, (frames, 4)."""
    constants = weights.decoder.constants
    drift = torch.tanh(smooth.mean(dim=1) @ weights.decoder.motion)
    wander = drift * constants.wander
    pose, velocity = cache["pose"].clone(), cache["velocity"].clone()
    poses = []
    for frame_wander in wander:
        velocity = velocity + _INERTIA * (asked + frame_wander - velocity)
        right, forward, turn, tilt = velocity.unbind()
        cos, sin = pose[2].cos(), pose[2].sin()
        step = (right * cos + forward * sin, forward * cos - right * sin, turn, tilt)
        pose = pose + torch.stack(step)
        pose = pose * constants.pull
        poses.append(pose)
    cache["pose"].copy_(pose)
    cache["velocity"].copy_(velocity)
    return torch.stack(poses)


def _render(weights: Weights, smooth: Tensor, poses: Tensor, palette: Tensor) -> Tensor:
    """Planes are (frames, height, width), colours (3, 1, 1, 1): channels last are slow to mix."""
    config, device = weights.config, smooth.device
    warp, swell, tint = torch.tanh(0.7 * _upsample(weights, smooth)).unbind(dim=1)
    across = torch.linspace(-1.0, 1.0, config.width, device=device) * config.width / config.height
    down = torch.linspace(-1.0, 1.0, config.height, device=device)
    x, z, heading, pitch = (poses[:, axis, None, None] for axis in range(4))
    below = down[None, :, None] + pitch * 4.0
    depth = 0.6 / (below.abs() + 0.07)
    cos, sin = heading.cos(), heading.sin()
    span = across[None, None, :] * depth
    east = x + depth * sin + span * cos + 0.25 * warp
    north = z + depth * cos - span * sin
    height = _terrain(weights, east, north, depth) + 0.35 * swell
    sky_low, sky_high = (
        _colour(base) + 0.3 * _colour(palette[4 + index])
        for index, base in enumerate(weights.decoder.constants.sky)
    )
    rise = (-below).clamp(0, 1)
    sky = torch.lerp(sky_low, sky_high, rise.sqrt())
    sky = sky + 0.25 * torch.sigmoid(4.0 * (swell - 0.2)) * rise
    ridge = _ridge(weights, heading + torch.atan(across)[None, None, :])
    hills = torch.sigmoid((below + ridge) * config.height * 0.5)
    sky = torch.lerp(sky, 0.55 * sky_high + 0.05, hills)
    ground = _shade(weights, height, tint, palette)
    ground = torch.lerp(ground, sky_low * 0.9, 1.0 - torch.exp(-0.16 * depth))
    rgb = torch.lerp(sky, ground, torch.sigmoid(below * config.height * 0.5))
    pixels = (rgb.clamp_(0.0, 1.0) * 255.0).round_().to(torch.uint8)
    return pixels.permute(1, 2, 3, 0).contiguous()


def _upsample(weights: Weights, smooth: Tensor) -> Tensor:
    """Latent fields at pixel resolution, (frames, 3, height, width), without visible tokens."""
    config = weights.config
    fields = (smooth @ weights.decoder.fields).view(-1, config.rows, config.cols, 3)
    spread_rows = _spread(config.height, config.rows, smooth.device)
    spread_cols = _spread(config.width, config.cols, smooth.device)
    return spread_rows @ fields.permute(0, 3, 1, 2) @ spread_cols.transpose(0, 1)


def _spread(pixels: int, tokens: int, device: torch.device) -> Tensor:
    """Gaussian interpolation, (pixels, tokens); rows sum to one."""
    at = (torch.arange(pixels, device=device).float() + 0.5) * tokens / pixels - 0.5
    distance = at[:, None] - torch.arange(tokens, device=device).float()[None, :]
    return torch.softmax(-1.2 * distance.square(), dim=1)


def _terrain(weights: Weights, east: Tensor, north: Tensor, depth: Tensor) -> Tensor:
    """Sum of sine waves over the plain; short ones fade with distance."""
    height = torch.zeros_like(east)
    for (along, beside), phase in zip(
        weights.decoder.waves, weights.decoder.wave_phases, strict=True
    ):
        wave = torch.sin(1.6 * along * east + 1.6 * beside * north + phase)
        height.addcmul_(wave, torch.exp(-0.05 * (along.abs() + beside.abs()) * depth))
    return height * 0.45


def _shade(weights: Weights, height: Tensor, tint: Tensor, palette: Tensor) -> Tensor:
    """Water, sand, grass and rock by height, (3, frames, height, width), tinted by latents."""
    water, sand, grass, rock = (
        _colour(base) + 0.35 * _colour(palette[index])
        for index, base in enumerate(weights.decoder.constants.ground)
    )
    shaded = torch.lerp(water, sand, torch.sigmoid(14.0 * (height + 0.45)))
    shaded = torch.lerp(shaded, grass, torch.sigmoid(14.0 * (height + 0.25)))
    shaded = torch.lerp(shaded, rock, torch.sigmoid(14.0 * (height - 0.45)))
    return shaded * (1.0 + 0.22 * torch.tanh(height) + 0.12 * tint)


def _ridge(weights: Weights, angle: Tensor) -> Tensor:
    """How far the hills stand over the horizon in each direction."""
    ridge = torch.zeros_like(angle)
    for order, phase in enumerate(weights.decoder.ridges, start=1):
        ridge += torch.sin((2 * order + 1) * angle + phase) / (order + 1)
    return (0.10 + 0.08 * ridge).clamp(min=0.0)


def _colour(channels: Tensor) -> Tensor:
    """Red, green and blue for every pixel of every frame."""
    return channels.view(3, 1, 1, 1)
