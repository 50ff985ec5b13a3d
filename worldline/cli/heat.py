"""Heat: how much of each piece of something is written, as characters of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from worldline.cli.output import human_bytes

#: Nothing changed, then eighths; the second where the terminal has no block characters.
_BLOCKS = "·▁▂▃▄▅▆▇█"
_ASCII = ".12345678"
#: Cold to hot, one per pair of eighths; what never changes is dim.
_STYLES = ("dim", "blue", "cyan", "yellow", "red")
#: Left of each row of a strip: where in the slot it begins.
_LABEL_COLUMNS = 11


def level_of(share: float) -> int:
    """0 where nothing changed, else 1 to 8: eighths begun."""
    return min(8, math.ceil(share * 8)) if share > 0 else 0


def heat_text(shares: Iterable[float], unicode: bool = True) -> str:
    """One character a share."""
    ramp = _BLOCKS if unicode else _ASCII
    return "".join(ramp[level_of(share)] for share in shares)


def coloured(shares: Sequence[float], unicode: bool = True) -> Text:
    """The same with colours."""
    text = Text()
    for share in shares:
        level = level_of(share)
        text.append(heat_text((share,), unicode), style=_STYLES[(level + 1) // 2])
    return text


def cells_of(width: int, rows: int) -> int:
    """Cells of a strip of so many rows in a terminal of that width."""
    return max(1, width - _LABEL_COLUMNS) * rows


def strip(
    shares: Sequence[float], size_bytes: int, rows: int, unicode: bool = True
) -> Iterator[Text]:
    """A slot in rows, each with the offset of its first byte."""
    across = -(-len(shares) // rows)
    for row in range(rows):
        first = row * across
        offset = human_bytes(size_bytes * first // len(shares))
        label = Text(f"{offset:>{_LABEL_COLUMNS - 1}} ", style="dim")
        yield label + coloured(shares[first : first + across], unicode)


def legend(unicode: bool = True) -> str:
    """What the characters mean."""
    ramp = _BLOCKS if unicode else _ASCII
    return f"{ramp[0]} no block changes it, {ramp[1]} to {ramp[8]} the share that a block changes"
