"""Limit check: descriptors, processes and processors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.doctor.facts import ENGINE, ProcessFacts
from worldline.doctor.finding import Finding, Severity

#: A mover with sixteen peers holds some two hundred; a gRPC server takes one per client.
OPEN_FILES_MIN = 4096
#: Threads count: torch, gRPC and UCX start some dozens each.
PIDS_LEFT_MIN = 256


def check_limits(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Of one process."""
    return (*_open_files(facts), *_pids(facts), *_threads(facts))


def _open_files(facts: ProcessFacts) -> Iterator[Finding]:
    limit = facts.open_files_max
    if limit is None or limit >= OPEN_FILES_MIN:
        return
    yield Finding(
        Severity.WARNING,
        "OPEN_FILES_FEW",
        facts.subject,
        f"{limit} open files are allowed",
        "each connection, slot and peer takes some: calls fail when they are used up",
        "ulimit -n 65536    # docker run --ulimit nofile=65536, systemd LimitNOFILE=65536",
        "nofile",
    )


def _pids(facts: ProcessFacts) -> Iterator[Finding]:
    if facts.pids_max is None or facts.pids_max - facts.pids_used >= PIDS_LEFT_MIN:
        return
    yield Finding(
        Severity.WARNING,
        "PIDS_FEW",
        facts.subject,
        f"{facts.pids_used} of {facts.pids_max} processes and threads of its group are in use",
        "a thread that cannot be started ends its process",
        f"docker run --pids-limit={facts.pids_max + 4096}    # systemd TasksMax=infinity",
        "pids.max",
    )


def _threads(facts: ProcessFacts) -> Iterator[Finding]:
    threads = facts.settings.get("threads", "")
    if facts.service != ENGINE or not threads.isdigit() or int(threads) <= facts.cpu_count:
        return
    yield Finding(
        Severity.WARNING,
        "THREADS_MANY",
        facts.subject,
        f"{threads} threads compute on {facts.cpu_count} processors",
        "each waits for the others: a quantum takes several times as long",
        f"export WORLDLINE_ENGINE_THREADS={facts.cpu_count}    # part of T0: the same on all nodes",
        "threads",
    )
