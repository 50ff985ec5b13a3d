"""Output of the doctor: a document for scripts, tables and findings for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from worldline.cli.output import console, jsonable, print_table
from worldline.doctor.examination import Examination, Examined
from worldline.doctor.finding import Finding, Severity, worst
from worldline.doctor.lanecheck import Path, human_rate, link_bytes_per_s

#: Grows when a field changes its meaning or goes; new fields come without.
VERSION = 1
_STATUS = {None: "ok", Severity.INFO: "ok", Severity.WARNING: "warnings", Severity.ERROR: "errors"}
_STYLE = {Severity.INFO: "dim", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def document(scope: str, found: Examination, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """The stable shape, described in docs/doctor.md."""
    return {
        "version": VERSION,
        "scope": scope,
        "status": _STATUS[worst(findings)],
        "processes": [_process(one) for one in found.processes],
        "paths": [_path(found, one) for one in found.paths],
        "findings": [jsonable(one) for one in findings],
    }


def print_found(found: Examination, findings: tuple[Finding, ...]) -> None:
    """Tables of what there is, then what is wrong with it."""
    columns = ("PROCESS", "NODE", "VERSION", "CLOCK", "DEVICES", "/DEV/SHM FREE")
    print_table(columns, (_row(one) for one in found.processes), drop=("/DEV/SHM FREE",))
    if found.paths:
        console.print()
        columns = ("FROM", "TO", "RATE", "LATENCY", "OF ITS LINK", "LANES")
        print_table(columns, (_path_row(found, one) for one in found.paths), drop=("OF ITS LINK",))
    console.print()
    print_findings(findings)


def print_findings(findings: Iterable[Finding]) -> None:
    """Each in four lines: what, why, and the line that mends it."""
    shown = False
    for one in findings:
        shown = True
        console.print(one.severity.name, style=_STYLE[one.severity], end=" ")
        console.print(f"{one.code}  {one.subject}", markup=False, highlight=False)
        for label, text in (("what", one.what), ("why", one.why), ("do", one.remedy)):
            console.print(f"  {label:<4}  {text}", markup=False, highlight=False)
    if not shown:
        console.print("nothing is wrong")


def path_line(path: Path) -> str:
    """One path in one line, for progress."""
    if not path.pushes:
        return f"{path.name}: {path.failed or path.refused}"
    return f"{path.name}: {human_rate(path.rate_bytes_per_s)} by {', '.join(path.lanes)}"


def _row(one: Examined) -> tuple[object, ...]:
    facts = one.facts
    if facts is None:
        return one.subject, one.node_id or "-", "no answer", "-", "-", "-"
    clock = "-"
    if one.clock is not None:
        clock = f"{one.clock.offset_ms:+.1f} ms +-{one.clock.uncertainty_ms:.1f}"
    free = facts.shared_memory_free_bytes
    return (
        one.subject,
        one.node_id or "-",
        facts.versions.get("worldline", "-"),
        clock,
        ",".join(facts.devices) or "-",
        "-" if free is None else f"{free / (1 << 20):.0f} MiB",
    )


def _path_row(found: Examination, path: Path) -> tuple[object, ...]:
    link = _link(found, path)
    return (
        path.source_node_id,
        path.target_node_id,
        human_rate(path.rate_bytes_per_s) if path.pushes else "-",
        f"{path.latency_ms:.2f} ms" if path.pushes else "-",
        f"{path.rate_bytes_per_s / link:.0%}" if link and path.pushes else "-",
        ", ".join(path.lanes) or path.failed or path.refused,
    )


def _link(found: Examination, path: Path) -> float:
    source, target = found.mover(path.source_node_id), found.mover(path.target_node_id)
    return 0.0 if source is None or target is None else link_bytes_per_s(path, source, target)


def _process(one: Examined) -> dict[str, Any]:
    failed = {"reason": one.reason, "message": one.message, "field": one.field}
    return {
        "service": one.service,
        "instance": one.instance,
        "node_id": one.node_id,
        "address": one.address,
        "answered": one.facts is not None,
        "failure": failed if one.reason else None,
        "clock": jsonable(one.clock),
        "facts": jsonable(one.facts),
    }


def _path(found: Examination, path: Path) -> dict[str, Any]:
    return {
        **jsonable(path),
        "rate_bytes_per_s": path.rate_bytes_per_s,
        "latency_ms": path.latency_ms,
        "link_bytes_per_s": _link(found, path),
    }
