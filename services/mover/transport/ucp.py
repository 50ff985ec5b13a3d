"""The few calls of UCP's C API that ucxx keeps to itself: lanes, flush, registration.

Structures as in `ucp/api/ucp.h` of UCX 1.21. Each takes a field mask, so that fields added later
do not matter. Handles are the integers that ucxx exposes; call only on the worker's own thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

from services.mover.transport.base import Buffer

_LANES_MAX = 64
_EP_ATTR_FIELD_TRANSPORTS = 1 << 3
_MEM_MAP_FIELD_ADDRESS = 1 << 0
_MEM_MAP_FIELD_LENGTH = 1 << 1
#: UCS_ERR_LAST: pointers at or above it, read as unsigned, are statuses.
_STATUS_LAST = -100
_IN_PROGRESS = 1


class _Lane(ctypes.Structure):
    _fields_ = (("transport_name", ctypes.c_char_p), ("device_name", ctypes.c_char_p))


class _Lanes(ctypes.Structure):
    _fields_ = (
        ("entries", ctypes.POINTER(_Lane)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
    )


class _EndpointAttributes(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_char * 128),
        ("remote_sockaddr", ctypes.c_char * 128),
        ("transports", _Lanes),
        ("user_data", ctypes.c_void_p),
    )


class _MemoryMapParameters(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int),
        ("exported_memh_buffer", ctypes.c_void_p),
    )


class Ucp:
    """Bindings to the libucp that ucxx has already loaded into this process."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libucp.so.0")
        self._query = _bound(library.ucp_ep_query, ctypes.c_int, 2)
        self._flush = _bound(library.ucp_ep_flush_nbx, ctypes.c_void_p, 2)
        self._check = _bound(library.ucp_request_check_status, ctypes.c_int, 1)
        self._free = _bound(library.ucp_request_free, None, 1)
        self._map = _bound(library.ucp_mem_map, ctypes.c_int, 3)
        self._unmap = _bound(library.ucp_mem_unmap, ctypes.c_int, 2)

    def lanes(self, endpoint_handle: int) -> tuple[str, ...]:
        """The transports and devices that UCX chose for an endpoint, sorted."""
        entries = (_Lane * _LANES_MAX)()
        attributes = _EndpointAttributes(field_mask=_EP_ATTR_FIELD_TRANSPORTS)
        attributes.transports = _Lanes(entries, _LANES_MAX, ctypes.sizeof(_Lane))
        if self._query(endpoint_handle, ctypes.addressof(attributes)) != 0:
            return ()
        found = entries[: attributes.transports.num_entries]
        return tuple(
            sorted({_text(lane.transport_name) + "/" + _text(lane.device_name) for lane in found})
        )

    def flush_start(self, endpoint_handle: int) -> int:
        """Begin a flush: 0 when nothing was pending, else a request for `flush_done`.

        Raises:
            OSError: the endpoint cannot be flushed.
        """
        parameters = ctypes.create_string_buffer(256)  # an all-zero ucp_request_param_t
        request = self._flush(endpoint_handle, ctypes.addressof(parameters)) or 0
        signed = ctypes.c_ssize_t(request).value
        if _STATUS_LAST <= signed < 0:
            raise OSError(f"ucp_ep_flush_nbx: status {signed}")
        return int(request)

    def flush_done(self, request: int) -> bool:
        """Whether a flush has ended; frees the request when it has.

        Raises:
            OSError: it ended badly.
        """
        status = int(self._check(request))
        if status == _IN_PROGRESS:
            return False
        self._free(request)
        if status != 0:
            raise OSError(f"flush: status {status}")
        return True

    def memory_map(self, context_handle: int, address: int, size_bytes: int) -> int:
        """Register memory with every device of a context; returns the handle.

        Raises:
            OSError: the memory cannot be registered.
        """
        parameters = _MemoryMapParameters(
            field_mask=_MEM_MAP_FIELD_ADDRESS | _MEM_MAP_FIELD_LENGTH,
            address=address,
            length=size_bytes,
        )
        handle = ctypes.c_void_p()
        status = self._map(context_handle, ctypes.addressof(parameters), ctypes.addressof(handle))
        if status != 0:
            raise OSError(f"ucp_mem_map of {size_bytes} bytes: status {status}")
        return handle.value or 0

    def memory_unmap(self, context_handle: int, handle: int) -> None:
        """Undo `memory_map`."""
        self._unmap(context_handle, handle)


def _text(name: bytes | None) -> str:
    return (name or b"?").decode(errors="replace")


def _bound(function: Any, result: Any, arguments: int) -> Any:
    function.restype = result
    function.argtypes = [ctypes.c_void_p] * arguments
    return function


def address_of(buffer: Buffer) -> int:
    """Where a writable, contiguous buffer begins in its memory."""
    if isinstance(buffer, memoryview):
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return buffer.address
