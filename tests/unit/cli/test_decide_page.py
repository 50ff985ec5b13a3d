"""The examples of docs/decide.md run, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worldline.cli.app import app

PAGE = (Path(__file__).parents[3] / "docs/decide.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
SHOWN = re.findall(r"```console\n([^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
REJECTED = "worldline decide --rate 25Gb/s --setup 19ms --dirty-rate 0"


@pytest.fixture(autouse=True)
def _beside_the_objects_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (objects,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "objects.toml").write_text(objects)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "worldline"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == (3 if command == REJECTED else 0), result.output


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_the_page_shows_what_is_printed(command: str, shown: str) -> None:
    printed = CliRunner().invoke(app, shlex.split(command)[1:]).stdout.splitlines()
    lines = shown.splitlines()
    assert [line.rstrip() for line in printed[: len(lines)]] == lines


def test_the_page_has_examples_of_both_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"decide", "map"}
    assert len(SHOWN) == 3
