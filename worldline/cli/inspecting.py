"""Inspect: which parts of its state a live session writes, and by which rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from worldline.cli.common import JsonOption, PlacementOption, SessionArgument, connected, run
from worldline.cli.figures import check_figures, write_figure
from worldline.cli.heat_figure import draw_heat
from worldline.cli.inspect_output import inspected_jsonable, print_inspected
from worldline.cli.output import err_console, exit_status, print_json
from worldline.cli.quantities import duration_ms, state_bytes
from worldline.errors import InvalidInput
from worldline.fields import whole
from worldline.sdk import Inspected
from worldline.sdk.inspecting import BOUNDARIES_MAX
from worldline.state.boundary import Boundary


def inspect(
    session_id: SessionArgument,
    boundaries: Annotated[
        int,
        typer.Option(
            help=f"Block boundaries to look at, 2 to {BOUNDARIES_MAX}: one more than blocks."
        ),
    ] = 9,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest wait for a block: 500ms, 30s.")
    ] = "30s",
    granule: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="What is told apart, a power of two from 128B to 1MiB; finer takes longer to "
            "read. Default: the finest of which the state has 131,072 at most.",
        ),
    ] = "0",
    by_leaf: Annotated[
        bool, typer.Option("--leaves", help="A line for every leaf, not for groups of them.")
    ] = False,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw the slot over the blocks, .png or .svg.")
    ] = None,
    placement: PlacementOption = "",
    as_json: JsonOption = False,
) -> None:
    """Watch which parts of its state a session's blocks write, and tell the update rule.

    Its engine digests the state at block boundaries while it plays; somebody
    must play it meanwhile. The world waits for each digest, a few milliseconds
    on a CPU, and plays on as if nobody had looked.

    DIRTY is what a block changes, of all bytes: what a copy made one block ago
    would have to ship again. REWRITTEN is what it changes of the bytes that had
    been written before: 0.000 of an append-only cache, however large the append.

    What was seen is printed also when it ends early, with the reason; the exit
    status is then that of the reason: 5 when no block was generated in time.

    For example:
    worldline inspect session-1 --boundaries 17 --png heat.png
    """

    async def work() -> int:
        whole(boundaries, "--boundaries", at_least=2, at_most=BOUNDARIES_MAX)
        wait_s, granule_bytes = duration_ms(wait, "--wait") / 1e3, _granule_bytes(granule)
        check_figures([] if png is None else [png], "--png")
        async with connected(placement) as client:
            with err_console.status("looking at the session ...") as status:

                def say(boundary: Boundary) -> None:
                    status.update(f"at block {boundary.block_index}, waiting for the next ...")

                inspected = await client.inspect(
                    session_id,
                    boundaries=boundaries,
                    granule_bytes=granule_bytes,
                    wait_s=wait_s,
                    by_leaf=by_leaf,
                    on_boundary=say,
                )
        if png is not None:
            write_figure(draw_heat(inspected.inspection, _title(inspected), "--png"), png)
        if as_json:
            print_json(inspected_jsonable(inspected))
        else:
            print_inspected(inspected)
        return 0 if inspected.stopped is None else exit_status(inspected.stopped)

    run(work)


def _title(inspected: Inspected) -> str:
    info = inspected.session
    return f"{info.session_id} ({info.world.preset}) on {info.node_id}"


def _granule_bytes(text: str) -> int:
    """In bytes; 0 leaves it to the state.

    Raises:
        InvalidInput: no size; whether it suits the state its engine says.
    """
    if text == "0":
        return 0
    granule_bytes = state_bytes(text, "--granule")
    if not math.log2(granule_bytes).is_integer():
        raise InvalidInput(
            f"--granule must be a power of two from 128B to 1MiB; got {text!r}", field="--granule"
        )
    return granule_bytes
