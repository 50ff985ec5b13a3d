"""Entry point of `python -m bench.fabric.constants`."""

from bench.fabric.constants.cli import app

app(prog_name="bench.fabric.constants")
