"""Slot socket: fetches a slot's memory from this node's mover against a one-time token.

Protocol (Unix, SOCK_STREAM): the client sends the 32 token bytes of MapSlot, the server answers
once and closes. The first byte of the answer says which:

- 0x01, host memory: nothing follows; the memory file comes along as SCM_RIGHTS.
- 0x02, device memory: 64 bytes, CUDA's IPC handle, and the GPU's UUID in ASCII to the end. The
  UUID, not an index: mover and engine may see other GPUs, or the same ones in another order.
- 0x00, refused: nothing follows.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from worldline.errors import Unavailable

TOKEN_BYTES = 32
_HOST_MEMORY = b"\x01"
_DEVICE_MEMORY = b"\x02"
_HANDLE_BYTES = 64
_ANSWER_BYTES_MAX = 1 + _HANDLE_BYTES + 128


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A memory file's descriptor; the receiver closes it."""

    descriptor: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """CUDA's name for memory of another process, and whose GPU it is on."""

    handle: bytes
    device_uuid: str


def fetch(socket_path: str, token: bytes, timeout_s: float) -> HostMemory | DeviceMemory:
    """Redeem a token. Blocks: call it off the event loop.

    Raises:
        Unavailable: the socket cannot be reached, or the mover refused the token.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect(socket_path)
            client.sendall(token)
            answer, descriptors, _, _ = socket.recv_fds(client, _ANSWER_BYTES_MAX, 1)
            while answer[:1] == _DEVICE_MEMORY and len(answer) < _ANSWER_BYTES_MAX:
                more = client.recv(_ANSWER_BYTES_MAX - len(answer))
                if not more:
                    break
                answer += more
    except OSError as error:
        raise Unavailable(
            f"cannot fetch a slot from {socket_path}: {error}", reason="SLOT_SOCKET_FAILED"
        ) from error
    if answer == _HOST_MEMORY and len(descriptors) == 1:
        return HostMemory(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    if answer[:1] == _DEVICE_MEMORY and len(answer) > 1 + _HANDLE_BYTES:
        handle, uuid = answer[1 : 1 + _HANDLE_BYTES], answer[1 + _HANDLE_BYTES :]
        return DeviceMemory(handle, uuid.decode("ascii", "replace"))
    raise Unavailable(
        "the mover refused to hand over the slot: its token is used, expired or forged",
        reason="SLOT_REFUSED",
    )
