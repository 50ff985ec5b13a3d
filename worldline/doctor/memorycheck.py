"""Memory check: shared memory, locked memory, pages, and torch's allocator. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.doctor.facts import DEV_SHM, ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.doctor.ucxvariables import TLS, takes_shared_memory

#: A mover's UCX takes 5 MB of it. Up to 15 MiB free it silently goes over TCP, with 16 MiB it dies
#: of a segmentation fault, from 17 MiB on all is well (UCX 1.21).
SHARED_MEMORY_MIN_BYTES = 32 << 20
#: What containers get that ask for nothing.
SHARED_MEMORY_USUAL_BYTES = 64 << 20
#: RDMA pins what it registers.
_LOCKED_PER_SLOT = "slot_bytes"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_MORE_SHARED_MEMORY = (
    "docker run --shm-size=1g ...    # Kubernetes: an emptyDir with medium: Memory at /dev/shm"
)


def check_shared_memory(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Fault 34: an ERROR here is what a mover refuses to start with."""
    if facts.service != MOVER or not _shares_memory(facts):
        return ()
    total, free = facts.shared_memory_total_bytes, facts.shared_memory_free_bytes
    if total is None or free is None:
        return ()
    if free < SHARED_MEMORY_MIN_BYTES:
        return (
            Finding(
                Severity.ERROR,
                "SHARED_MEMORY_TOO_SMALL",
                facts.subject,
                f"{DEV_SHM} has {_mib(free)} free of {_mib(total)}, UCX's shared-memory lanes need "
                f"{_mib(SHARED_MEMORY_MIN_BYTES)}",
                "UCX then falls back to TCP without a word, or crashes",
                f"{_MORE_SHARED_MEMORY}; or WORLDLINE_MOVER_LANE=tcp does without",
                DEV_SHM,
            ),
        )
    if total <= SHARED_MEMORY_USUAL_BYTES:
        return (
            Finding(
                Severity.WARNING,
                "SHARED_MEMORY_SMALL",
                facts.subject,
                f"{DEV_SHM} has {_mib(total)}, what a container gets that asks for nothing",
                "the mover shares it with whatever else runs there, and falls back to TCP or "
                f"crashes where less than {_mib(SHARED_MEMORY_MIN_BYTES)} is free at its start",
                _MORE_SHARED_MEMORY,
                DEV_SHM,
            ),
        )
    return ()


def check_memory(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Everything but shared memory."""
    return (*_locked(facts), *_pages(facts), *_allocator(facts))


def _shares_memory(facts: ProcessFacts) -> bool:
    tls = facts.environment.get(TLS)
    if tls is None and facts.settings.get("lane") == "tcp":
        return False
    return takes_shared_memory(tls)


def _locked(facts: ProcessFacts) -> Iterator[Finding]:
    limit = facts.memlock_max_bytes
    slot_bytes = _whole(facts.settings.get(_LOCKED_PER_SLOT))
    if facts.service != MOVER or not facts.rdma_devices or limit is None or limit >= slot_bytes:
        return
    yield Finding(
        Severity.ERROR,
        "MEMLOCK_TOO_SMALL",
        facts.subject,
        f"the limit of locked memory is {_mib(limit)}, a slot has {_mib(slot_bytes)}",
        "RDMA locks what it registers: slots cannot be registered, and moves go over TCP",
        "ulimit -l unlimited    # docker run --ulimit memlock=-1, systemd LimitMEMLOCK=infinity",
        "memlock",
    )


def _pages(facts: ProcessFacts) -> Iterator[Finding]:
    if facts.service != MOVER or "cpu" not in facts.devices:
        return
    if facts.huge_pages_total or facts.shared_memory_may_be_huge:
        return
    slots = max(1, _whole(facts.settings.get("slot_count")))
    pages = -(-slots * _whole(facts.settings.get("slot_bytes")) // (2 << 20))
    yield Finding(
        Severity.INFO,
        "NO_HUGE_PAGES",
        facts.subject,
        "slots in host memory have pages of 4 KiB",
        "a slot is ready later, and copies between processes are a sixth slower (CMA)",
        # The machine's total: other movers of it need theirs too.
        f"sysctl vm.nr_hugepages=$(( $(sysctl -n vm.nr_hugepages) + {pages} ))",
        "vm.nr_hugepages",
    )


def _allocator(facts: ProcessFacts) -> Iterator[Finding]:
    if facts.service not in (ENGINE, MOVER):
        return
    for name in _ALLOCATOR:
        if not _expandable(facts.environment.get(name, "")):
            continue
        yield Finding(
            Severity.WARNING if facts.uses_gpu else Severity.INFO,
            "EXPANDABLE_SEGMENTS",
            facts.subject,
            f"{name}={facts.environment[name]}",
            "tensors in expandable segments cannot be exported by CUDA IPC, and UCX copies them "
            "through host memory; slots are not torch's and stay as they are",
            f"unset {name}",
            name,
        )


def _expandable(value: str) -> bool:
    pairs = (part.partition(":") for part in value.replace(" ", "").split(","))
    return any(
        key.lower() == "expandable_segments" and setting.lower() == "true"
        for key, _, setting in pairs
    )


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
