"""Pair check: two processes on one machine that cannot share what they should. Pure.

A container that lacks the other's IPC or PID namespace costs lanes without a word (ucx#11978): the
bytes are right, and go by TCP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from worldline.doctor.facts import ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity


def check_pairs(processes: Iterable[ProcessFacts]) -> tuple[Finding, ...]:
    """Every two movers of one machine, and each engine with its mover."""
    everybody = tuple(processes)
    movers = [one for one in everybody if one.service == MOVER]
    engines = [one for one in everybody if one.service == ENGINE]
    found: list[Finding] = []
    for one, other in combinations(movers, 2):
        if _one_machine(one, other):
            found += _movers(one, other)
    for engine in engines:
        for mover in movers:
            if mover.node_id == engine.node_id:
                found += _engine_and_mover(engine, mover)
    return tuple(found)


def _one_machine(one: ProcessFacts, other: ProcessFacts) -> bool:
    return bool(one.boot_id) and one.boot_id == other.boot_id


def _subject(one: ProcessFacts, other: ProcessFacts) -> str:
    return f"{one.subject} and {other.subject}"


def _differ(one: int, other: int) -> bool:
    return bool(one and other) and one != other


def _movers(one: ProcessFacts, other: ProcessFacts) -> Iterator[Finding]:
    subject = _subject(one, other)
    if _differ(one.pid_namespace, other.pid_namespace):
        yield Finding(
            Severity.WARNING,
            "PID_NAMESPACES_DIFFER",
            subject,
            "they are on one machine and in two PID namespaces",
            "neither may read the other's memory: no move in place, no CMA, no CUDA IPC",
            "docker run --pid=host ...    # Kubernetes: hostPID: true; on both",
            "pid namespace",
        )
    if _differ(one.ipc_namespace, other.ipc_namespace):
        yield Finding(
            Severity.WARNING,
            "IPC_NAMESPACES_DIFFER",
            subject,
            "they are on one machine and in two IPC namespaces",
            "their /dev/shm are two: no shared-memory lanes, and CUDA IPC fails",
            "docker run --ipc=host ...    # Kubernetes: hostIPC: true; on both",
            "ipc namespace",
        )
    if one.uid != other.uid:
        yield Finding(
            Severity.WARNING,
            "USERS_DIFFER",
            subject,
            f"they run as users {one.uid} and {other.uid}",
            "neither may open the other's memory: moves between them go through UCX's copies",
            f"docker run --user {one.uid} ...    # the same for both",
            "uid",
        )
    scopes = [each.ptrace_scope or 0 for each in (one, other) if not each.may_ptrace]
    if scopes and max(scopes) > 0 and not _differ(one.pid_namespace, other.pid_namespace):
        yield Finding(
            Severity.WARNING,
            "PTRACE_RESTRICTED",
            subject,
            f"kernel.yama.ptrace_scope is {max(scopes)}",
            "a process may not read another's memory: no move in place and no CMA",
            "sysctl kernel.yama.ptrace_scope=0    # or docker run --cap-add SYS_PTRACE",
            "kernel.yama.ptrace_scope",
        )


def _engine_and_mover(engine: ProcessFacts, mover: ProcessFacts) -> Iterator[Finding]:
    subject = _subject(engine, mover)
    if engine.boot_id and mover.boot_id and engine.boot_id != mover.boot_id:
        yield Finding(
            Severity.ERROR,
            "ENGINE_ELSEWHERE",
            subject,
            "they are of one node and on two machines",
            "an engine maps its mover's memory: it can take no slot from here",
            f"worldline-engine --node-id {engine.node_id} ...    # on the mover's machine",
            "node_id",
        )
        return
    apart = [
        name
        for name, differ in (
            ("IPC", _differ(engine.ipc_namespace, mover.ipc_namespace)),
            ("PID", _differ(engine.pid_namespace, mover.pid_namespace)),
        )
        if differ
    ]
    if apart and (engine.uses_gpu or mover.uses_gpu):
        yield Finding(
            Severity.ERROR,
            "ENGINE_NAMESPACES_DIFFER",
            subject,
            f"they do not share the {' and '.join(apart)} namespace",
            "a slot in a GPU's memory cannot be opened over CUDA IPC",
            "docker run --ipc=host --pid=host ...    # Kubernetes: hostIPC, hostPID: true; on both",
            "namespaces",
        )
    if engine.uid != mover.uid:
        yield Finding(
            Severity.ERROR,
            "ENGINE_USER_DIFFERS",
            subject,
            f"they run as users {engine.uid} and {mover.uid}",
            "the mover's socket is for its own user: the engine can map no slot",
            f"docker run --user {mover.uid} ...    # the same for both",
            "uid",
        )
