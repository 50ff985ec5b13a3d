"""Memory: a session's state in this process, and the slot that it moves through.

Two kinds. `SlotState`: the state's tensors are views into the slot, so that nothing is ever copied.
`OwnState`: they are the model's own (`OwnsState`), and are copied to the slot whenever somebody
wants to read it, and from it when a state arrives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from services.engine.parts import Parts, exhaust, most_bytes_of, spans
from services.engine.segment_reading import read_segments
from services.engine.slotmap import SlotMap
from services.engine.world import StateTree
from worldline.errors import Conflict, InvariantBroken
from worldline.state.digest import compose
from worldline.state.gf2 import Uint64s
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.tree import clear_padding

_Place = tuple[str, Any, Any, torch.Tensor]


class Memory(ABC):
    """A mapped slot and the state tree that the model works on. After `close` nothing is left."""

    #: Whether `load` and `layout` may copy the whole state: in parts, and not on the event loop.
    copies: ClassVar[bool]

    def __init__(self, slots: SlotMap, layout: Layout) -> None:
        self._slots = slots
        self._layout = layout
        self._buffer: torch.Tensor | None = slots.buffer()
        #: What `WorldModel.block` gets.
        self.state: StateTree = {}
        self._placed: tuple[_Place, ...] = ()

    @abstractmethod
    def begin(self) -> None:
        """Make room for a fresh state, which the model then writes."""

    @abstractmethod
    def loading(self) -> Parts[None]:
        """Take over the state that lies in the slot."""

    def load(self) -> None:
        """`loading`, at once."""
        exhaust(self.loading())

    @abstractmethod
    def storing(self) -> Parts[Layout]:
        """The layout with the scalars as they are now; the slot then holds the state.

        No block may write the state meanwhile.

        Raises:
            InvalidInput: the model put a tensor of its own into the tree; `leaf` names it.
        """

    def layout(self) -> Layout:
        """`storing`, at once."""
        return exhaust(self.storing())

    @property
    def topology(self) -> Layout:
        """The layout with the scalars of no block in particular; at any time, copies nothing."""
        return self._layout

    @abstractmethod
    def changing(self) -> None:
        """A block is about to write the state."""

    def copying(self, source: Memory) -> Parts[None]:
        """Copy another slot on the same device, which holds its state. Then `loading` it is due."""
        here, there = self._open_buffer(), source._open_buffer()
        for start, stop in spans(self._layout.extent_bytes, most_bytes_of(here.device)):
            here[start:stop].copy_(there[start:stop])
            yield

    def check_in_place(self) -> None:
        """Every leaf is still the tensor that the tree began with.

        Raises:
            InvariantBroken: the model replaced one; `leaf` names it.
        """
        for path, container, key, tensor in self._placed:
            if container[key] is not tensor:
                raise InvariantBroken(
                    f"the model replaced leaf {path}: write in place (`leaf[...] = value`), a "
                    "tensor that the engine does not know would not move",
                    reason="LEAF_REPLACED",
                    leaf=path,
                )

    def settle(self) -> None:
        """Wait until everything that was queued on the slot's device is done."""
        self._slots.settle()

    def digests(self, granule_bytes: int = 0) -> Digests:
        """Digests of the state as it is now, settled before; in granules of 1 MiB unless told.

        Raises:
            InvalidInput: as `layout`.
        """
        if granule_bytes:
            return compose(self.layout(), self.segment_crcs(granule_bytes), granule_bytes)
        return self._slots.digest(self.layout())

    def segment_crcs(self, granule_bytes: int) -> Uint64s:
        """CRC of every segment of the state as it is now, settled before, at this granule.

        Raises:
            InvalidInput: as `layout`.
        """
        return read_segments(self.layout(), self._open_buffer(), granule_bytes)

    def let_go(self) -> None:
        """Drop every view of the slot, and give back what a model has lent. Idempotent."""
        self.state = {}
        self._placed = ()
        self._buffer = None

    def close(self) -> None:
        """`let_go`, and unmap. Raises InvariantBroken when somebody kept a view."""
        self.let_go()
        self._slots.close()

    def _hold(self, state: StateTree) -> None:
        self.state = state
        self._placed = tuple(_places(state, ""))

    def _clear_padding(self) -> None:
        """Zero what no leaf covers, so that equal states are equal slots."""
        clear_padding(self._layout, self._open_buffer())

    def _open_buffer(self) -> torch.Tensor:
        if self._buffer is None:
            raise Conflict("the slot is unmapped", reason="WORLD_RELEASED")
        return self._buffer


def _places(tree: Any, path: str) -> Iterator[_Place]:
    """Where each tensor of a state tree hangs: its path, its container, its key, itself."""
    is_dict = isinstance(tree, dict)
    for key, child in tree.items() if is_dict else enumerate(tree):
        below = f"{path}.{key}".lstrip(".") if is_dict else f"{path}[{key}]"
        if isinstance(child, torch.Tensor):
            yield below, tree, key, child
        elif isinstance(child, (dict, list)):
            yield from _places(child, below)
