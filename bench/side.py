"""Side: what one of a contestant's two processes does. Each contestant's file has two of them.

Order of calls: `prepare` in both, `connect` in both at once with what the other's `prepare`
returned, then for each run `spoil` in the target, `arm` in both at once, `run` in both at once,
and, in the target, `digest` after the clock has stopped. `clear` frees what a run left, `close`
everything.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bench.payload import digest, leaf_views, occupied, spoil
from worldline.state.layout import Layout


class Unfit(Exception):
    """This contestant cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a side works with: its end of the payload, and a socket to the other side.

    `descriptor` is that of the memory file behind the view, `scratch` a directory in memory that
    both sides share and that is removed after them.
    """

    role: str
    layout: Layout
    view: memoryview
    link: socket.socket
    options: Mapping[str, str] = field(default_factory=dict)
    descriptor: int = -1
    scratch: Path = Path()

    @property
    def address(self) -> int:
        """Where the end begins in this process."""
        return int(np.frombuffer(self.view, np.uint8).ctypes.data)

    def spans(self) -> list[tuple[int, int]]:
        """Address and size in bytes of every tensor."""
        base = self.address
        return [(base + leaf.offset_bytes, leaf.size_bytes) for leaf in occupied(self.layout)]

    def tell(self) -> None:
        """Let the other side go on from its `hear`."""
        self.link.sendall(b"!")

    def hear(self) -> None:
        """Wait until the other side tells.

        Raises:
            ConnectionError: it is gone.
        """
        if not self.link.recv(1):
            raise ConnectionError("the other side is gone")


class Side:
    """Base of all sides: does nothing where a contestant has nothing to do."""

    def __init__(self, at: Surroundings) -> None:
        self.at = at

    def prepare(self) -> str:
        """Start up; what the other side needs to know, as text."""
        return ""

    def connect(self, peer: str) -> None:
        """Reach the other side; whatever is slow and done once."""

    def arm(self) -> None:
        """Get ready for one run, untimed."""

    def run(self) -> None:
        """Send, or return when everything is here."""
        raise NotImplementedError

    def spoil(self) -> None:
        """Make what the target holds differ from the payload, page by page; untimed."""
        spoil(torch.frombuffer(self.at.view, dtype=torch.uint8))

    def digest(self) -> int:
        """Of what the target holds now, as `payload.digest`; untimed."""
        return digest(self.landed())

    def landed(self) -> Iterator[memoryview]:
        """What the target holds now, tensor by tensor in the layout's order."""
        return leaf_views(self.at.layout, self.at.view)

    def clear(self) -> None:
        """Free what a run left behind."""

    def close(self) -> None:
        """Free everything."""
