"""Bench: what a move costs, measured on a cluster of its own."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure.", no_args_is_help=True)
