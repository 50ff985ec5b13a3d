"""Slot server: hands a slot's memory to a process that shows a one-time token.

Protocol, over a Unix-domain stream socket: the client sends the 32 bytes of its token, the server
answers once and closes. The answer's first byte says which:

- 0x01, host memory: nothing follows; the memory file comes along as SCM_RIGHTS (unix(7)).
- 0x02, device memory: 64 bytes, CUDA's IPC handle, and the GPU's UUID in ASCII to the end. The
  UUID, not an index: the client may see other GPUs, or the same ones in another order.
- 0x00, refused: nothing follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from services.mover.memory.base import Descriptor, Export
from worldline.errors import Unavailable

_log = structlog.get_logger(__name__)

TOKEN_BYTES = 32
TOKEN_VALID_S = 10.0
HOST_MEMORY = b"\x01"
DEVICE_MEMORY = b"\x02"
REFUSED = b"\x00"
#: A client that connects and says nothing is cut off.
_TALK_S = 2.0
_CLIENTS_MAX = 32
#: sockaddr_un holds 108 bytes, the closing zero included.
_PATH_BYTES_MAX = 107


class Tokens:
    """One-time tokens and what each of them opens. Pure: `now` is passed in, in seconds."""

    def __init__(self, valid_s: float = TOKEN_VALID_S) -> None:
        self._valid_s = valid_s
        self._issued: dict[bytes, tuple[float, Callable[[], Export]]] = {}

    def issue(self, open_slot: Callable[[], Export], now: float) -> bytes:
        """A token; `open_slot` gives the memory when it is redeemed, or raises."""
        self.expire(now)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._issued[token] = (now + self._valid_s, open_slot)
        return token

    def redeem(self, token: bytes, now: float) -> Callable[[], Export] | None:
        """What the token opens; None when unknown, used or expired. A token works once."""
        for known in list(self._issued):
            if hmac.compare_digest(known, token):
                expires_at, open_slot = self._issued.pop(known)
                return open_slot if now < expires_at else None
        return None

    def expire(self, now: float) -> None:
        """Forget those that nobody has redeemed in time."""
        self._issued = {token: entry for token, entry in self._issued.items() if entry[0] > now}

    def __len__(self) -> int:
        return len(self._issued)


class SlotServer:
    """Serves tokens on a socket file that exists while the server runs."""

    def __init__(self, path: Path, tokens: Tokens) -> None:
        self.path = path
        self._tokens = tokens
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; a stale socket file of a former run is replaced.

        Raises:
            Unavailable: the directory cannot be written, or the path is too long.
        """
        if len(os.fsencode(self.path)) > _PATH_BYTES_MAX:
            raise Unavailable(
                f"{self.path} is longer than a socket's name may be ({_PATH_BYTES_MAX} bytes)",
                reason="RUNTIME_DIR_UNUSABLE",
                field="runtime_dir",
            )
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            former = os.umask(0o177)  # mode 0600 from the first moment on
            try:
                listener.bind(str(self.path))
            finally:
                os.umask(former)
            listener.listen(_CLIENTS_MAX)
        except OSError as error:
            listener.close()
            raise Unavailable(
                f"cannot listen on {self.path}: {error}",
                reason="RUNTIME_DIR_UNUSABLE",
                field="runtime_dir",
            ) from error
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener), name="slot-server")

    async def stop(self) -> None:
        """Close the listener and every client, remove the socket file."""
        tasks = [*self._clients, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            if len(self._clients) >= _CLIENTS_MAX:
                client.close()
                continue
            task = asyncio.create_task(self._serve(client), name="slot-client")
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
            # Also for a task that was cancelled before its first step.
            task.add_done_callback(partial(_hang_up, client))

    async def _serve(self, client: socket.socket) -> None:
        client.setblocking(False)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TALK_S):
                await self._answer(client)

    async def _answer(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        token = b""
        while len(token) < TOKEN_BYTES:
            part = await loop.sock_recv(client, TOKEN_BYTES - len(token))
            if not part:
                return
            token += part
        open_slot = self._tokens.redeem(token, loop.time())
        try:
            export = open_slot() if open_slot is not None else None
        except Exception as error:
            # The slot was released between issue and redemption.
            _log.info("slot_server.refused", why=str(error))
            export = None
        if export is None:
            await loop.sock_sendall(client, REFUSED)
        elif isinstance(export, Descriptor):
            # One byte into an empty socket buffer: this cannot block.
            socket.send_fds(client, [HOST_MEMORY], [export.number])
        else:
            answer = DEVICE_MEMORY + export.handle + export.device_uuid.encode("ascii")
            await loop.sock_sendall(client, answer)


def _hang_up(client: socket.socket, _: asyncio.Task[None]) -> None:
    client.close()
