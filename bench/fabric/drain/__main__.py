"""Entry point of `python -m bench.fabric.drain`."""

from bench.fabric.drain.cli import app

app(prog_name="bench.fabric.drain")
