"""Figures: PNG and SVG files, the same bytes for the same content.

matplotlib is an extra and takes most of a second to import, so nothing imports it before a figure
is asked for. No window system is touched: files are written by its Agg and SVG backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from worldline.cli.strip import check_writable
from worldline.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Neither a date nor a version: the file depends on what is drawn alone.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
_DPI = 150


def check_figures(paths: Sequence[Path], option: str) -> None:
    """Before the work: can figures be drawn, and written at `paths`?

    Raises:
        InvalidInput: a path is no .png or .svg, or cannot be written.
        Conflict: matplotlib is not installed.
    """
    for path in paths:
        if path.suffix not in _METADATA:
            raise InvalidInput(
                f"{path} must end in {' or '.join(_METADATA)}: the ending chooses the format",
                field=option,
            )
        check_writable(path, option)
    if paths:
        new_figure((1, 1), option)


def new_figure(size_inches: tuple[float, float], option: str) -> Figure:
    """An empty figure.

    Raises:
        Conflict: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Conflict(
            "drawing needs matplotlib: pip install 'worldline[figures]'",
            reason="FIGURES_NOT_INSTALLED",
            field=option,
        ) from None
    return Figure(figsize=size_inches, layout="constrained")


def write_figure(figure: Figure, path: Path) -> None:
    """To `path`, in the format of its ending; text in an SVG stays text."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "worldline", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=_DPI, metadata=_METADATA[path.suffix])
