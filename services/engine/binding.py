"""Binding: on which CPUs this engine runs. The decision is pure; `bind_engine` carries it out.

Paper, section 6.6: an engine on the wrong NUMA node runs every forward at 202 instead of 152 ms.
Section 8: on the right one, engines that share cores still differ by 12 to 35 %; so an engine can
be given cores of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from worldline.errors import InvalidInput
from worldline.numa import (
    NODES,
    Binding,
    bind_process,
    binding_of_process,
    cpus_by_node,
    format_cpu_list,
)

if TYPE_CHECKING:
    from services.engine.device import EngineDevice
    from services.engine.settings import EngineSettings

_log = structlog.get_logger(__name__)


class BindMode(StrEnum):
    """Whether an engine binds itself."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class BindWish:
    """What its settings ask for. No `cores`: all of a NUMA node; `numa_node` None: the device's."""

    mode: BindMode = BindMode.AUTO
    cores: frozenset[int] = frozenset()
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the machine has: CPUs that this process may use, CPUs by NUMA node, the device's node.

    `device_node` is None for the CPU, and where the machine does not say.
    """

    allowed: frozenset[int]
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict, hash=False)
    device_node: int | None = None


@dataclass(frozen=True, slots=True)
class BindDecision:
    """The CPUs to bind to, None to leave everything as it is; and why."""

    cpus: frozenset[int] | None
    reason: str


def decide_binding(wish: BindWish, around: Surroundings) -> BindDecision:
    """The cores that were asked for; else the NUMA node of the device, where there are several.

    Raises:
        InvalidInput: cores of which none may be used, or which are not to be bound to; a NUMA node
            that is not there. `field` is the setting.
    """
    if wish.mode is BindMode.OFF:
        if wish.cores:
            raise InvalidInput(
                f"cores are {format_cpu_list(wish.cores)} and bind is off; leave one of them out",
                field="cores",
            )
        return BindDecision(None, "binding is off")
    if wish.cores:
        return _to_cores(wish.cores, around)
    if wish.numa_node is not None and wish.numa_node not in around.nodes:
        known = ", ".join(map(str, sorted(around.nodes))) or "none that the machine tells of"
        raise InvalidInput(
            f"there is no NUMA node {wish.numa_node} here; there are: {known}", field="numa_node"
        )
    node = around.device_node if wish.numa_node is None else wish.numa_node
    return _to_node(node, around)


def _to_cores(cores: frozenset[int], around: Surroundings) -> BindDecision:
    usable = cores & around.allowed
    allowed = format_cpu_list(around.allowed)
    if not usable:
        raise InvalidInput(
            f"none of the cores {format_cpu_list(cores)} may be used here: this process is allowed "
            f"{allowed}; name some of those, or widen its control group's cpuset",
            field="cores",
        )
    cut = cores - usable
    missing = f", without {format_cpu_list(cut)}: only {allowed} are allowed here" if cut else ""
    return BindDecision(usable, f"cores {format_cpu_list(usable)} as told{missing}")


def _to_node(node: int | None, around: Surroundings) -> BindDecision:
    if node is None:
        return BindDecision(None, "no NUMA node is nearest to its device")
    if len(around.nodes) < 2:
        return BindDecision(None, "there is one NUMA node")
    usable = around.nodes.get(node, frozenset()) & around.allowed
    if not usable:
        allowed = format_cpu_list(around.allowed)
        return BindDecision(
            None, f"no CPU of NUMA node {node} may be used here: only {allowed} are allowed"
        )
    return BindDecision(usable, f"NUMA node {node}, {format_cpu_list(usable)}")


def bind_engine(
    settings: EngineSettings, device: EngineDevice, nodes: Path = NODES
) -> tuple[EngineDevice, Binding]:
    """Bind every thread of this process, before torch starts any of its own.

    Memory needs no policy of its own: the kernel takes it from the node of the thread that touches
    it first, and from now on that is the bound one.

    Raises:
        InvalidInput: as `decide_binding`.
        Unavailable: the kernel refused.
    """
    wish = BindWish(settings.bind, settings.cores, settings.numa_node)
    on_cpu = device.index is None
    around = Surroundings(
        allowed=frozenset(os.sched_getaffinity(0)),
        nodes=cpus_by_node(nodes),
        device_node=None if on_cpu else device.numa_node,
    )
    decision = decide_binding(wish, around)
    if decision.cpus is not None:
        bind_process(decision.cpus)
    binding = binding_of_process(nodes)
    _log.info(
        "engine.bound" if decision.cpus is not None else "engine.not_bound",
        cpus=format_cpu_list(binding.cpus),
        numa_node=binding.numa_node,
        reason=decision.reason,
    )
    # A CPU's memory is where its threads run; a GPU stays where it is.
    return replace(device, numa_node=binding.numa_node) if on_cpu else device, binding
