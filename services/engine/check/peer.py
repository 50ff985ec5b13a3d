"""Peer: the other process of a check. Reads questions from stdin, see `elsewhere`."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldline.rpc.host import die_with_parent

#: Weeks ahead, and no whole number of anything.
_AHEAD_S = 40 * 86_400 + 12_345.678


def _unsettle() -> None:
    """Make the process differ in what no model may depend on; before any model is imported."""
    import numpy as np
    import torch

    wall_s: Callable[[], float] = time.time
    wall_ns: Callable[[], int] = time.time_ns
    time.time = lambda: wall_s() + _AHEAD_S
    time.time_ns = lambda: wall_ns() + int(_AHEAD_S * 1e9)
    random.seed(20_261_201)
    np.random.seed(20_261_201)
    torch.manual_seed(20_261_201)


def main(device_name: str, threads: str) -> None:
    """Answer until stdin ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is no answer
    _unsettle()
    import torch

    from services.engine.check.blame import blamed
    from services.engine.check.subject import Subject, load_subject
    from services.engine.device import describe_device, fix_numerics

    torch.set_num_threads(int(threads))
    device = describe_device(device_name)
    fix_numerics(device)
    device.enter()
    subjects: dict[str, Subject] = {}

    def subject(name: str, weights_seed: int) -> Subject:
        if name not in subjects:
            subjects[name] = load_subject(name, weights_seed, device)
        return subjects[name]

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            seen = _answer(subject(asked["name"], asked["weights_seed"]), asked)
            said: dict[str, Any] = {"seen": [one.to_json() for one in seen]}
        except Exception as error:
            said = {"error": blamed(error)}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def _answer(subject: Any, asked: dict[str, Any]) -> Any:
    from services.engine.check.private import PrivateWorld, Snapshot
    from worldline.state.codec import layout_from_proto
    from worldline.v1 import manifest_pb2

    if "seed" in asked:
        world = PrivateWorld.opened(subject, asked["seed"])
    else:
        message = manifest_pb2.Layout.FromString(Path(asked["layout"]).read_bytes())
        snapshot = Snapshot(
            asked["block_index"],
            layout_from_proto(message),
            Path(asked["data"]).read_bytes(),
        )
        world = PrivateWorld.restored(subject, snapshot)
    with world:
        return world.play(asked["blocks"])


if __name__ == "__main__":
    main(*sys.argv[1:])
