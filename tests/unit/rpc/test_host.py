"""Service processes: bad settings are one clear line, a start-up that hangs still stops."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from worldline.errors import Unavailable
from worldline.rpc.host import ServiceSettings, load_settings, run_service


class Settings(ServiceSettings):
    """Settings of a test service."""

    model_config = SettingsConfigDict(env_prefix="WORLDLINE_TEST_")
    slots: int = Field(1, ge=1, description="slots")


class Needing(Settings):
    """Settings of which one has no default, and one says itself what is wrong with it."""

    home: str = Field(description="host:port of a peer")

    @field_validator("home")
    @classmethod
    def _no_place(cls, home: str) -> str:
        raise ValueError(f"home must be HOST:PORT, got {home!r}")


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["worldline-test"])


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_TEST_SLOTS", "3")
    assert load_settings(Settings).slots == 3


def test_the_command_line_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLINE_TEST_SLOTS", "3")
    monkeypatch.setattr("sys.argv", ["worldline-test", "--slots", "4"])
    assert load_settings(Settings).slots == 4


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_bad_value_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("WORLDLINE_TEST_SLOTS", value)
    with pytest.raises(SystemExit) as caught:
        load_settings(Settings)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "WORLDLINE_TEST_SLOTS" in said
    assert repr(value) in said
    assert said.count("\n") == 1


def test_what_is_wrong_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    way_out = "set --home or WORLDLINE_TEST_HOME\n"
    with pytest.raises(SystemExit):
        load_settings(Needing)
    said = capsys.readouterr().err
    assert said == f"worldline: INVALID_INPUT (home): it has no default; {way_out}"
    monkeypatch.setenv("WORLDLINE_TEST_HOME", "nowhere")
    with pytest.raises(SystemExit):
        load_settings(Needing)
    said = capsys.readouterr().err
    assert said.endswith(f"(home): home must be HOST:PORT, got 'nowhere'; {way_out}")


def test_what_cannot_work_exits_with_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        raise Unavailable("port 1 is taken", reason="LISTEN_FAILED", field="listen")

    with pytest.raises(SystemExit) as caught:
        run_service(Settings(), serve)
    assert caught.value.code == 1
    assert "LISTEN_FAILED (listen): port 1 is taken" in capsys.readouterr().err


def test_sigterm_ends_the_service_in_order() -> None:
    steps = []

    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        steps.append("stopped")

    run_service(Settings(), serve)
    assert steps == ["stopped"]
