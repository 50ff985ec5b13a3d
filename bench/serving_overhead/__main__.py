"""Entry point of `python -m bench.serving_overhead`."""

from bench.serving_overhead.cli import app

app(prog_name="bench.serving_overhead")
