"""Self-test: what a mover would find here and whether UCX works, told on stdout as JSON lines.

The first line is the facts, the second, where there is one, why a mover would not start. Nothing is
left behind. UCX itself writes to stdout: what it says goes to stderr instead.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import TextIO

from google.protobuf import json_format

from services.mover.doctor import check_surroundings, read_mover_facts
from services.mover.settings import MoverSettings
from services.mover.transport.base import Transport
from worldline.devicename import cuda_index
from worldline.doctor.codec import facts_to_proto
from worldline.errors import WorldlineError
from worldline.rpc.host import load_settings


def main() -> None:
    """Entry point: settings as a mover's, from the environment."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = load_settings(MoverSettings)
    with told:
        try:
            facts = read_mover_facts(settings)
        except WorldlineError as error:
            facts = read_mover_facts(settings, ask_ucx=False)
            _tell(told, json_format.MessageToJson(facts_to_proto(facts), indent=None))
            _tell(told, _failure(error))
            return
        _tell(told, json_format.MessageToJson(facts_to_proto(facts), indent=None))
        try:
            check_surroundings(settings)
            asyncio.run(_bring_up(settings))
        except WorldlineError as error:
            _tell(told, _failure(error))


async def _bring_up(settings: MoverSettings) -> None:
    """Start UCX as a mover does, which sends itself a message, and stop it."""
    from services.mover.main import ucx_transport

    indices: Sequence[int | None] = [cuda_index(name) for name in settings.devices]
    make = ucx_transport(settings.lane)
    transport: Transport = make([index for index in indices if index is not None])
    await transport.start()
    await transport.stop()


def _tell(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def _failure(error: WorldlineError) -> str:
    return json.dumps(
        {"reason": error.reason, "message": error.message, "field": error.field or ""}
    )
