"""The command line against an in-process placement; each command in its own event loop."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.unit.sdk.fakes import Stage
from worldline.cli.app import app
from worldline.errors import Unavailable
from worldline.v1 import move_pb2, placement_pb2

COMMANDS = [str(one.name) for one in (*app.registered_commands, *app.registered_groups) if one.name]


class Behind:
    """A stage that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.stage = self._call(Stage.build())

    def _call(self, work: object) -> Stage:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)  # type: ignore[arg-type]

    def close(self) -> None:
        self._call(self.stage.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    behind = Behind()
    yield behind.stage
    behind.close()


def invoke(*arguments: str, stage: Stage | None = None) -> Result:
    named = ["--placement", stage.address] if stage is not None else []
    return CliRunner().invoke(app, [*arguments, *named])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help_lists_every_command_and_exit_status() -> None:
    output = invoke("--help").output
    assert len(COMMANDS) == len(app.registered_commands) + len(app.registered_groups) > 20
    assert all(command in output for command in COMMANDS)
    epilog = output.partition("Exit status:")[2]
    assert {str(status) for status in (*range(8), 130, 143)} <= set(epilog.split())


def test_the_version() -> None:
    assert re.fullmatch(r"worldline \d+\.\d+\.\d+\n", invoke("--version").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("move",),
        ("play", "s", "--blocks", "0"),
        ("up", "--nodes", "x"),
        ("up", "--nodes", "-1"),
        ("up", "--log-level", "loud"),
        ("trace",),
        ("drain",),
        ("undrain",),
    ],
)
def test_a_wrong_command_line_is_status_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("open", "--horizon-ms", "0"), "contract.horizon_ms"),
        (("open", "--horizon-ms", "nan"), "contract.horizon_ms"),
        (("open", "--class", "c9"), "contract.service_class"),
        (("open", "--class", "c4", "--tier", "t2"), "contract.determinism_tier"),
        (("play", "s", "--keys", "Q"), "action.keyboard"),
        (("up", "--slot-mb", "0"), "--slot-mb"),
        (("up", "--slot-mb", "nan"), "--slot-mb"),
        (("up", "--slot-mb", "inf"), "--slot-mb"),
        (("up", "--slot-mb", "1e9"), "--slot-mb"),
        (("up", "--nodes", "1", "--devices", "cpu,cpu"), "devices"),
        (("demo", "--devices", "cpu,cpu,cpu"), "devices"),
        (("demo", "--out", "/dev/null"), "--out"),
        (("demo", "--out", "/dev/null/frames"), "--out"),
        (("bench", "move", "--preset", "huge"), "--preset"),
        (("bench", "move", "--json", "/nowhere/at/all.json"), "--json"),
        (("doctor", "--only", "lanes,luck"), "--only"),
        (("move", "s", "--timeout-s", "0"), "--timeout-s"),
        (("watch", "m", "--timeout-s", "-1"), "--timeout-s"),
        (("fork", "s", "--timeout-s", "nan"), "--timeout-s"),
        (("suspend", "s", "--timeout-s", "0"), "--timeout-s"),
        (("resume", "s", "--timeout-s", "inf"), "--timeout-s"),
        (("trace", "m", "--svg", "/nowhere/at/all.svg"), "--svg"),
        (("nodes", "--placement", "foo"), "placement"),
        (("nodes", "--placement", "bar:99999"), "placement"),
        (("play", "s", "--png", "/"), "--png"),
        (("play", "s", "--png", "/nowhere/at/all.png"), "--png"),
    ],
)
def test_bad_input_names_its_field(arguments: tuple[str, ...], field: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert f"[{field}]" in result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WORLDLINE_PLACEMENT", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    result = invoke("nodes")
    assert result.exit_code == 4
    assert "NO_CLUSTER" in result.stderr


def test_placement_by_environment(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    monkeypatch.setenv("WORLDLINE_PLACEMENT", stage.address)
    assert invoke("open").stdout.strip() == "session-1"


def test_open_as_json(stage: Stage) -> None:
    result = invoke("open", "--json", "--seed", "3", "--class", "c3", stage=stage)
    assert json.loads(result.stdout)["session_id"] == "session-1"
    request = stage.placement.calls[0][1]
    assert request.world.seed == 3
    assert request.contract.service_class == 4


def test_a_reject_is_status_3(stage: Stage) -> None:
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_FULL, explanation="no slot is free"
    )
    result = invoke("open", stage=stage)
    assert result.exit_code == 3
    assert result.stderr.strip() == "worldline: DEVICE_FULL: no slot is free"


def _done(phase: int = move_pb2.MOVE_PHASE_DONE) -> placement_pb2.MoveSessionResponse:
    return placement_pb2.MoveSessionResponse(
        move=move_pb2.MoveRecord(
            move_id="move-1",
            session_id="session-1",
            phase=phase,
            verdict=move_pb2.Verdict(admitted=True, explanation="fits"),
            timings=[move_pb2.PhaseTiming(name="freeze", duration_ms=1.25)],
            source_digest=0xAB,
            target_digest=0xAB,
        )
    )


def test_move_shows_phases_verdict_and_digests(stage: Stage) -> None:
    progress = placement_pb2.MoveProgress(
        phase=move_pb2.MOVE_PHASE_FROZEN, sent_bytes=1, total_bytes=2
    )
    stage.placement.move_events = [
        placement_pb2.MoveSessionResponse(progress=progress),
        _done(),
    ]
    result = invoke("move", "session-1", "node-1", stage=stage)
    assert result.exit_code == 0
    assert "frozen" in result.stderr
    assert "" not in result.stderr.splitlines(), "no terminal: no bar, and no line of one"
    for text in ("committed", "admitted: fits", "freeze", "1.2", "00000000000000ab", "equal"):
        assert text in result.stdout


def test_a_move_says_what_it_saves(stage: Stage) -> None:
    stage.placement.move_events = [_done()]
    assert invoke("move", "session-1", "--saves", "1.5s", stage=stage).exit_code == 0
    (request,) = [one for name, one in stage.placement.calls if name == "MoveSession"]
    assert request.saves_ms == 1_500.0
    for wrong in ("300", "soon", "-1s"):
        result = invoke("move", "session-1", "--saves", wrong, stage=stage)
        assert result.exit_code == 2
        assert "--saves" in result.stderr
    usage = invoke("move", "--help", stage=stage).stdout
    assert "SAVES_TOO_LITTLE" in usage
    assert "WIRE_TOO_LATE" in usage


def test_a_withdrawn_move_says_when_to_ask_again(stage: Stage) -> None:
    rejected = _done(move_pb2.MOVE_PHASE_REJECTED)
    rejected.move.verdict.CopyFrom(
        move_pb2.Verdict(
            reason=move_pb2.REJECT_REASON_WIRE_TOO_LATE,
            explanation="two moves are ahead",
            retry_after_ms=270,
        )
    )
    stage.placement.move_events = [rejected]
    result = invoke("move", "session-1", stage=stage)
    assert result.exit_code == 3
    assert "rejected (WIRE_TOO_LATE)" in result.stdout
    assert "ask again in 270 ms" in result.stdout


def test_move_as_json(stage: Stage) -> None:
    stage.placement.move_events = [_done(move_pb2.MOVE_PHASE_ABORTED)]
    result = invoke("move", "session-1", "--json", stage=stage)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["outcome"] == "aborted"


def test_a_move_that_outlasts_its_client_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldline.cli.moves._LAST_LOOK_S", 60.0)
    stage.placement.move_hangs = True
    stage.placement.moves[0].phase = move_pb2.MOVE_PHASE_FROZEN
    result = invoke("move", "session-1", "--timeout-s", "0.2", stage=stage)
    assert result.exit_code == 5
    assert "move-1 goes on without you: `worldline moves --session session-1`" in result.stderr
    assert "did not end within 0.2 s" in result.stderr


def test_ctrl_c_leaves_a_move_that_goes_on(stage: Stage) -> None:
    stage.placement.move_hangs = True
    stage.placement.moves[0].phase = move_pb2.MOVE_PHASE_FROZEN
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from worldline.cli import moves; moves._LAST_LOOK_S = 60.0; "
        "from worldline.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code, "move", "session-1", "--placement", stage.address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        assert stage.placement.move_began.wait(60)
        client.send_signal(signal.SIGINT)
        _, said = client.communicate(timeout=60)
    assert client.returncode == 130
    assert "move-1 goes on without you: `worldline moves --session session-1`" in said
    assert "Traceback" not in said


def test_a_move_names_its_ends_and_its_trace(stage: Stage) -> None:
    done = _done()
    done.move.source_engine_id, done.move.target_engine_id = "node-0-cpu", "node-1-cpu"
    stage.placement.move_events = [done]
    result = invoke("move", "session-1", stage=stage)
    assert "from node-0-cpu to node-1-cpu" in result.stdout
    assert "worldline trace move-1" in result.stdout


def test_moves_of_an_unknown_session(stage: Stage) -> None:
    stage.placement.moves.clear()
    assert invoke("moves", "--session", "session-1", stage=stage).exit_code == 0
    result = invoke("moves", "--session", "nope", stage=stage)
    assert result.exit_code == 4
    assert "[session_id]" in result.stderr


def test_a_dead_placement_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldline.cli.common._SAY_WAITING_S", 0.01)
    result = invoke("nodes", "--placement", "127.0.0.1:1")
    assert result.exit_code == 5
    first, last = result.stderr.splitlines()
    assert first == "waiting for placement at 127.0.0.1:1 ..."
    assert "no placement answers at 127.0.0.1:1; is `worldline up` running?" in last


def test_an_unknown_session_is_status_4(stage: Stage) -> None:
    result = invoke("move", "nobody", stage=stage)
    assert result.exit_code == 4
    assert "[session_id]" in result.stderr


def test_play_prints_blocks_and_a_strip(stage: Stage, tmp_path: Path) -> None:
    png = tmp_path / "strip.png"
    stage.placement.script["RegisterState"] = [Unavailable("first try")]
    result = invoke("play", "session-1", "--blocks", "2", "--png", str(png), stage=stage)
    assert result.exit_code != 0  # the fake's manifest is empty: refused, not guessed
    assert "Traceback" not in result.stderr
    assert not png.exists()


def test_listings_as_json(stage: Stage) -> None:
    for command in ("nodes", "sessions", "moves"):
        result = invoke(command, "--json", stage=stage)
        assert result.exit_code == 0, result.stderr
        assert isinstance(json.loads(result.stdout), list)
    assert set(json.loads(invoke("status", "--json", stage=stage).stdout)) == {
        "nodes",
        "sessions",
        "moves",
        "placement",
    }


def test_nodes_say_what_quanta_take_and_where_that_was_measured(stage: Stage) -> None:
    text = invoke("nodes", stage=stage).stdout
    assert "mg2/full" in text
    assert "93.9 (93.9)" in text
    (node,) = json.loads(invoke("nodes", "--json", stage=stage).stdout)
    (row,) = node["engines"][0]["rows"]
    assert row["shape"] == {"preset": "mg2", "decode_tier": "FULL"}
    assert row["binding"] == {"cpus": [0, 1, 2, 3], "numa_node": 0}
    assert (row["age_ms"], row["closing"]["p95_ms"]) == (2_400.0, 93.9)


def test_nodes_as_json_say_their_devices(stage: Stage) -> None:
    (node,) = json.loads(invoke("nodes", "--json", stage=stage).stdout)
    cpu, gpu = node["devices"]
    assert (cpu["name"], cpu["uuid"], cpu["numa_node"]) == ("cpu", "", None)
    assert (gpu["numa_node"], gpu["nvlink_peers"]) == (1, ["GPU-peer"])
    assert gpu["pcie_peers"] == ["GPU-beside"]
    assert node["engines"][0]["device_uuid"] == gpu["uuid"]


def test_listings_as_tables(stage: Stage) -> None:
    assert "session-1" in invoke("sessions", stage=stage).stdout
    nodes = invoke("nodes", stage=stage).stdout
    for cell in ("node-0", "cpu", "3/4", "cuda:1 GPU-6a1b2c3d", "1/2", "cuda:0 GPU-6a1b2c3d"):
        assert cell in nodes
    assert "move-1" in invoke("status", stage=stage).stdout


def test_sessions_say_how_their_blocks_were_served_where_any_was_not_at_its_best(
    stage: Stage,
) -> None:
    (session,) = json.loads(invoke("sessions", "--json", stage=stage).stdout)
    assert session["block_counts"] is None
    counts = placement_pb2.BlockCounts(blocks=90)
    stage.world.block_counts = counts
    assert "DEGRADED" not in invoke("sessions", stage=stage).stdout
    counts.MergeFrom(
        placement_pb2.BlockCounts(degraded_blocks=31, releases_skipped=7, missed_periods=5)
    )
    text = invoke("sessions", stage=stage).stdout
    assert re.search(r"BYTES +DEGRADED +SKIPPED +LATE", text)
    assert re.search(r"session-1 .* 31 +7 +5", text)
    (session,) = json.loads(invoke("sessions", "--json", stage=stage).stdout)
    assert session["block_counts"] == {
        "blocks": 90,
        "degraded_blocks": 31,
        "releases_skipped": 7,
        "missed_periods": 5,
    }


def test_a_waterfall(stage: Stage) -> None:
    result = invoke("trace", "move-1", stage=stage)
    assert result.exit_code == 0
    assert "mover.push" in result.stdout
    assert json.loads(invoke("trace", "move-1", "--json", stage=stage).stdout)["trace_id"] == "t"


def test_a_trace_that_is_gone(stage: Stage) -> None:
    stage.placement.spans.clear()
    result = invoke("trace", "move-1", stage=stage)
    assert result.exit_code == 4
    assert "TRACE_GONE" in result.stderr
