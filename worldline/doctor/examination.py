"""Examination: what was found of one node or of a fleet, and the judgement on it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from worldline.doctor.bindcheck import check_binding, check_shared_cores
from worldline.doctor.clock import Offset, check_clock
from worldline.doctor.devicecheck import check_devices
from worldline.doctor.facts import MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity, sorted_findings, worst
from worldline.doctor.lanecheck import Path, check_paths
from worldline.doctor.limitcheck import check_limits
from worldline.doctor.memorycheck import check_memory, check_shared_memory
from worldline.doctor.paircheck import check_pairs
from worldline.doctor.selfcheck import check_self_checks
from worldline.doctor.skewcheck import check_fingerprints, check_skew
from worldline.doctor.ucxcheck import check_ucx
from worldline.doctor.ucxvariables import NET_DEVICES, TLS


class Part(Enum):
    """What can be asked for by itself."""

    VERSIONS = "versions"
    MEMORY = "memory"
    LIMITS = "limits"
    DEVICES = "devices"
    UCX = "ucx"
    PROCESSES = "processes"
    CLOCKS = "clocks"
    LANES = "lanes"


EVERYTHING = frozenset(Part)


@dataclass(frozen=True, slots=True)
class Examined:
    """One process: its facts, or why there are none (`reason`, `message`)."""

    service: str
    instance: str = ""
    node_id: str = ""
    address: str = ""
    facts: ProcessFacts | None = None
    clock: Offset | None = None
    reason: str = ""
    message: str = ""
    #: The setting or variable that the reason is about.
    field: str = ""

    @property
    def subject(self) -> str:
        """What findings call it."""
        return f"{self.service} {self.instance}".rstrip()


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that was found. `engines` are fingerprints and their facts by engine."""

    processes: tuple[Examined, ...]
    paths: tuple[Path, ...] = ()
    engines: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict, hash=False)

    @property
    def facts(self) -> tuple[ProcessFacts, ...]:
        """Of those who answered."""
        return tuple(one.facts for one in self.processes if one.facts is not None)

    def mover(self, node_id: str) -> ProcessFacts | None:
        """Of the node's mover, if it answered."""
        return next(
            (one for one in self.facts if one.service == MOVER and one.node_id == node_id), None
        )


def judge(found: Examination, parts: Collection[Part] = EVERYTHING) -> tuple[Finding, ...]:
    """What is wrong, the worst first; of these parts alone."""
    facts = found.facts
    findings: list[Finding] = []
    for one in facts:
        findings += check_ucx(one) if Part.UCX in parts else ()
        findings += (*check_limits(one), *check_binding(one)) if Part.LIMITS in parts else ()
        findings += check_devices(one) if Part.DEVICES in parts else ()
        if Part.MEMORY in parts:
            findings += (*check_shared_memory(one), *check_memory(one))
    if Part.LIMITS in parts:
        findings += check_shared_cores(facts)
    if Part.VERSIONS in parts:
        findings += (*check_skew(facts), *check_fingerprints(found.engines))
        findings += (finding for one in facts for finding in check_self_checks(one))
    if Part.PROCESSES in parts:
        findings += check_pairs(facts)
        known = {(one.subject, one.code) for one in findings}
        silent = (_silent(one) for one in found.processes if one.reason)
        findings += (one for one in silent if (one.subject, one.code) not in known)
    if Part.CLOCKS in parts:
        for process in found.processes:
            if process.clock is not None:
                findings += check_clock(process.subject, process.clock)
    if Part.LANES in parts:
        findings += check_paths(found.paths, (one for one in facts if one.service == MOVER))
        findings += (_unmeasured(path) for path in found.paths if path.refused)
        findings += (_broken(path) for path in found.paths if path.failed)
    return sorted_findings(findings)


def exit_status_of(findings: Collection[Finding]) -> int:
    """0 where nothing is worse than good to know, 1 for warnings, 7 where something cannot work."""
    return {Severity.ERROR: 7, Severity.WARNING: 1}.get(worst(findings) or Severity.INFO, 0)


def _silent(process: Examined) -> Finding:
    if process.facts is not None:  # it told what it has, and then did not work
        return Finding(
            Severity.ERROR,
            process.reason,
            process.subject,
            process.message,
            "a mover does not start here",
            _start_remedy(process),
            process.field,
        )
    return Finding(
        Severity.ERROR,
        "NO_ANSWER",
        process.subject,
        f"{process.address or 'it'} does not answer: {process.message}",
        "nothing can be said of it, and moves that need it fail",
        f"systemctl restart worldline-{process.service}    # on its host; look at its log first",
        "address",
    )


def _start_remedy(process: Examined) -> str:
    if process.reason.startswith("CUDA_"):
        return "nvidia-smi    # the driver must be as new as the CUDA that torch was built for"
    given = () if process.facts is None else process.facts.environment
    named = sorted(name for name in given if name in (TLS, NET_DEVICES))
    if process.field.startswith("UCX_"):
        named = [process.field]
    return f"unset {' '.join(named)}" if named else "ucx_info -d"


def _unmeasured(path: Path) -> Finding:
    return Finding(
        Severity.INFO,
        "PATH_NOT_MEASURED",
        path.name,
        f"not measured{', or less than was asked for' if path.pushes else ''}: {path.refused}",
        "a measurement never comes before a move",
        "worldline doctor --only lanes    # again, when fewer moves are under way",
    )


def _broken(path: Path) -> Finding:
    return Finding(
        Severity.ERROR,
        "PATH_FAILED",
        path.name,
        f"not one push came through: {path.failed}",
        "a move on it fails as this push did",
        "worldline doctor --only processes,ucx    # and the log of the mover at each end",
    )
