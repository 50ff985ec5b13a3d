"""Run: makes a fabric, has a driver inside carry out one experiment, and removes everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fabric.cell import ShapedCell
from tests.fabric.namespaces import fabric_of, inside
from tests.fabric.order import Experiment, Order

_ROOT = Path(__file__).resolve().parents[2]


def run(experiment: Experiment, limit_s: float, cell: ShapedCell | None = None) -> dict[str, Any]:
    """What the experiment found.

    Raises:
        Unavailable: the fabric could not be made.
        AssertionError: the driver failed or was not done within the limit; with its last words.
    """
    cell = cell or ShapedCell()
    slow = {cell.slow_sender: cell.slow_egress_bits_per_s}
    with (
        fabric_of(cell.nodes, cell.port, slow) as fabric,
        tempfile.TemporaryDirectory(prefix="worldline-fabric-") as directory,
    ):
        order_path, result_path = Path(directory, "order.json"), Path(directory, "result.json")
        order_path.write_text(json.dumps(Order(cell, fabric, experiment).to_json()))
        command = [sys.executable, "-m", "tests.fabric.driver", str(order_path), str(result_path)]
        try:
            done = subprocess.run(
                inside(fabric.driver.namespace, command),
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"not done within {limit_s:g} s: {_tail(error.stderr)}") from None
        assert done.returncode == 0, f"the driver failed: {_tail(done.stderr)}"
        result: dict[str, Any] = json.loads(result_path.read_text())
        return result


def _tail(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    return text[-4_000:]
