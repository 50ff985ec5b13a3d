"""torchft's checkpoint transports: HTTP, and a gloo process group that receives in place.

Option `transport`: `http` or `pg`. Neither verifies content.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo

from bench.peers.tensors import bytes_of, tensors
from bench.side import Side

_WITHIN = timedelta(seconds=100)
_RANKS = {"source": 0, "target": 1}


class _Transport(Side):
    """Both sides: one of the two transports."""

    def prepare(self) -> str:
        self._step = 0
        self._loaded: dict[str, torch.Tensor] = {}
        self._in_place = self.at.options["transport"] == "pg"
        self._state = tensors(self.at)
        if not self._in_place:
            self._transport: Any = HTTPTransport(_WITHIN, num_chunks=0)
            return str(self._transport.metadata())
        if self.at.role == "target":
            return ""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return f"127.0.0.1:{self._store.port}"

    def connect(self, peer: str) -> None:
        self._peer = peer
        if not self._in_place:
            return
        address = f"127.0.0.1:{self._store.port}" if self.at.role == "source" else peer
        group = ProcessGroupGloo(timeout=_WITHIN)
        group.configure(f"{address}/bench", "0", _RANKS[self.at.role], 2)
        self._transport = PGTransport(
            group, _WITHIN, torch.device("cpu"), state_dict=lambda: self._state
        )

    def arm(self) -> None:
        self._step += 1

    def close(self) -> None:
        if not self._in_place:
            self._transport.shutdown(wait=False)


class Source(_Transport):
    """Serves the state."""

    def run(self) -> None:
        self._transport.send_checkpoint([1], self._step, self._state, _WITHIN)
        self.at.tell()

    def clear(self) -> None:
        self._transport.disallow_checkpoint()


class Target(_Transport):
    """Fetches it."""

    def run(self) -> None:
        if not self._in_place:
            self.at.hear()
        self._loaded = self._transport.recv_checkpoint(0, self._peer, self._step, _WITHIN)
        if self._in_place:
            self.at.hear()

    def landed(self) -> Iterator[memoryview]:
        return bytes_of(self.at, self._loaded)

    def clear(self) -> None:
        self._loaded = {}


SIDES = {"source": Source, "target": Target}
