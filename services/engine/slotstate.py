"""Slot state: a state tree of views into the slot. The live state is flat; installing is free."""

from __future__ import annotations

from typing import ClassVar, cast

from services.engine.memory import Memory
from services.engine.parts import Parts
from services.engine.slotmap import SlotMap
from services.engine.world import StateTree
from worldline.state.inplace import InPlace
from worldline.state.layout import Layout
from worldline.state.tree import materialize, pack


class SlotState(Memory):
    """See `Memory`."""

    copies: ClassVar[bool] = False

    def __init__(self, slots: SlotMap, layout: Layout) -> None:
        super().__init__(slots, layout)
        state = cast(StateTree, materialize(layout, self._open_buffer()))
        self._known: InPlace | None = InPlace(layout, state)
        self._hold(state)

    def begin(self) -> None:
        """See `Memory`."""
        self._clear_padding()

    def loading(self) -> Parts[None]:
        """It is there already."""
        yield from ()

    def changing(self) -> None:
        """It changes where it lies."""

    def storing(self) -> Parts[Layout]:
        """See `Memory`."""
        yield from ()
        return self.layout()

    def layout(self) -> Layout:
        """See `Memory`. Copies nothing: `pack` leaves a tree alone that lies in its buffer."""
        buffer = self._open_buffer()
        known = None if self._known is None else self._known.layout_of(self.state)
        return pack(self.state, self._layout, buffer) if known is None else known

    def let_go(self) -> None:
        """See `Memory`."""
        self._known = None
        super().let_go()
