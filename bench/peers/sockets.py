"""Plain sockets: the extent over one or several TCP streams of the loopback interface.

What anybody would write first. Option `streams`: each carries an equal share in a thread of its
own. Nothing is verified.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.side import Side

#: Large enough that calls cost nothing, small enough to be in a cache between copies.
_CALL_BYTES = 1 << 20


class _Streams(Side):
    """Both sides: connected streams, and the share of each."""

    def prepare(self) -> str:
        self._count = int(self.at.options["streams"])
        self._pool = ThreadPoolExecutor(self._count)
        self._streams: list[socket.socket] = []
        return ""

    def _move(self, one: Callable[[socket.socket, memoryview], None]) -> None:
        share = -(-self.at.view.nbytes // self._count)
        parts = [self.at.view[start : start + share] for start in self._starts(share)]
        list(self._pool.map(one, self._streams, parts))

    def _starts(self, share: int) -> range:
        return range(0, self.at.view.nbytes, share)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class Source(_Streams):
    """Connects and sends."""

    def connect(self, peer: str) -> None:
        for _ in range(self._count):
            self._streams.append(socket.create_connection(("127.0.0.1", int(peer)), timeout=60))

    def run(self) -> None:
        self._move(lambda stream, part: stream.sendall(part))


class Target(_Streams):
    """Listens and receives."""

    def prepare(self) -> str:
        super().prepare()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        return str(self._listener.getsockname()[1])

    def connect(self, peer: str) -> None:
        for _ in range(self._count):
            self._streams.append(self._listener.accept()[0])

    def run(self) -> None:
        self._move(_receive)


def _receive(stream: socket.socket, part: memoryview) -> None:
    done = 0
    while done < part.nbytes:
        count = stream.recv_into(part[done : done + _CALL_BYTES])
        if not count:
            raise ConnectionError("the source closed its stream early")
        done += count


SIDES = {"source": Source, "target": Target}
