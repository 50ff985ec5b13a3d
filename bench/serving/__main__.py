"""Entry point of `python -m bench.serving`."""

from bench.serving.cli import app

app(prog_name="bench.serving")
