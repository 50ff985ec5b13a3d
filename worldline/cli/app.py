"""App: the command line's root."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from worldline.cli import (
    bench,
    check_engine,
    decide,
    demo,
    doctor,
    drain,
    fork,
    inspecting,
    listings,
    moves,
    play,
    recording,
    regime_map,
    suspend,
    top,
    traces,
    up,
)

# One paragraph: the help would part lines by blank ones.
_EPILOG = "Exit status: " + "; ".join(
    (
        "0 done, and for move: committed",
        "1 any other error, a move that was rolled back, a drain that left somebody, or a doctor "
        "that warns",
        "2 wrong command line or input",
        "3 rejected by admission or placement",
        "4 no such session, node, move or cluster",
        "5 unavailable, no room or out of time",
        "6 bytes differed",
        "7 the doctor found something that cannot work",
        "130 interrupted",
        "143 terminated",
    )
)

app = typer.Typer(
    name="worldline",
    help="Moves live interactive world-model sessions between nodes, bit for bit.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"worldline {version('worldline')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""


app.command("up")(up.up)
app.command("nodes")(listings.nodes)
app.command("sessions")(listings.sessions)
app.command("status")(listings.status)
app.command("top")(top.top)
app.command("open")(play.open_session)
app.command("play")(play.play)
app.command("close")(play.close)
app.command("record")(recording.record_command)
app.command("replay")(recording.replay_command)
app.command("diff")(recording.diff_command)
app.command("fork")(fork.fork)
app.command("inspect")(inspecting.inspect)
app.command("suspend")(suspend.suspend)
app.command("resume")(suspend.resume)
app.command("move")(moves.move)
app.command("moves")(moves.moves)
app.command("watch")(moves.watch_move)
app.command("drain")(drain.drain)
app.command("undrain")(drain.undrain)
app.command("trace")(traces.trace)
app.command("doctor")(doctor.doctor)
app.command("check-engine")(check_engine.check_engine)
app.command("decide")(decide.decide_command)
app.command("map")(regime_map.regime_map)
app.command("demo")(demo.demo)
app.add_typer(bench.app, name="bench")
