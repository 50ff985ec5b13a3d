"""What `--help` prints: paragraphs that a terminal of 80 columns shows as they are written."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from typer import Typer
from typer.models import CommandInfo

from bench.flips.cli import app as flips_app
from bench.lossy.cli import app as lossy_app
from bench.serving.cli import app as serving_app
from bench.serving_overhead.cli import app as overhead_app
from worldline.cli.app import app

#: A terminal's 80 less the margins of a help page.
COLUMNS = 78


def commands(of: Typer) -> Iterator[CommandInfo]:
    yield from of.registered_commands
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance)


@pytest.mark.parametrize(
    "of",
    [app, flips_app, lossy_app, serving_app, overhead_app],
    ids=["worldline", "flips", "lossy", "serving", "serving_overhead"],
)
def test_no_line_of_a_commands_help_is_broken_again(of: Typer) -> None:
    """Lines behind the first paragraph are kept, so a longer one leaves a stub of a line."""
    found = list(commands(of))
    assert found
    for command in found:
        assert command.callback is not None
        text = inspect.getdoc(command.callback)
        assert text, f"{command.callback.__name__} says nothing"
        _, _, rest = text.partition("\n\n")
        broken = [line for line in rest.splitlines() if len(line) > COLUMNS]
        assert not broken, f"{command.callback.__name__}: {broken}"
