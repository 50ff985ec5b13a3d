"""Doctor: what is wrong with a node or a fleet, why it matters, and the line that mends it."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, NamedTuple, TypeVar

import grpc
import typer

from worldline.cli import doctor_ask
from worldline.cli.common import JsonOption, PlacementOption, connected, placement_address, run
from worldline.cli.doctor_output import document, path_line, print_found
from worldline.cli.output import err_console, print_json
from worldline.cli.quantities import duration_ms, state_bytes
from worldline.doctor.examination import (
    EVERYTHING,
    Examination,
    Examined,
    Part,
    exit_status_of,
    judge,
)
from worldline.doctor.facts import MOVER
from worldline.doctor.lanecheck import Path
from worldline.doctor.pairs import ordered_pairs
from worldline.errors import InvalidInput, NotFound
from worldline.rpc.channel import open_channel

_Number = TypeVar("_Number", int, float)
_PARTS = ", ".join(part.value for part in Part)


class _Wish(NamedTuple):
    """How a fleet is to be looked at."""

    answer_s: float
    measure_s: float
    push_bytes: int
    measure: bool


def doctor(
    placement: PlacementOption = "",
    only: Annotated[
        str, typer.Option(metavar="PARTS", help=f"Only these, separated by commas: {_PARTS}.")
    ] = "",
    here: Annotated[
        bool, typer.Option("--here", help="This node alone, also where a cluster runs.")
    ] = False,
    measure: Annotated[
        bool, typer.Option(help="Push random bytes from node to node, and say how fast they were.")
    ] = True,
    within: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest that measuring may take.")
    ] = "60s",
    patience: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest that one process may take to answer.")
    ] = "3s",
    push: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest push that measures.")
    ] = "16MiB",
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong, why it matters, and the line that mends it.

    With a cluster (--placement, WORLDLINE_PLACEMENT, or a local one that runs)
    of every process of it, and of the lanes between its nodes, which it
    measures; else of this node alone, as a mover would find it. A measurement
    waits for nobody: while moves use a wire it is refused, and the answer says
    so.

    Exit status 0: nothing wrong; 1: works, but slowly or not for everybody; 7:
    something cannot work.
    """

    async def work() -> int:
        parts = _parts(only)
        wish = _Wish(
            answer_s=_at_most(duration_ms(patience, "--patience"), 60e3, "--patience 60s") / 1e3,
            measure_s=duration_ms(within, "--within") / 1e3,
            push_bytes=_at_most(state_bytes(push, "--push"), 1 << 30, "--push 1GiB"),
            measure=measure and Part.LANES in parts,
        )
        if here or not _has_cluster(placement):
            found = Examination((await _here(),))
            scope = "node"
        else:
            found, scope = await _fleet(placement, wish), "fleet"
        findings = judge(found, parts)
        if as_json:
            print_json(document(scope, found, findings))
        else:
            print_found(found, findings)
        return exit_status_of(findings)

    run(work)


def _at_most(value: _Number, most: _Number, said: str) -> _Number:
    if value > most:
        raise InvalidInput(f"{said} is the most that can be asked for", field=said.split()[0])
    return value


def _parts(only: str) -> frozenset[Part]:
    if not only:
        return EVERYTHING
    try:
        return frozenset(Part(name.strip()) for name in only.split(","))
    except ValueError:
        raise InvalidInput(
            f"--only takes parts of {_PARTS}, separated by commas; got {only!r}", field="--only"
        ) from None


def _has_cluster(placement: str) -> bool:
    if placement or os.environ.get("WORLDLINE_PLACEMENT"):
        return True
    try:
        placement_address("")
    except NotFound:
        return False
    return True


async def _here() -> Examined:
    _say("looking at this node, as a mover would ...")
    return await doctor_ask.here()


async def _fleet(placement: str, wish: _Wish) -> Examination:
    address = placement_address(placement)
    async with connected(address) as client, open_channel(address) as channel:
        nodes = await client.nodes()  # says that it waits, where placement does not answer yet
        _say(f"asking the {2 + len(nodes) + sum(len(n.engines) for n in nodes)} processes ...")
        processes = sorted(
            [one async for one in doctor_ask.fleet(channel, wish.answer_s)],
            key=lambda one: (one.node_id, one.service != MOVER, one.service, one.instance),
        )
        engines = {
            engine.engine_id: (engine.fingerprint, engine.facts)
            for node in nodes
            for engine in node.engines
        }
        movers = [one.node_id for one in processes if one.service == MOVER and one.facts]
        paths = await _paths(channel, movers, wish) if wish.measure else ()
    return Examination(tuple(processes), paths, engines)


async def _paths(channel: grpc.aio.Channel, nodes: list[str], wish: _Wish) -> tuple[Path, ...]:
    """One after the other: two at once would measure each other."""
    pairs = ordered_pairs(nodes)
    until_s = asyncio.get_running_loop().time() + wish.measure_s
    paths = []
    for number, (source, target) in enumerate(pairs, 1):
        if asyncio.get_running_loop().time() >= until_s:
            late = f"measuring had taken {wish.measure_s:g} s by then; give it more with --within"
            paths.append(Path(source, target, refused=late))
            continue
        paths.append(await doctor_ask.path(channel, source, target, wish.push_bytes))
        _say(f"path {number} of {len(pairs)}: {path_line(paths[-1])}")
    return tuple(paths)


def _say(text: str) -> None:
    err_console.print(text, markup=False, highlight=False)
