"""Bind check: whether processes run where their device is near, and engines on cores of their own.

Pure. What is on the wrong NUMA node runs a third slower (paper, section 6.6), and what shares its
cores is held up by as much (section 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from worldline.doctor.facts import ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.numa import format_cpu_list, parse_cpu_list

_FAR = "pinned memory and the threads that feed the GPU cross the link between sockets"


def check_binding(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Of one process by itself."""
    return (*_numa(facts), *_cut(facts))


def check_shared_cores(facts: Sequence[ProcessFacts]) -> tuple[Finding, ...]:
    """Of engines that share a machine, each pair."""
    engines = [one for one in facts if one.service == ENGINE and one.boot_id and one.cpus]
    found: list[Finding] = []
    for one, other in combinations(engines, 2):
        if one.boot_id == other.boot_id:
            found += _shared(one, other)
    return tuple(found)


def _numa(facts: ProcessFacts) -> Iterator[Finding]:
    if facts.service not in (ENGINE, MOVER) or facts.numa_node_count < 2:
        return
    near = {gpu.numa_node for gpu in facts.gpus if gpu.numa_node is not None}
    if len(near) == 1 and facts.numa_node not in near:
        (wanted,) = near
        elsewhere = facts.numa_node is not None
        where = f"node {facts.numa_node}" if elsewhere else "all nodes"
        yield Finding(
            Severity.WARNING if elsewhere else Severity.INFO,
            "NUMA_FAR" if elsewhere else "NUMA_UNBOUND",
            facts.subject,
            f"it runs on {where}, its GPU is at NUMA node {wanted}",
            _FAR,
            _to_node(facts, wanted),
            "numa",
        )
    elif not near and facts.numa_node is None:
        yield Finding(
            Severity.INFO,
            "NUMA_UNBOUND",
            facts.subject,
            f"it runs on {facts.numa_node_count} NUMA nodes",
            "half of what it copies and digests is in the other socket's memory",
            _to_node(facts, 0),
            "numa",
        )


def _to_node(facts: ProcessFacts, node: int) -> str:
    if facts.service == MOVER:
        return f"numactl --cpunodebind={node} --preferred={node} worldline-{facts.service} ..."
    return (
        f"export WORLDLINE_ENGINE_BIND=auto WORLDLINE_ENGINE_NUMA_NODE={node}    # no CORES of "
        "another node, and a cpuset of its control group that has CPUs of this one"
    )


def _cut(facts: ProcessFacts) -> Iterator[Finding]:
    told, has = _cores_told(facts), _cpus(facts.cpus)
    missing = told - has
    if facts.service != ENGINE or not missing or not has:
        return
    yield Finding(
        Severity.WARNING,
        "CORES_CUT",
        facts.subject,
        f"it was given cores {format_cpu_list(told)} and may run on {format_cpu_list(has)}",
        "its control group or a taskset leaves it fewer: a quantum takes longer than it could",
        f"export WORLDLINE_ENGINE_CORES={format_cpu_list(has)}    # or give it the others: "
        f"docker run --cpuset-cpus={format_cpu_list(told)}",
        "cores",
    )


def _shared(one: ProcessFacts, other: ProcessFacts) -> Iterator[Finding]:
    mine, theirs = _cpus(one.cpus), _cpus(other.cpus)
    shared, both = mine & theirs, mine | theirs
    told = bool(_cores_told(one) or _cores_told(other))
    # Where nobody gave them cores, it is worth a word only beside GPUs and where there is enough
    # for both: others cannot but share.
    parted = one.uses_gpu and other.uses_gpu and len(both) >= _wanted(one) + _wanted(other)
    if not shared or not (told or parted):
        return
    half = sorted(both)[: len(both) // 2]
    yield Finding(
        Severity.WARNING if told else Severity.INFO,
        "CORES_SHARED",
        f"{one.subject} and {other.subject}",
        f"both may run on CPUs {format_cpu_list(shared)}",
        "a quantum of one waits for the threads of the other, and neither's row is its own",
        f"export WORLDLINE_ENGINE_CORES={format_cpu_list(frozenset(half))}    # and "
        f"{format_cpu_list(both - frozenset(half))} for the other",
        "cores",
    )


def _wanted(facts: ProcessFacts) -> int:
    """Cores of an engine: its compute threads, and one for what serves them."""
    threads = facts.settings.get("threads", "")
    return 1 + (int(threads) if threads.isdigit() else 1)


def _cores_told(facts: ProcessFacts) -> frozenset[int]:
    return _cpus(facts.settings.get("cores", ""))


def _cpus(text: str) -> frozenset[int]:
    """Of a peer that may be of another version: what is no list says nothing."""
    try:
        return parse_cpu_list(text)
    except ValueError:
        return frozenset()
