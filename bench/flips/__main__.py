"""Entry point of `python -m bench.flips`."""

from bench.flips.cli import app

app(prog_name="bench.flips")
