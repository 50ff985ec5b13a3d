"""Slot map: the mover's memory in this process's address space.

Protocol of the slot socket (Unix, SOCK_STREAM): the client sends the 32 token bytes of MapSlot;
the server answers b"\\x01" with the slot's descriptor as SCM_RIGHTS, or b"\\x00" and closes.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket

import torch

from worldline.errors import InvariantBroken, Unavailable

TOKEN_BYTES = 32
_GRANTED = b"\x01"


class SlotMap:
    """One mapped slot. `buffer` is its memory; `close` gives the address range back."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping

    @property
    def size_bytes(self) -> int:
        """Bytes mapped."""
        return len(self._mapping)

    def buffer(self) -> torch.Tensor:
        """The slot as a writable 1-D uint8 tensor; it and its views must die before `close`.

        torch holds only the object that it is given, not the mapping's buffer; the memoryview in
        between does, so that closing under a live tensor is refused instead of a crash later.
        """
        return torch.frombuffer(memoryview(self._mapping), dtype=torch.uint8)

    def view(self) -> memoryview:
        """The slot's bytes for digests; release it before `close`."""
        return memoryview(self._mapping)

    def close(self) -> None:
        """Unmap. Idempotent.

        Raises:
            InvariantBroken: a tensor or view of the slot is still alive somewhere.
        """
        if self._mapping.closed:
            return
        try:
            self._mapping.close()
        except BufferError:
            gc.collect()  # views in reference cycles, for example in a traceback's frames
            try:
                self._mapping.close()
            except BufferError as error:
                raise InvariantBroken("a view of a slot outlives its world") from error


def map_slot(socket_path: str, token: bytes, slot_bytes: int, timeout_s: float) -> SlotMap:
    """Fetch the descriptor from the slot socket and map it. Blocks: call it off the event loop.

    Raises:
        Unavailable: the socket cannot be reached, or the mover refused the token.
        InvariantBroken: the descriptor is not of `slot_bytes` bytes.
    """
    descriptor = _fetch(socket_path, token, timeout_s)
    try:
        held_bytes = os.fstat(descriptor).st_size
        if held_bytes < slot_bytes:
            raise InvariantBroken(f"slot of {held_bytes} bytes where {slot_bytes} were promised")
        mapping = mmap.mmap(descriptor, slot_bytes, mmap.MAP_SHARED)
    finally:
        os.close(descriptor)  # the mapping holds its own
    return SlotMap(mapping)


def _fetch(socket_path: str, token: bytes, timeout_s: float) -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(timeout_s)
            client.connect(socket_path)
            client.sendall(token)
            answer, descriptors, _, _ = socket.recv_fds(client, 1, 1)
    except OSError as error:
        raise Unavailable(
            f"cannot fetch a slot from {socket_path}: {error}", reason="SLOT_SOCKET_FAILED"
        ) from error
    if answer == _GRANTED and len(descriptors) == 1:
        return descriptors[0]
    for descriptor in descriptors:
        os.close(descriptor)
    raise Unavailable(
        "the mover refused to hand over the slot: its token is used, expired or forged",
        reason="SLOT_REFUSED",
    )
