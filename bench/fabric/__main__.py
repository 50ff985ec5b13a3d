"""Entry point of `python -m bench.fabric`."""

from bench.fabric.cli import app

app(prog_name="bench.fabric")
