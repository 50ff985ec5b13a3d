"""Regime figure: the map drawn, dirty rate over bandwidth, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from worldline.admissibility.condition import Transfer
from worldline.cli.figures import new_figure
from worldline.cli.labels import FONT_POINTS, Box, spots
from worldline.cli.output import human_bytes
from worldline.cli.quantities import human_ms
from worldline.cli.regimes import Located, Regime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GBIT_PER_S = 1e9 / 8
_GB_PER_S = 1e9
#: The decades of the paper's figure; wider where an object or the gate asks for it.
_X_GBIT = (1.0, 1e3)
_Y_GB = (1e-3, 1e2)
_SAMPLES = 200
_COLOURS = {
    Regime.HOT: "#f4c7b8",
    Regime.INADMISSIBLE: "#e3e3e8",
    Regime.ADMISSIBLE: "#cde6cf",
}
_MARKERS = {Regime.HOT: "^", Regime.INADMISSIBLE: "X", Regime.ADMISSIBLE: "o"}
_SIZE_INCHES = (9.0, 6.5)
#: The axes in it, roughly: the rest is for their labels.
_SHEET_POINTS = (585.0, 385.0)
#: What the names of the regions cover of it: two corners below, one above.
_REGION_LABELS_TAKE = (
    Box(0, 0, 150, 25),
    Box(400, 0, 585, 25),
    Box(0, 345, 160, 385),
)


def draw_map(
    located: Sequence[Located], state_bytes: int, horizon_ms: float, option: str
) -> Figure:
    """The map of that state and horizon with the objects on it.

    Raises:
        Conflict: matplotlib is not installed.
    """
    figure = new_figure(_SIZE_INCHES, option)
    axes = figure.add_subplot()
    frozen = Transfer(state_bytes, horizon_ms)
    xs, ys = _limits(located, frozen.required_rate_bytes_per_s / _GBIT_PER_S)
    axes.set(xscale="log", yscale="log", xlim=xs, ylim=ys)
    axes.set_xlabel("fabric bandwidth B (Gb/s)")
    axes.set_ylabel("dirty rate D (GB/s)")
    horizon = human_ms(horizon_ms)
    axes.set_title(f"Regime map: S = {human_bytes(state_bytes)}, H = {horizon}")
    _draw_regions(axes, frozen, xs, ys)
    _draw_labels(axes, horizon)
    _draw_objects(axes, located, xs, ys)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _limits(
    located: Sequence[Located], gate_gbit: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Whole decades around the objects; the gate has at least one decade on each side."""
    across = [each.rate_bytes_per_s / _GBIT_PER_S for each in located]
    up = [each.dirty_rate_bytes_per_s / _GB_PER_S for each in located]
    across += [gate_gbit / 10, gate_gbit * 10, *_X_GBIT]
    up = [value for value in up if value > 0] + list(_Y_GB)
    # The corner above the phase line must be on the map: its label stands there.
    up.append(min(across) * _GBIT_PER_S / _GB_PER_S * 10)
    return _decades(across), _decades(up)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    return 10.0 ** math.floor(low), 10.0 ** math.ceil(high)


def _draw_regions(
    axes: Axes, frozen: Transfer, xs: tuple[float, float], ys: tuple[float, float]
) -> None:
    dirty_gb = np.geomspace(*ys, _SAMPLES)
    phase_gbit = dirty_gb * _GB_PER_S / _GBIT_PER_S
    gates = [
        Transfer(frozen.state_bytes, frozen.horizon_ms, float(dirty) * _GB_PER_S)
        for dirty in dirty_gb
    ]
    gate_gbit = np.array([each.required_rate_bytes_per_s for each in gates]) / _GBIT_PER_S
    edges = (
        (Regime.HOT, np.full(_SAMPLES, xs[0]), np.maximum(phase_gbit, xs[0])),
        (Regime.INADMISSIBLE, phase_gbit, gate_gbit),
        (Regime.ADMISSIBLE, gate_gbit, np.maximum(gate_gbit, xs[1])),
    )
    for regime, left, right in edges:
        axes.fill_betweenx(dirty_gb, left, right, color=_COLOURS[regime], linewidth=0)
    axes.plot(gate_gbit, dirty_gb, color="black", label="deadline gate B = S/H + D")
    axes.plot(phase_gbit, dirty_gb, color="black", linestyle="--", label="phase line D = B")
    frozen_gbit = frozen.required_rate_bytes_per_s / _GBIT_PER_S
    axes.axvline(frozen_gbit, color="grey", linestyle=":", label="frozen gate B = S/H")


def _draw_labels(axes: Axes, horizon: str) -> None:
    labels = (
        ("HOT: motion forced,\npre-copy never converges", 0.02, 0.97, "left", "top"),
        (f"inadmissible @ {horizon}", 0.02, 0.03, "left", "bottom"),
        ("pre-copy / motion admissible", 0.98, 0.03, "right", "bottom"),
    )
    for text, x, y, horizontal, vertical in labels:
        axes.text(x, y, text, transform=axes.transAxes, ha=horizontal, va=vertical, style="italic")


def _draw_objects(
    axes: Axes, located: Sequence[Located], xs: tuple[float, float], ys: tuple[float, float]
) -> None:
    names = [_label(each) for each in located]
    points = [_position(each, ys) for each in located]
    on_sheet = [
        (_share(x, xs) * _SHEET_POINTS[0], _share(y, ys) * _SHEET_POINTS[1]) for x, y in points
    ]
    places = spots(on_sheet, names, _SHEET_POINTS, _REGION_LABELS_TAKE)
    for each, name, point, spot in zip(located, names, points, places, strict=True):
        shape = "v" if each.dirty_rate_bytes_per_s == 0 else _MARKERS[each.regime]
        axes.plot(*point, shape, color="black", clip_on=False, zorder=3)
        axes.annotate(
            name,
            point,
            xytext=(spot.right, spot.up),
            textcoords="offset points",
            ha=spot.align,
            va="bottom",
            fontsize=FONT_POINTS,
            parse_math=False,
        )


def _label(each: Located) -> str:
    return f"{each.name} (D = 0)" if each.dirty_rate_bytes_per_s == 0 else each.name


def _position(each: Located, ys: tuple[float, float]) -> tuple[float, float]:
    """In the units of the axes; what dirties nothing has no place on a logarithmic axis and
    stands on its lower edge.
    """
    dirty_gb = each.dirty_rate_bytes_per_s / _GB_PER_S
    return each.rate_bytes_per_s / _GBIT_PER_S, max(dirty_gb, ys[0])


def _share(value: float, limits: tuple[float, float]) -> float:
    """How far along a logarithmic axis, 0 to 1."""
    low, high = map(math.log10, limits)
    return (math.log10(value) - low) / (high - low)
