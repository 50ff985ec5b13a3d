"""Map: where the user's own objects lie between hot, inadmissible and admissible."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worldline.cli import paper, quantities
from worldline.cli.common import JsonOption, run
from worldline.cli.figures import check_figures, write_figure
from worldline.cli.map_objects import check_distinct, parse_object, read_objects
from worldline.cli.output import console, print_json, print_table
from worldline.cli.regime_figure import draw_map
from worldline.cli.regimes import Located, MapObject, locate

_FIGURES = (Path("regime-map.png"), Path("regime-map.svg"))


def regime_map(
    objects: Annotated[
        list[str] | None,
        typer.Option(
            "--object",
            metavar="NAME=DIRTY@RATE",
            help="An object, for example mg2=0.93GB/s@100Gb/s; once for each.",
        ),
    ] = None,
    objects_path: Annotated[
        Path | None,
        typer.Option(
            "--objects", help="A .json or .toml file: objects with name, dirty_rate and rate."
        ),
    ] = None,
    with_paper: Annotated[
        bool, typer.Option("--paper", help="Add the paper's objects to yours.")
    ] = False,
    state: Annotated[str, typer.Option(metavar="SIZE", help="S, the state.")] = paper.STATE,
    horizon: Annotated[
        str, typer.Option(metavar="DURATION", help="H, the longest stall.")
    ] = paper.HORIZON,
    figures: Annotated[
        list[Path] | None,
        typer.Option(
            "--figure",
            help="File to draw to, .png or .svg; once for each. "
            f"Default: {' and '.join(map(str, _FIGURES))}.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the regime map: dirty rate over bandwidth, your own objects on it.

    Right of the deadline gate B = S/H + D a move is in time. Above the phase
    line D = B pre-copy never converges: only a frozen source can be moved.
    Without objects of yours the map shows the paper's (section 6.3, figure 2).

    For example:
    worldline map --object game=0.5GB/s@25Gb/s --object agent=0@100Gb/s

    Exit status 0 drawn, 1 matplotlib (the extra `figures`) is missing, 2 wrong
    input.
    """

    async def work() -> int:
        paths = tuple(figures or _FIGURES)
        check_figures(paths, "--figure")
        state_bytes = quantities.state_bytes(state, "--state")
        horizon_ms = quantities.duration_ms(horizon, "--horizon")
        points = _points(objects or [], objects_path, with_paper)
        located = [locate(point, state_bytes, horizon_ms) for point in points]
        figure = draw_map(located, state_bytes, horizon_ms, "--figure")
        for path in paths:
            write_figure(figure, path)
        if as_json:
            print_json({"objects": located, "figures": [str(path) for path in paths]})
        else:
            _print(located, paths)
        return 0

    run(work)


def _points(given: list[str], objects_path: Path | None, with_paper: bool) -> tuple[MapObject, ...]:
    points = tuple(parse_object(text, "--object") for text in given)
    if objects_path is not None:
        points += read_objects(objects_path, "--objects")
    if with_paper or not points:
        points += paper.MAP_OBJECTS
    check_distinct(points, "--object")
    return points


def _print(located: list[Located], paths: tuple[Path, ...]) -> None:
    rows = (
        (
            each.name,
            quantities.human_rate(each.dirty_rate_bytes_per_s),
            quantities.human_rate(each.rate_bytes_per_s),
            quantities.human_rate(each.required_rate_bytes_per_s),
            each.regime.value,
            "yes" if each.frozen_admissible else "no",
        )
        for each in located
    )
    print_table(("OBJECT", "DIRTY RATE", "BANDWIDTH", "GATE", "REGION", "FROZEN FITS"), rows)
    for path in paths:
        console.print(f"drawn to {path}", markup=False, highlight=False)
