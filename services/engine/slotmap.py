"""Slot map: a slot of the mover's in this process's address space, wherever it rests."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod

import torch

from worldline.errors import InvariantBroken
from worldline.state.layout import Layout
from worldline.state.manifest import Digests


class SlotMap(ABC):
    """One mapped slot. `buffer` is its memory; `close` gives the address range back."""

    size_bytes: int

    @abstractmethod
    def buffer(self) -> torch.Tensor:
        """The slot as a writable 1-D uint8 tensor; it and its views must die before `close`."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until everything that was queued on the slot's device is done.

        Of all streams: a model may have used others than the one that is current here.
        """

    @abstractmethod
    def digest(self, layout: Layout) -> Digests:
        """Digests of the state that lies in the slot, settled before; computed where it rests."""

    def close(self) -> None:
        """Unmap. Idempotent. Takes long: call it off the event loop (`Unmapping`).

        Raises:
            InvariantBroken: a tensor or view of the slot is still alive somewhere; the slot stays
                mapped.
        """
        if self._let_go():
            return
        gc.collect()  # views in reference cycles, for example in a traceback's frames
        if not self._let_go():
            raise InvariantBroken("a view of a slot outlives its world")

    @abstractmethod
    def _let_go(self) -> bool:
        """Unmap unless a view is alive; whether it is unmapped."""
