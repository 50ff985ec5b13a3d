"""Entry point of `python -m bench.lossy`."""

from bench.lossy.cli import app

app(prog_name="bench.lossy")
