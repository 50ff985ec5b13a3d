"""The demo in containers, for real: every check of it held, each of the expected ones was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What must have been looked at; a scene that is left out is no scene that held.
EXPECTED = {
    "the move to node-3 committed": 2,
    "the move to node-1 committed": 1,
    "both digests of the move to node-3 are equal": 2,
    "between nodes bytes travel over TCP alone": 2,
    "within a node they go through shared memory": 1,
    "the wire was cut while bytes were on it": 1,
    "the move ended with a reason": 1,
    "the world plays on at node-1, in the same epoch": 1,
    "exactly one owner is on record": 1,
    "nothing of the move is left at its target": 1,
    "the directory says that its session is lost, and its node silent": 1,
    "the node comes back, and is empty": 1,
    "the client saw consecutive blocks": 1,
    "every block equals the twin's (state and frames)": 1,
    "every container ended by itself, with status 0": 1,
    "worlds were live when it was stopped": 1,
    "nothing is left behind": 1,
}


@pytest.mark.timeout(1_500)
def test_three_nodes_in_containers(image: str) -> None:
    # 64 MiB of /dev/shm are what an engine gives whom nobody has asked.
    env = {**os.environ, "WORLDLINE_SHM_SIZE": "64m"}
    command = [sys.executable, str(ROOT / "docker" / "demo.py"), "--image", image, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1_400, check=False
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    sys.stdout.write(done.stdout)
    broken = [check for check in told["checks"] if not check["held"]]
    assert not broken, done.stderr
    assert done.returncode == 0
    names = [check["name"] for check in told["checks"]]
    assert {name: names.count(name) for name in EXPECTED} == EXPECTED
    shared = next(check for check in told["checks"] if check["name"].startswith("within a node"))
    assert shared["found"].endswith(" of 64 MiB")
    outcomes = [move["outcome"] for move in told["moves"]]
    assert outcomes == ["committed", "committed", "aborted", "committed"]
