"""The bench on GPUs: every row that can be measured here is, on a small payload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.suite import BLANKS, PARKS
from worldline.cuda.devices import devices

ROOT = Path(__file__).parents[2]
#: Rows that one GPU is enough for.
ONE_IS_ENOUGH = {row.spec.name for row in (*PARKS, *BLANKS)}


@pytest.mark.timeout(400)
def test_every_row_is_measured_or_says_which_gpu_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    command = ("--quick", "--repeats", "2", "--only", "gpu.*", "--json", str(path))
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    document = json.loads(path.read_text())
    rows = {row["name"]: row for row in document["rows"]}
    assert document["machine"]["gpus"]["names"]
    enough = set(rows) if len(devices()) > 1 else ONE_IS_ENOUGH
    for name in enough:
        assert rows[name]["skipped"] is None, rows[name]
        assert rows[name]["value"] > 0, rows[name]
    for name in set(rows) - enough:
        assert rows[name]["value"] is None
        assert rows[name]["skipped"]
