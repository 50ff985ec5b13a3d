"""Fault 32 on a real link: a lane far below the others is named, and admission knows it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fabric.namespaces import Port, fabric_of, inside

pytestmark = [pytest.mark.usefixtures("fabric_possible"), pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
RATE_BITS_PER_S, SLOW_BITS_PER_S = 100_000_000, 5_000_000
LIMIT_S = 280


def test_a_node_that_sends_at_a_twentieth_of_the_rate(tmp_path: Path) -> None:
    """Its bytes are right; nobody but a measurement would know."""
    slow = {"c": SLOW_BITS_PER_S}
    fabric_path, result_path = tmp_path / "fabric.json", tmp_path / "result.json"
    with fabric_of(("a", "b", "c"), Port(RATE_BITS_PER_S), slow) as fabric:
        fabric_path.write_text(json.dumps(dataclasses.asdict(fabric)))
        command = [sys.executable, "-m", "tests.fabric.slowlane", str(fabric_path)]
        done = subprocess.run(
            inside(fabric.driver.namespace, [*command, str(result_path)]),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(result_path.read_text())
    document, rates = found["document"], found["rates"]
    paths = {f"{p['source_node_id']} to {p['target_node_id']}": p for p in document["paths"]}
    assert len(paths) == 6
    for path in paths.values():
        assert path["lanes"] == ["tcp/fabric"]
        # Buckets let a few hundredths of a push pass at once; no link carries more.
        limit = SLOW_BITS_PER_S if path["source_node_id"] == "c" else RATE_BITS_PER_S
        largest = path["pushes"][-1]
        assert largest["size_bytes"] >= 1 << 20
        assert largest["size_bytes"] / largest["duration_ms"] * 1e3 < limit / 8 * 1.2, path
    named = [one for one in document["findings"] if one["code"] == "LANE_SLOW"]
    assert {"c to a", "c to b"} <= {one["subject"] for one in named}
    assert {one["field"] for one in named} == {"fabric"}
    assert found["status"] == 1
    # Admission has the same measurement, and nothing else to go by.
    for name in ("c to a", "c to b"):
        assert rates[name] < RATE_BITS_PER_S / 8 / 3
        assert rates[name] < rates["a to b"]
