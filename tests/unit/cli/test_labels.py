"""Labels stand beside their points and clear of each other."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worldline.cli.labels import Box, Spot, label_box, marker, spots

SIZE = (585.0, 385.0)
points = st.tuples(st.floats(100, 480), st.floats(60, 320))


@given(st.lists(points, min_size=1, max_size=4), st.integers(1, 12))
def test_a_few_labels_never_meet(places: list[tuple[float, float]], length: int) -> None:
    texts = ["x" * length] * len(places)
    chosen = spots(places, texts, SIZE)
    boxes = [label_box(*each) for each in zip(places, texts, chosen, strict=True)]
    assert not any(a.meets(b) for a, b in itertools.combinations(boxes, 2))
    assert not any(box.meets(marker(point)) for box in boxes for point in places)


def test_a_lone_label_stands_above_its_point() -> None:
    (spot,) = spots([(300.0, 200.0)], ["name"], SIZE)
    assert spot == Spot(0.0, spot.up, "center")
    assert spot.up > 0


def test_labels_stay_on_the_sheet() -> None:
    corners = [(0.0, 0.0), (585.0, 0.0), (0.0, 385.0), (585.0, 385.0)]
    texts = ["a long name"] * 4
    for point, text, spot in zip(corners, texts, spots(corners, texts, SIZE), strict=True):
        box = label_box(point, text, spot)
        assert box.left >= 0
        assert box.right <= SIZE[0]
        assert box.bottom >= 0
        assert box.top <= SIZE[1]


def test_labels_keep_off_what_is_taken() -> None:
    taken = Box(250, 205, 350, 240)
    (spot,) = spots([(300.0, 200.0)], ["name"], SIZE, [taken])
    assert not label_box((300.0, 200.0), "name", spot).meets(taken)


def test_where_nothing_is_free_a_label_stands_above() -> None:
    everything = Box(-1e3, -1e3, 1e3, 1e3)
    (spot,) = spots([(300.0, 200.0)], ["name"], SIZE, [everything])
    assert (spot.align, spot.up > 0) == ("center", True)
