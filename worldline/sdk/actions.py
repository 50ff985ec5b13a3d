"""Action: what a player does during one block."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.contract import QUALITY_FLOOR_STEPS_MAX
from worldline.errors import InvalidInput
from worldline.fields import finite, whole
from worldline.v1 import engine_pb2

#: Letters of `Action.keys`, bit by bit.
KEYS = "WSAD"


@dataclass(frozen=True, slots=True)
class Action:
    """Pressed keys (bit 0 forward, 1 back, 2 left, 3 right) and mouse motion in [-1, 1].

    `steps` is a replay's alone, of a C4 session: the denoising steps that the replayed block had.
    0 leaves them to the contract.

    Raises:
        InvalidInput: a value out of range or not finite; `field` is `action.<name>`.
    """

    keyboard: int = 0
    mouse_dx: float = 0.0
    mouse_dy: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        whole(self.keyboard, "action.keyboard", at_most=(1 << len(KEYS)) - 1)
        whole(self.steps, "action.steps", at_most=QUALITY_FLOOR_STEPS_MAX)
        for name in ("mouse_dx", "mouse_dy"):
            motion = finite(getattr(self, name), f"action.{name}")
            if not -1 <= motion <= 1:
                raise InvalidInput(
                    f"action.{name} must be between -1 and 1, got {motion}",
                    field=f"action.{name}",
                )

    @classmethod
    def keys(cls, pressed: str, mouse_dx: float = 0.0, mouse_dy: float = 0.0) -> Action:
        """From letters: `Action.keys("WA")` is forward and left.

        Raises:
            InvalidInput: a letter that is none of W, S, A, D.
        """
        keyboard = 0
        for letter in pressed.upper():
            if letter not in KEYS:
                raise InvalidInput(
                    f"no key {letter!r}; there are {', '.join(KEYS)}", field="action.keyboard"
                )
            keyboard |= 1 << KEYS.index(letter)
        return cls(keyboard, mouse_dx, mouse_dy)

    def to_proto(self, block_index: int) -> engine_pb2.Action:
        """As sent for block `block_index`."""
        return engine_pb2.Action(
            block_index=block_index,
            keyboard=self.keyboard,
            mouse_dx=self.mouse_dx,
            mouse_dy=self.mouse_dy,
            steps=self.steps,
        )
