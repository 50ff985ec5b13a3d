"""Entry point of `python -m bench`."""

from bench.cli import app

app(prog_name="bench")
