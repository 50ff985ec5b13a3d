"""Pages: which size of page host memory is made of, and what would have to change for larger ones.

With large pages the kernel and the processor have a five-hundredth of the page tables to walk:
the kernel copies between processes a sixth faster (CMA), a slot is ready in a fraction of the time,
and a neighbour maps it at once.
"""

from __future__ import annotations

import ctypes
import os
import re
from enum import Enum
from pathlib import Path

#: linux/memfd.h
_MFD_HUGETLB = 0x0004
_MFD_HUGE_2MB = 21 << 26
#: linux/mman.h; the last one since Linux 5.14.
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
HUGE_BYTES = 2 << 20
_SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HugePages(Enum):
    """Whether slots are to have large pages."""

    #: Where the machine has some to give.
    AUTO = "auto"
    NEVER = "never"
    #: Or the mover does not start.
    REQUIRE = "require"


class PageKind(Enum):
    """What memory is made of."""

    #: Reserved 2 MiB pages (hugetlbfs).
    RESERVED = "reserved"
    #: 2 MiB pages where the kernel finds some (transparent huge pages).
    TRANSPARENT = "transparent"
    SMALL = "small"


def memory_file(name: str, size_bytes: int, kind: PageKind) -> int:
    """A memory file of at least `size_bytes`, whole pages; returns its descriptor.

    Raises:
        OSError, AttributeError: the system has none.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    page_bytes = 1
    if kind is PageKind.RESERVED:
        flags |= _MFD_HUGETLB | _MFD_HUGE_2MB
        page_bytes = HUGE_BYTES
    descriptor = os.memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, -(-size_bytes // page_bytes) * page_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def kinds_to_try(wanted: HugePages, size_bytes: int) -> tuple[PageKind, ...]:
    """In this order. Memory smaller than a large page has small ones in any case."""
    if wanted is HugePages.NEVER or size_bytes < HUGE_BYTES:
        return (PageKind.SMALL,)
    transparent = (PageKind.TRANSPARENT,) if shared_memory_may_be_huge() else ()
    small = (PageKind.SMALL,) if wanted is HugePages.AUTO else ()
    return (PageKind.RESERVED, *transparent, *small)


def shared_memory_may_be_huge() -> bool:
    """Whether the kernel gives shared memory large pages on request."""
    try:
        chosen = re.search(r"\[(\w+)\]", _SHMEM_ENABLED.read_text())
    except OSError:
        return False
    return chosen is not None and chosen[1] in ("always", "within_size", "advise", "force")


def request_huge(address: int, size_bytes: int) -> bool:
    """Ask for large pages in this memory, before it has any; whether the kernel listens."""
    status: int = _LIBC.madvise(address, size_bytes, _MADV_HUGEPAGE)
    return status == 0


def populate(address: int, size_bytes: int) -> None:
    """Give memory its pages; what is there stays.

    Raises:
        OSError: ENOMEM without memory, EINVAL on a kernel that cannot.
    """
    if _LIBC.madvise(address, size_bytes, _MADV_POPULATE_WRITE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remedy(size_bytes: int) -> str:
    """What an operator does about small pages."""
    count = -(-size_bytes // HUGE_BYTES)
    return (
        f"set vm.nr_hugepages to at least {count}, or write `advise` to {_SHMEM_ENABLED}, "
        "and start again"
    )
