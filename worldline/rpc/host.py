"""What every service process does around its own work: settings, signals, readiness, exit."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from worldline.errors import InvalidInput, WorldlineError
from worldline.hostport import check_advertised, listened

#: prctl(2): the signal this process gets when its parent dies.
_PR_SET_PDEATHSIG = 1
#: Objects made until the young are looked at, and how often those before the older ones are.
_COLLECT_AFTER = (20_000, 20, 20)


class ServiceSettings(BaseSettings):
    """Settings that all services share; each service subclasses with its own prefix."""

    model_config = SettingsConfigDict(env_prefix="WORLDLINE_", extra="forbid", frozen=True)

    listen: str = Field("127.0.0.1:0", description="host:port for gRPC; port 0 picks a free one")
    advertise: str = Field(
        "",
        validate_default=True,
        description="host:port that others dial; empty: the listen address, if that is one host's",
    )
    ready_fd: int = Field(-1, description="descriptor for one JSON line once serving; -1: none")
    die_with_parent: bool = Field(False, description="stop when the parent process dies")
    reflection: bool = Field(False, description="serve gRPC reflection")
    grace_s: float = Field(2.0, ge=0, le=60, description="time for calls in flight at shutdown")
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least")
    trace_store: str = Field(
        "", description="OTLP/gRPC address of the embedded trace store (placement's); empty: none"
    )
    metrics_listen: str = Field(
        "",
        description="host:port of GET /metrics for Prometheus; port 0 picks a free one; empty: off",
    )
    flush_s: float = Field(
        1.5, ge=0, le=60, description="time for the last spans and metrics at shutdown"
    )

    @field_validator("listen")
    @classmethod
    def _listenable(cls, value: str) -> str:
        try:
            listened(value)
        except InvalidInput as error:
            raise ValueError(error.message) from error
        return value

    @field_validator("advertise")
    @classmethod
    def _dialable(cls, value: str, info: ValidationInfo) -> str:
        listen = info.data.get("listen")  # absent where it is refused itself
        try:
            if listen is not None:
                check_advertised(listen, value)
        except InvalidInput as error:
            raise ValueError(error.message) from error
        return value


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(settings_class: type[SettingsT]) -> SettingsT:
    """Settings from the command line, else the environment, else the defaults.

    Exits with status 2 and one line per bad value on stderr: the variable, what it was, what it
    must be. `--help` describes every setting.
    """
    try:
        return CliApp.run(settings_class)
    except ValidationError as error:
        prefix = str(settings_class.model_config.get("env_prefix", ""))
        for each in error.errors():
            name = str(each["loc"][0]) if each["loc"] else "settings"
            sys.stderr.write(
                f"worldline: INVALID_INPUT ({name}): {_wrong(each)}; "
                f"set --{name.replace('_', '-')} or {prefix}{name.upper()}\n"
            )
        raise SystemExit(2) from None


def _wrong(found: ErrorDetails) -> str:
    """What is wrong with a setting, and what it was unless that is in the words already."""
    if found["type"] == "missing":
        return "it has no default"
    said, got = found["msg"].removeprefix("Value error, "), repr(found["input"])
    return said if got in said else f"{said}, got {got}"


def announce_ready(settings: ServiceSettings, address: str, metrics_address: str = "") -> None:
    """Tell the parent, once, that the service serves and where: one JSON line on `ready_fd`."""
    if settings.ready_fd < 0:
        return
    said = {"address": address, "pid": os.getpid(), "metrics_address": metrics_address}
    line = json.dumps(said) + "\n"
    with os.fdopen(settings.ready_fd, "w") as stream:
        stream.write(line)


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do a part of the start-up that may take long. False: `stop` came first, it is cancelled.

    Raises what `work` raises.
    """
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


def run_service(
    settings: SettingsT, serve: Callable[[SettingsT, asyncio.Event], Awaitable[None]]
) -> None:
    """Run `serve(settings, stop)` until it returns; SIGTERM and SIGINT set `stop`.

    Exits non-zero with one line on stderr when the service cannot work: the port, device or
    variable at fault is in the message.
    """
    _collect_less()
    if settings.die_with_parent:
        die_with_parent()
    try:
        asyncio.run(_until_stopped(settings, serve))
    except WorldlineError as error:
        where = f" ({error.field})" if error.field else ""
        sys.stderr.write(f"worldline: {error.reason}{where}: {error.message}\n")
        raise SystemExit(1) from error


def die_with_parent() -> None:
    """From now on this process gets SIGTERM when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _collect_less() -> None:
    """Collect garbage less often, and only among what was made since the start.

    Modules and classes live as long as the process: looking at all of them again and again costs
    a service a tenth of its time, at moments when a world may be waiting.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


async def _until_stopped(
    settings: SettingsT, serve: Callable[[SettingsT, asyncio.Event], Awaitable[None]]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.ensure_future(serve(settings, stop))
    stopped = asyncio.ensure_future(stop.wait())
    # A start-up that hangs must still die on SIGTERM: cancelled once the grace is over.
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not serving.done():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(serving), settings.grace_s + 10)
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
