"""Columns: a table for people, in lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(lines: Sequence[tuple[str, ...]], left: set[int]) -> str:
    """Lines of equal length, one under another; `left` names the columns that are not numbers."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
