"""Decide's options: what can be said about an object, a path and a grid.

Where the default is None, "not given" must be told apart from the default that the help shows:
what a mode does not read is refused rather than ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worldline.admissibility.schedule import VerificationPlacement
from worldline.cli import paper

_OBJECT = "The object"
_PATH = "The path"
_HANDLING = "How its bytes are handled"
_ESCAPES = "Must it move? The three escapes"
_GRID = "The grid"

State = Annotated[
    str, typer.Option(metavar="SIZE", help="S, what must move.", rich_help_panel=_OBJECT)
]
DirtyRate = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        help="D, what generation rewrites; 0 for a frozen source.",
        rich_help_panel=_OBJECT,
    ),
]
Horizon = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="H, the longest stall.",
        show_default=paper.HORIZON,
        rich_help_panel=_OBJECT,
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="B: of verified bytes, or of the bare wire with --digest-rate.",
        show_default=paper.RATE,
        rich_help_panel=_PATH,
    ),
]
Setup = Annotated[
    str,
    typer.Option(metavar="DURATION", help="Fixed cost of each move.", rich_help_panel=_PATH),
]
DigestRate = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="What the receiver's digest engine does.", rich_help_panel=_HANDLING
    ),
]
Verify = Annotated[
    VerificationPlacement | None,
    typer.Option(
        help="Where it digests: after the last byte, or beside the wire.",
        show_default=VerificationPlacement.PIPELINED.value,
        rich_help_panel=_HANDLING,
    ),
]
CodecRatio = Annotated[
    float | None,
    typer.Option(
        metavar="R",
        help="Bytes on the wire per byte of state of a lossless codec, e.g. 0.644.",
        rich_help_panel=_HANDLING,
    ),
]
CodecRate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Bytes of state that it encodes.", rich_help_panel=_HANDLING),
]
DecodeRate = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Bytes of state that it decodes.",
        show_default="as --codec-rate",
        rich_help_panel=_HANDLING,
    ),
]
ReducedTo = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Least that the target must hold to keep the contract, if not all of it.",
        rich_help_panel=_ESCAPES,
    ),
]
ReplayStep = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="One step of a replay at the target, where a replay there gives the same state: "
        "one architecture and one configuration, with its inputs at hand.",
        rich_help_panel=_ESCAPES,
    ),
]
HistorySteps = Annotated[
    int | None,
    typer.Option(min=0, help="Steps so far, all of them replayed.", rich_help_panel=_ESCAPES),
]
RestartOk = Annotated[
    bool,
    typer.Option("--restart-ok", help="The trajectory carries no value.", rich_help_panel=_ESCAPES),
]
Grid = Annotated[
    bool,
    typer.Option("--grid", help="Decide for each fabric and SLO.", rich_help_panel=_GRID),
]
Fabrics = Annotated[
    list[str] | None,
    typer.Option(
        "--fabric",
        metavar="NAME=RATE",
        help="A row; once for each. Default: the paper's.",
        rich_help_panel=_GRID,
    ),
]
Slos = Annotated[
    list[str] | None,
    typer.Option(
        "--slo",
        metavar="DURATION",
        help=f"A column, a horizon; once for each. Default: {', '.join(paper.SLOS)}.",
        rich_help_panel=_GRID,
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Moves that share a channel within one horizon.",
        show_default=str(paper.AT_ONCE),
        rich_help_panel=_GRID,
    ),
]
WarmShare = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="How often a move finds its target warm.",
        show_default="1",
        rich_help_panel=_GRID,
    ),
]
Figures = Annotated[
    list[Path] | None,
    typer.Option(
        "--figure", help="Draw the grid to a .png or .svg; once for each.", rich_help_panel=_GRID
    ),
]
