"""Tampering: a transport that lets a test at the bytes of each chunk, at either end.

A stage is a moment at which memory can change under a move that is under way. Each changes its one
bit at exactly that moment, whatever threads are at work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from services.mover.digesting import HostDigest
from services.mover.transport.base import Buffer, Endpoint, Reader, Request, Transport
from services.mover.transport.operation import Operation
from services.mover.transport.rendezvous import Place
from services.mover.transport.ucp import address_of
from tests.flips import Flip
from tests.unit.mover.faulty import FaultyEndpoint, FaultyTransport

#: No stage takes longer than a moment: whoever waits longer has met a deadlock.
WAIT_S = 60.0


class Stage:
    """Changes one bit, once, in a slot that begins at `base_address`. This one does nothing."""

    #: Whose slot it is: the source's `a` or the target's `b`.
    side = "a"

    def __init__(self, flip: Flip, base_address: int) -> None:
        self.flip = flip
        self.done = threading.Event()
        self._base_address = base_address

    def on_send(self, view: memoryview, reader: Reader | None) -> tuple[memoryview, Reader | None]:
        return view, reader

    def on_receive(self, view: memoryview, reader: Reader | None) -> Reader | None:
        return reader

    def before_digest(self, view: memoryview) -> None:
        pass

    def after_digest(self, view: memoryview) -> None:
        pass

    def copies_wait(self, place: Place) -> bool:
        """Whether a target that reads in place is to wait with these bytes."""
        return False

    def holds(self, view: memoryview) -> bool:
        """Whether the bit is among these bytes of the slot; others have addresses elsewhere."""
        return bool(view.nbytes) and 0 <= self._at(view) < view.nbytes

    def apply(self, view: memoryview) -> None:
        """Change the bit if it is among these bytes of the slot."""
        if self.holds(view) and not self.done.is_set():
            self.change(view)

    def change(self, view: memoryview, where: memoryview | None = None) -> None:
        """Change the bit, of a copy of the view where one is given."""
        target = view if where is None else where
        target[self._at(view)] ^= 1 << self.flip.bit
        self.done.set()

    def _at(self, view: memoryview) -> int:
        return self.flip.offset_bytes - (address_of(view) - self._base_address)


class InFlight(Stage):
    """What travels differs from what the source holds."""

    def on_send(self, view: memoryview, reader: Reader | None) -> tuple[memoryview, Reader | None]:
        if not self.holds(view):
            return view, reader
        copy = memoryview(bytearray(view))
        self.change(view, copy)
        return copy, reader


class AfterDigest(Stage):
    """The source's memory changes once it was digested there, before it travels."""

    def copies_wait(self, place: Place) -> bool:
        end_bytes = place.offset_bytes + place.size_bytes
        return place.offset_bytes <= self.flip.offset_bytes < end_bytes and not self.done.is_set()

    def after_digest(self, view: memoryview) -> None:
        self.apply(view)


class BeforeDigest(Stage):
    """The source's memory changes before it is digested there, once it has travelled."""

    def before_digest(self, view: memoryview) -> None:
        self.apply(view)


class Landed(Stage):
    """The target's memory changes between the wire's last touch and the target's digest."""

    side = "b"

    def on_receive(self, view: memoryview, reader: Reader | None) -> Reader | None:
        def read(offset_bytes: int, size_bytes: int) -> None:
            self.apply(view[offset_bytes : offset_bytes + size_bytes])
            if reader is not None:
                reader(offset_bytes, size_bytes)

        return read


class TamperedEndpoint(FaultyEndpoint):
    """Asks its transport's stage about each request."""

    def __init__(self, inner: Endpoint, owner: TamperedTransport) -> None:
        super().__init__(inner, owner)
        self._tampered = owner

    def send(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        if self._tampered.stage is not None and isinstance(buffer, memoryview):
            buffer, reader = self._tampered.stage.on_send(buffer, reader)
        return self.inner.send(buffer, tag, reader)

    def receive(self, buffer: Buffer, tag: int, reader: Reader | None = None) -> Request:
        if self._tampered.stage is not None and isinstance(buffer, memoryview):
            reader = self._tampered.stage.on_receive(buffer, reader)
        return self.inner.receive(buffer, tag, reader)


class TamperedTransport(FaultyTransport):
    """Delegates everything; the stage that is set has its way with the bytes."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.stage: Stage | None = None

    async def connect(self, address: bytes) -> Endpoint:
        return TamperedEndpoint(await self.inner.connect(address), self)


def tamper(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Have the stage told of every piece that is digested in host memory or read in place."""
    digest, copy = HostDigest._update, Operation._copied

    def update(self: HostDigest, first: int, count: int, offset: int, size: int) -> None:
        view = self._memory.part(offset, size)
        assert isinstance(view, memoryview)
        stage.before_digest(view)
        digest(self, first, count, offset, size)
        stage.after_digest(view)

    def copied(self: Operation, place: Place) -> Generator[None, None, bool]:
        give_up_at = time.monotonic() + WAIT_S
        while stage.copies_wait(place) and time.monotonic() < give_up_at:
            yield
        return (yield from copy(self, place))

    patch.setattr(HostDigest, "_update", update)
    patch.setattr(Operation, "_copied", copied)
