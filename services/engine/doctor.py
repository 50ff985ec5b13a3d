"""Doctor: the facts that an engine tells whoever asks."""

from __future__ import annotations

from dataclasses import replace

from services.engine.device import EngineDevice
from services.engine.settings import EngineSettings
from worldline.doctor.facts import ENGINE, ProcessFacts
from worldline.doctor.gpus import read_gpus
from worldline.doctor.reading import read_facts
from worldline.numa import format_cpu_list
from worldline.state.manifest import Fingerprint


def engine_facts(
    settings: EngineSettings, device: EngineDevice, fingerprint: Fingerprint
) -> ProcessFacts:
    """This engine's facts."""
    facts = read_facts(
        ENGINE,
        settings.engine_id,
        settings.node_id,
        devices=(device.name,),
        settings={
            "threads": str(settings.threads),
            "bind": settings.bind.value,
            "cores": format_cpu_list(settings.cores),
        },
    )
    return replace(facts, gpus=read_gpus((device.name,)), fingerprint=fingerprint.hash.hex())
