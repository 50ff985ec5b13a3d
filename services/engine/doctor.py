"""Doctor: the facts that an engine tells whoever asks."""

from __future__ import annotations

from dataclasses import replace

from services.engine.device import EngineDevice
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from worldline.doctor.facts import ENGINE, ProcessFacts
from worldline.doctor.gpus import read_gpus
from worldline.doctor.reading import read_facts
from worldline.numa import format_cpu_list


def engine_facts(settings: EngineSettings, device: EngineDevice, engine: Engine) -> ProcessFacts:
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
    checks = () if engine.self_checks is None else engine.self_checks.done
    return replace(
        facts,
        gpus=read_gpus((device.name,)),
        fingerprint=engine.fingerprint.hash.hex(),
        self_checks={one.preset: one.differs for one in checks},
    )
