"""SVG: the few shapes that a figure of ours is made of, escaped and the same everywhere."""

from __future__ import annotations

from xml.etree import ElementTree

INK = "#1f2328"
TEXT_SIZE = 12.0


def clean(said: str) -> str:
    """Without characters that no XML document may hold (XML 1.0, section 2.2)."""
    return "".join(each if _allowed(ord(each)) else "\N{REPLACEMENT CHARACTER}" for each in said)


def _allowed(code: int) -> bool:
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or (0x10000 <= code <= 0x10FFFF)
    )


def number(value: float) -> str:
    """Two decimals at most, so that the file is short and the same everywhere."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(
    parent: ElementTree.Element,
    x: float,
    y: float,
    said: str,
    *,
    size: float = TEXT_SIZE,
    fill: str = INK,
    weight: str = "",
    anchor: str = "",
) -> None:
    """One line of text; `anchor` is start, middle or end."""
    attributes = {"x": number(x), "y": number(y), "fill": fill}
    if size != TEXT_SIZE:
        attributes["font-size"] = number(size)
    if weight:
        attributes["font-weight"] = weight
    if anchor:
        attributes["text-anchor"] = anchor
    ElementTree.SubElement(parent, "text", attributes).text = clean(said)


def rectangle(
    parent: ElementTree.Element,
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str,
    rx: float = 0.0,
    more: dict[str, str] | None = None,
) -> None:
    """A rectangle; `more` are attributes besides."""
    attributes = {"x": number(x), "y": number(y), "width": number(width)}
    attributes |= {"height": number(height), "fill": fill} | (more or {})
    if rx:
        attributes["rx"] = number(rx)
    ElementTree.SubElement(parent, "rect", attributes)


def line(
    parent: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, *, stroke: str
) -> None:
    """A line."""
    ends = {"x1": number(x1), "y1": number(y1), "x2": number(x2), "y2": number(y2)}
    ElementTree.SubElement(parent, "line", {**ends, "stroke": stroke})


def mark(parent: ElementTree.Element, x: float, y: float) -> None:
    """A diamond."""
    points = ((x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y))
    shape = " ".join(f"{number(a)},{number(b)}" for a, b in points)
    attributes = {"points": shape, "fill": "#ffffff", "stroke": INK, "stroke-width": "1.2"}
    ElementTree.SubElement(parent, "polygon", attributes)
