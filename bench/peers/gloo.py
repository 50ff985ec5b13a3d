"""gloo: torch.distributed's point-to-point calls on the CPU, one message a tensor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.peers.tensors import tensors
from bench.side import Side

_WITHIN = timedelta(seconds=100)
_RANKS = {"source": 0, "target": 1}


class _Rank(Side):
    """Both sides: a process group of two over the loopback interface."""

    #: `dist.isend` or `dist.irecv`.
    post: Callable[..., Any]

    def prepare(self) -> str:
        self._tensors = [tensor.view(torch.uint8) for tensor in tensors(self.at).values()]
        if self.at.role == "target":
            return ""
        self._store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        return str(self._store.port)

    def connect(self, peer: str) -> None:
        if self.at.role == "target":
            self._store = dist.TCPStore("127.0.0.1", int(peer), 2, is_master=False)
        rank = _RANKS[self.at.role]
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=2, timeout=_WITHIN)

    def run(self) -> None:
        other = 1 - _RANKS[self.at.role]
        posted = [
            type(self).post(tensor, other, tag=tag) for tag, tensor in enumerate(self._tensors)
        ]
        for work in posted:
            work.wait()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class Source(_Rank):
    """Sends."""

    post = staticmethod(dist.isend)


class Target(_Rank):
    """Receives in place."""

    post = staticmethod(dist.irecv)


SIDES = {"source": Source, "target": Target}
