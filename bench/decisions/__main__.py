"""Entry point of `python -m bench.decisions`."""

from bench.decisions.cli import app

app(prog_name="bench.decisions")
