"""Main: the command line's root."""

from __future__ import annotations

import typer

from worldline.cli import bench, demo, listings, moves, play, traces, up

app = typer.Typer(
    name="worldline",
    help="Moves live interactive world-model sessions between nodes, bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("nodes")(listings.nodes)
app.command("sessions")(listings.sessions)
app.command("status")(listings.status)
app.command("open")(play.open_session)
app.command("play")(play.play)
app.command("close")(play.close)
app.command("move")(moves.move)
app.command("moves")(moves.moves)
app.command("trace")(traces.trace)
app.command("demo")(demo.demo)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
