"""`worldline doctor`: its document, its words, and the self-test of this node."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.smallshm import under_shm_of, why_not
from worldline.cli import doctor_ask
from worldline.cli.app import app
from worldline.cli.doctor_output import document, path_line, print_found
from worldline.doctor.clock import Offset
from worldline.doctor.examination import Examination, Examined, judge
from worldline.doctor.facts import MOVER, Interface, ProcessFacts
from worldline.doctor.lanecheck import Path as Lane
from worldline.doctor.lanecheck import Push

ROOT = Path(__file__).parents[3]
#: Three interpreters start one after the other, on a busy machine.
END_S = 110
ONE = ProcessFacts(
    MOVER,
    "node-1",
    "node-1",
    boot_id="a",
    versions={"worldline": "0.1.0"},
    devices=("cpu",),
    interfaces=(Interface("eth0", True, 80),),
    huge_pages_total=1,
)
FOUND = Examination(
    (
        Examined(MOVER, "node-1", "node-1", "h:1", ONE, Offset(1.5, 0.25)),
        Examined(MOVER, "node-2", "node-2", "h:2", reason="X", message="no answer within 3 s"),
        Examined(MOVER, "node-3", "node-3", "h:3", ProcessFacts(MOVER, "node-3", "node-3")),
    ),
    (
        Lane("node-1", "node-3", ("tcp/eth0",), (Push(10_000_000, 4000.0),)),
        Lane("node-3", "node-1", refused="RECEIVER_BUSY: one move is under way"),
    ),
)


def test_the_document_has_its_stable_shape() -> None:
    written = json.loads(json.dumps(document("fleet", FOUND, judge(FOUND))))
    assert written.keys() == {"version", "scope", "status", "processes", "paths", "findings"}
    assert (written["version"], written["scope"], written["status"]) == (1, "fleet", "errors")
    first, silent, _ = written["processes"]
    assert first["answered"]
    assert first["clock"] == {"offset_ms": 1.5, "uncertainty_ms": 0.25}
    assert first["facts"]["interfaces"][0]["name"] == "eth0"
    assert (silent["answered"], silent["facts"], silent["failure"]["reason"]) == (False, None, "X")
    path, refused = written["paths"]
    assert (path["rate_bytes_per_s"], path["link_bytes_per_s"]) == (2_500_000.0, 10_000_000.0)
    assert refused["pushes"] == []
    for finding in written["findings"]:
        assert finding.keys() == {
            "severity", "code", "subject", "field", "what", "why", "remedy",
        }  # fmt: skip
    assert [one["code"] for one in written["findings"]] == ["NO_ANSWER", "PATH_NOT_MEASURED"]


def test_people_are_told_what_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    findings = judge(FOUND)
    print_found(FOUND, findings)
    said = capsys.readouterr().out
    assert "no answer" in said
    assert "+1.5 ms +-0.2" in said
    assert "25%" in said
    for finding in findings:
        for text in (finding.code, finding.subject, finding.what, finding.why, finding.remedy):
            assert text in said
    print_found(Examination((FOUND.processes[0],)), ())
    assert "nothing is wrong" in capsys.readouterr().out


def test_a_path_in_one_line() -> None:
    assert path_line(FOUND.paths[0]) == "node-1 to node-3: 2.50 MB/s by tcp/eth0"
    assert path_line(FOUND.paths[1]).endswith("RECEIVER_BUSY: one move is under way")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "lanes,nothing"], "nothing"),
        (["--within", "soon", "--placement", "127.0.0.1:1"], "--within"),
        (["--push", "much", "--placement", "127.0.0.1:1"], "--push"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def doctor_here(*, shm: str = "", **environment: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "worldline.cli.main", "doctor", "--here", "--json"]
    done = subprocess.run(
        under_shm_of(shm, command) if shm else command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=END_S,
    )
    return done.returncode, json.loads(done.stdout)


def codes(written: dict[str, object]) -> list[str]:
    return [one["code"] for one in written["findings"]]  # type: ignore[attr-defined]


def test_this_node_with_a_variable_that_names_nothing() -> None:
    """Fault 33, before anybody starts a mover."""
    status, written = doctor_here(UCX_NET_DEVICES="nobody0")
    assert status == 7
    assert written["scope"] == "node"
    assert codes(written).count("UCX_NET_DEVICES_NOTHING") == 1


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_this_node_with_the_dev_shm_of_a_container() -> None:
    """Fault 34: UCX really starts, in a process of its own."""
    status, written = doctor_here(shm="64m")
    assert "SHARED_MEMORY_SMALL" in codes(written)
    assert status == 1, written["findings"]


async def test_a_self_test_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX may end the process that it is loaded into; the doctor's own lives on."""
    monkeypatch.setattr(doctor_ask, "_HERE", "import os; os.abort()")
    async with asyncio.timeout(END_S):
        silent = await doctor_ask.here()
    assert (silent.facts, silent.reason) == (None, "SELF_TEST_FAILED")
    told = """import os; print('{"service": "mover"}', flush=True); os.abort()"""
    monkeypatch.setattr(doctor_ask, "_HERE", told)
    async with asyncio.timeout(END_S):
        crashed = await doctor_ask.here()
    assert crashed.facts is not None
    assert crashed.reason == "UCX_CRASHED"
