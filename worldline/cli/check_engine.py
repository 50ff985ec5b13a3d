"""Check engine: whether a model of your own is one whose worlds can move."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from worldline.cli.common import JsonOption, run
from worldline.cli.elapsed import Elapsed, lines
from worldline.cli.output import console, print_json, print_table
from worldline.cli.quantities import duration_ms
from worldline.devicename import CPU, device_name
from worldline.errors import InvalidInput, Unavailable

#: What runs the checks: an engine's own code, in a process of its own.
_MODULE = "services.engine.check"
#: Longest line that it writes.
_LINE_BYTES = 4 << 20
_END_S = 10.0
_FAILED = "failed"


def check_engine(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS", help="For example my_pkg.worlds:MyWorld; or a built-in preset."
        ),
    ],
    blocks: Annotated[
        int, typer.Option(min=1, max=1_000, help="Blocks before the state is captured, and after.")
    ] = 3,
    device: Annotated[str, typer.Option(help="Where it computes: cpu, cuda:0.")] = CPU,
    threads: Annotated[int, typer.Option(min=1, max=1_024, help="Compute threads.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the session.")] = 7,
    weights_seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    leaves: Annotated[
        int, typer.Option(min=1, help="Most tensors of the state that are perturbed, one by one.")
    ] = 64,
    within: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest that all of it may take.")
    ] = "900s",
    as_json: JsonOption = False,
) -> None:
    """Check a model: is everything that decides its next frame in its state?

    The model runs as in an engine, in slots of its own memory, no cluster
    needed. Its state is captured, and goes on in a process that knows nothing
    else; sessions take turns; leaves are changed one by one. Its package must
    be installed or on PYTHONPATH.

    Exit status 0: every check held, or warned; 1: one failed; 2: the model
    cannot be loaded.
    """

    async def work() -> int:
        limit_s = duration_ms(within, "--within") / 1e3
        options = {
            "blocks": blocks,
            "device": device_name(device, "device"),
            "threads": threads,
            "seed": seed,
            "weights-seed": weights_seed,
            "leaves": leaves,
            "answer-s": limit_s,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        report = await _report(model, arguments, limit_s)
        if as_json:
            print_json(report)
        else:
            _print(report)
        return 1 if any(one["outcome"] == _FAILED for one in report["findings"]) else 0

    run(work)


async def _report(model: str, arguments: list[str], limit_s: float) -> dict[str, Any]:
    """All findings; which check runs, and for how long, is told on stderr meanwhile.

    Raises:
        InvalidInput: the model cannot be loaded. Unavailable: nothing was found out.
    """
    report: dict[str, Any] = {"model": model, "sample": "", "findings": []}
    asking = ""
    with Elapsed(f"loading {model}") as shown:
        async with _checking(model, arguments) as process:
            try:
                async with asyncio.timeout(limit_s):
                    async for said in _said(process, shown):
                        asking = _heard(report, said, shown, asking)
                    status = await process.wait()
                    ended = f"the process ended with status {status} while this ran"
            except TimeoutError:
                ended = (
                    f"not done within {limit_s:g} s; give it more with --within, or fewer --leaves"
                )
    if asking:
        report["findings"].append(_unfinished(asking, ended))
    elif not report["findings"]:
        raise Unavailable(f"{model} was not loaded: {ended}", reason="CHECK_PROCESS_DIED")
    return report


def _heard(report: dict[str, Any], said: dict[str, Any], shown: Elapsed, asking: str) -> str:
    """Put it into the report; returns the check that runs now.

    Raises:
        InvalidInput: the model cannot be loaded.
    """
    if "error" in said:
        raise InvalidInput(said["error"], reason=said["reason"], field=said["field"])
    if "progress" in said:
        shown.detail(said["progress"])
        return asking
    if "check" in said:
        report["findings"].append(said)
    elif "preset" in said:
        report |= {name: said[name] for name in ("preset", "device", "sample")}
    elif "begin" in said:
        shown.begin(f"{len(report['findings'])} checks done; {said['begin']}")
    return str(said.get("begin", ""))


@asynccontextmanager
async def _checking(model: str, arguments: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process that checks; gone at the end, whatever happened."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _MODULE,
        *arguments,
        "--",
        model,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
        limit=_LINE_BYTES,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _said(
    process: asyncio.subprocess.Process, shown: Elapsed
) -> AsyncIterator[dict[str, Any]]:
    if process.stdout is None:
        raise Unavailable("the process that checks has no stdout")
    async for line in lines(process.stdout, shown):
        yield json.loads(line)


def _unfinished(check: str, ended: str) -> dict[str, str]:
    return {
        "check": check,
        "outcome": _FAILED,
        "evidence": ended,
        "remedy": "what it said is above, on stderr",
    }


def _print(report: dict[str, Any]) -> None:
    findings = report["findings"]
    print_table(
        ("CHECK", "OUTCOME", "EVIDENCE"),
        [(one["check"], one["outcome"], one["evidence"]) for one in findings],
    )
    for one in findings:
        if one["remedy"]:
            console.print(f"\n{one['check']}: {one['remedy']}", markup=False, highlight=False)
    outcomes = [one["outcome"] for one in findings]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
    of = f" (of {report['sample']})" if report["sample"] else ""
    console.print(f"\n{report['model']}: {counts}{of}", markup=False, highlight=False)
