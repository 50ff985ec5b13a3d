"""Presets: the sizes of a world and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.world import check_steps
from worldline.errors import InvalidInput


@dataclass(frozen=True)
class WorldConfig:
    """Sizes of one preset. A latent frame is `rows` x `cols` tokens of `dim` channels."""

    name: str
    layers: int
    #: The first `action_layers` blocks carry keyboard and mouse attention, the others only own
    #: their (never written) action caches, as in the model whose shape this is.
    action_layers: int
    heads: int
    head_dim: int
    action_heads: int
    action_head_dim: int
    rows: int
    cols: int
    #: The first frame is seen as a square of this many tokens a side, and one for the whole.
    first_frame_side: int
    ffn_dim: int
    pixels_per_token: int
    latent_channels: int = 16
    frames_per_block: int = 3
    window_frames: int = 6
    video_frames_per_latent: int = 4
    #: Noise level that each denoising quantum starts from.
    sigmas: tuple[float, ...] = (1.0, 0.75, 0.4)

    @property
    def dim(self) -> int:
        """Channels of a token inside the transformer."""
        return self.heads * self.head_dim

    @property
    def action_dim(self) -> int:
        """Channels of the keyboard and mouse attention."""
        return self.action_heads * self.action_head_dim

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of one latent frame."""
        return self.rows * self.cols

    @property
    def window_tokens(self) -> int:
        """Tokens that the self-attention cache holds."""
        return self.window_frames * self.tokens_per_frame

    @property
    def first_frame_tokens(self) -> int:
        """Tokens that the cross-attention cache holds."""
        return self.first_frame_side**2 + 1

    @property
    def quanta_per_block(self) -> int:
        """Model passes of a block: the denoising steps and the context pass."""
        return len(self.sigmas) + 1

    def sigmas_of(self, steps: int) -> tuple[float, ...]:
        """Noise levels of a block of `steps`: evenly spaced in `sigmas`, both ends kept.

        One step starts at pure noise, as every block does. Of three levels two steps leave out
        the middle one.

        Raises:
            InvalidInput: `steps` is not from 1 to the number of levels.
        """
        check_steps(steps, len(self.sigmas))
        last = len(self.sigmas) - 1
        return tuple(self.sigmas[index * last // max(1, steps - 1)] for index in range(steps))

    @property
    def height(self) -> int:
        """Rows of an RGB frame, pixels."""
        return self.rows * self.pixels_per_token

    @property
    def width(self) -> int:
        """Columns of an RGB frame, pixels."""
        return self.cols * self.pixels_per_token


#: Interactive on two CPU cores: 64 x 64 pixels.
TINY = WorldConfig(
    name="tiny",
    layers=4,
    action_layers=2,
    heads=3,
    head_dim=32,
    action_heads=4,
    action_head_dim=32,
    rows=8,
    cols=8,
    first_frame_side=4,
    ffn_dim=192,
    pixels_per_token=8,
)

#: Tens of megabytes of state, about a second a block on one CPU core.
SMALL = WorldConfig(
    name="small",
    layers=10,
    action_layers=5,
    heads=6,
    head_dim=64,
    action_heads=8,
    action_head_dim=32,
    rows=10,
    cols=16,
    first_frame_side=8,
    ffn_dim=768,
    pixels_per_token=8,
)

#: The state of Matrix-Game-2's causal pipeline: 30 blocks, 880 tokens a frame, 1,670,124,960
#: bytes of attention cache. Frames are half its resolution so that a block fits one message.
MG2 = WorldConfig(
    name="mg2",
    layers=30,
    action_layers=15,
    heads=12,
    head_dim=128,
    action_heads=16,
    action_head_dim=64,
    rows=22,
    cols=40,
    first_frame_side=16,
    ffn_dim=6144,
    pixels_per_token=8,
)

PRESETS: dict[str, WorldConfig] = {config.name: config for config in (TINY, SMALL, MG2)}


def preset(name: str) -> WorldConfig:
    """The preset of that name.

    Raises:
        InvalidInput: there is none; the message lists those that exist.
    """
    config = PRESETS.get(name)
    if config is None:
        raise InvalidInput(
            f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}", field="world.preset"
        )
    return config
