"""The commands over runs: what they say, and their exit status."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.unit.cli.test_commands import invoke
from tests.unit.recording.runs import GRANULE_BYTES, LAYOUT, digests, run
from worldline.recording.directory import LOG_NAME, RunWriter
from worldline.recording.run import Run
from worldline.sdk import Action

SECOND = LAYOUT.tensors[1]


def written(path: Path, made: Run) -> str:
    with RunWriter(path, made.header) as writer:
        for block in made.blocks:
            writer.append(block)
    return str(path)


def flipped(index: int) -> Run:
    """The run with one byte of the second leaf behind a block that is otherwise."""
    made = run()
    blocks = list(made.blocks)
    other = digests(index + 1, flip=SECOND.offset_bytes + 70, block_index=index + 1)
    blocks[index] = dataclasses.replace(blocks[index], digests=other)
    return dataclasses.replace(made, blocks=tuple(blocks))


def test_equal_runs_are_said_to_be(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", run()), written(tmp_path / "other", run())
    result = invoke("diff", one, other)
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "equal: 4 blocks of tiny, seed 7, from block 0 on, every byte of the state and the frames\n"
    )
    said = json.loads(invoke("diff", one, other, "--json").stdout)
    assert said == {"one": one, "other": other, "equal": True, "difference": None}


def test_the_first_block_leaf_and_granule_that_differ_are_named(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", run()), written(tmp_path / "other", flipped(2))
    granule = (SECOND.offset_bytes + 70) // GRANULE_BYTES
    result = invoke("diff", one, other)
    assert result.exit_code == 6
    assert result.stdout == (
        f"state: behind block 2: leaf {SECOND.path} differs, first in granule {granule}\n"
    )
    found = json.loads(invoke("diff", one, other, "--json").stdout)
    assert not found["equal"]
    assert found["difference"] == {
        "kind": "state",
        "message": f"behind block 2: leaf {SECOND.path} differs, first in granule {granule}",
        "block_index": 2,
        "leaf": SECOND.path,
        "granule": granule,
        "granule_bytes": GRANULE_BYTES,
        "leaves_differing": 1,
    }


def test_runs_of_other_inputs_or_lengths_are_not_runs_whose_bytes_differ(tmp_path: Path) -> None:
    one, shorter = written(tmp_path / "one", run(4)), written(tmp_path / "shorter", run(3))
    result = invoke("diff", one, shorter)
    assert (result.exit_code, result.stdout) == (
        1,
        "length: equal for 3 blocks, where the second run ends; the first has 4\n",
    )
    assert "the first run ends; the second has 4" in invoke("diff", shorter, one).stdout
    made = run()
    pressed = dataclasses.replace(made.blocks[0], action=Action.keys("S"))
    other = written(
        tmp_path / "other", dataclasses.replace(made, blocks=(pressed, *made.blocks[1:]))
    )
    result = invoke("diff", one, other)
    assert (result.exit_code, "another action" in result.stdout) == (1, True)


def test_a_torn_line_is_left_out_and_said(tmp_path: Path) -> None:
    one, torn = written(tmp_path / "one", run(3)), written(tmp_path / "torn", run(4))
    log = Path(torn) / LOG_NAME
    log.write_bytes(log.read_bytes()[:-9])
    result = invoke("diff", one, torn)
    assert result.exit_code == 0
    assert f"{torn}: the last line is torn" in result.stderr
    assert "behind 3 blocks" in result.stderr


@pytest.mark.parametrize("command", ["diff", "replay"])
def test_what_is_no_run_is_named_in_one_line(command: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    arguments = [missing, missing] if command == "diff" else [missing]
    result = invoke(command, *arguments)
    assert result.exit_code == 4
    assert result.stderr.startswith("worldline: RUN_UNKNOWN [run]")
    one = written(tmp_path / "one", run(2))
    log = Path(one) / LOG_NAME
    log.write_text(log.read_text().replace('"steps":3', '"steps":0', 1))
    result = invoke(command, *([one, one] if command == "diff" else [one]))
    assert result.exit_code == 2
    assert f"[steps]: {log}:1: steps must be" in result.stderr


def test_bad_wishes_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    """No placement runs here."""
    there = written(tmp_path / "there", run(1))
    for arguments, field in (
        (["record", "--out", there], "out"),
        (["record", "--out", str(tmp_path / "new"), "--keys", "W,Q"], "action.keyboard"),
        (["record", "--out", str(tmp_path / "new"), "--mouse-dx", "2"], "action.mouse_dx"),
        (["replay", there, "--tier", "t2"], "--tier"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert f"[{field}]" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--preset=mg2", "--seed=0", "--node=node-1"])
def test_an_option_of_a_new_session_is_refused_where_one_is_named(
    tmp_path: Path, option: str
) -> None:
    result = invoke("record", "session-1", "--out", str(tmp_path / "run"), option)
    assert result.exit_code == 2
    name = option.split("=")[0]
    assert f"INVALID_INPUT [{name}]: {name} chooses a new session" in result.stderr
    assert not (tmp_path / "run").exists()
