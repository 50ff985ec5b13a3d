"""Doctor: the mover's part of the self-test, and the facts that it tells whoever asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from services.mover.settings import MoverSettings
from worldline.doctor.facts import MOVER, ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.doctor.gpus import read_gpus
from worldline.doctor.memorycheck import check_shared_memory
from worldline.doctor.reading import read_facts, read_variables, shared_memory_bytes
from worldline.doctor.surroundings import check_writable
from worldline.doctor.ucxcheck import check_ucx
from worldline.doctor.ucxvariables import NET_DEVICES, TLS, Lanes, lanes_left
from worldline.errors import Unavailable
from worldline.rpc.dialled import check_dialled

#: What of its settings decides lanes and memory.
_SETTINGS = ("lane", "slot_count", "slot_bytes", "huge_pages", "chunk_bytes", "staging_rings")


def check_surroundings(settings: MoverSettings, *, ucx: bool = True) -> None:
    """Refuse what cannot work, before anything is built on it. `ucx`: bytes will travel over it.

    Raises:
        InvalidInput: an address that nobody can have.
        Unavailable: `field` names the setting, the variable or the device.
    """
    check_dialled(
        placement_address=settings.placement_address,
        admission_address=settings.admission_address,
        trace_store=settings.trace_store,
    )
    check_writable(settings.runtime_dir, "runtime_dir", reason="RUNTIME_DIR_UNUSABLE")
    if ucx:
        facts = _lane_facts(settings)
        for finding in (*check_shared_memory(facts), *check_ucx(facts)):
            if finding.severity is Severity.ERROR:
                raise refusal(finding)


def refusal(finding: Finding) -> Unavailable:
    """The error that a service ends with which cannot work."""
    return Unavailable(
        f"{finding.what}: {finding.why}. {finding.remedy}",
        reason=finding.code,
        field=finding.field or None,
    )


def _lane_facts(settings: MoverSettings) -> ProcessFacts:
    """What decides lanes alone: the rest of the facts can wait until the mover serves."""
    total_bytes, free_bytes = shared_memory_bytes()
    facts = ProcessFacts(
        MOVER,
        settings.node_id,
        settings.node_id,
        devices=settings.devices,
        environment=read_variables(),
        settings=_told(settings),
        shared_memory_total_bytes=total_bytes,
        shared_memory_free_bytes=free_bytes,
    )
    return _with_lanes(facts) if chooses_lanes(facts.environment) else facts


def chosen_facts(settings: MoverSettings) -> ProcessFacts:
    """This mover's facts; with its lanes only where UCX has been told which to take."""
    return read_mover_facts(settings, ask_ucx=chooses_lanes(os.environ))


def chooses_lanes(environment: Mapping[str, str]) -> bool:
    """Whether UCX has been told which of its lanes to take."""
    return TLS in environment or NET_DEVICES in environment


def read_mover_facts(settings: MoverSettings, *, ask_ucx: bool = True) -> ProcessFacts:
    """This mover's facts. `ask_ucx`: also what lanes are here, a few milliseconds more.

    Raises:
        Unavailable: UCX does not work here.
    """
    facts = read_facts(
        MOVER,
        settings.node_id,
        settings.node_id,
        devices=settings.devices,
        settings=_told(settings),
    )
    facts = replace(facts, gpus=read_gpus(settings.devices))
    return _with_lanes(facts) if ask_ucx else facts


def _with_lanes(facts: ProcessFacts) -> ProcessFacts:
    # Late: a process that needs no UCX does not load it.
    from services.mover.transport.resources import lanes_here, ucx_version

    here = lanes_here()
    tls, net_devices = facts.environment.get(TLS), facts.environment.get(NET_DEVICES)
    return replace(
        facts,
        versions={**facts.versions, "ucx": ucx_version()},
        lanes_here=here,
        lanes_left=lanes_left(tls, net_devices, Lanes(here)).names,
    )


def _told(settings: MoverSettings) -> dict[str, str]:
    values = ((name, getattr(settings, name)) for name in _SETTINGS)
    return {name: str(getattr(value, "value", value)) for name, value in values}
