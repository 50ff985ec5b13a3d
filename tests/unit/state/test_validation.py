"""Layouts that do not hold together are refused, with the leaf named."""

from __future__ import annotations

import http
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from worldline.errors import InvalidInput, VersionSkew
from worldline.state.layout import (
    DictNode,
    Layout,
    ListNode,
    Node,
    RecordNode,
    Region,
    ScalarLeaf,
    ScalarNode,
    TensorLeaf,
    TensorNode,
    flat_layout,
)


def leaf(path: str, **changes: Any) -> TensorLeaf:
    plain = TensorLeaf(
        path=path,
        dtype="int32",
        shape=(4, 2),
        stride=(2, 1),
        offset_bytes=0,
        size_bytes=32,
        region=0,
    )
    return replace(plain, **changes)


def sample() -> Layout:
    """Two leaves that share a region, one alone, one empty, one scalar."""
    return Layout.build(
        tensors=(
            leaf("a"),
            leaf("b", shape=(4,), stride=(1,), size_bytes=16, offset_bytes=16),
            leaf("c", offset_bytes=64),
            leaf("e", shape=(0, 3), stride=(3, 1), size_bytes=0),
        ),
        scalars=(ScalarLeaf("s", 1),),
        root=DictNode(
            (
                ("a", TensorNode(0)),
                ("b", TensorNode(1)),
                ("c", TensorNode(2)),
                ("e", TensorNode(3)),
                ("s", ScalarNode(0)),
            )
        ),
    )


def test_the_sample_is_what_it_says() -> None:
    layout = sample()
    assert layout.regions == (Region(0, 0), Region(0, 32), Region(64, 32))
    assert [item.region for item in layout.tensors] == [1, 1, 2, 0]
    assert layout.extent_bytes == 96
    assert replace(layout, topology_hash=b"") == layout


def with_leaf(index: int, **changes: Any) -> Callable[[Layout], Layout]:
    def change(layout: Layout) -> Layout:
        tensors = list(layout.tensors)
        tensors[index] = replace(tensors[index], **changes)
        return replace(layout, tensors=tuple(tensors), topology_hash=b"")

    return change


def with_root(root: Node) -> Callable[[Layout], Layout]:
    return lambda layout: replace(layout, root=root, topology_hash=b"")


def ab(first: int, second: int) -> Node:
    return DictNode((("a", TensorNode(first)), ("b", TensorNode(second))))


shorter = with_leaf(2, shape=(7,), stride=(1,), size_bytes=28)
without_b = DictNode(
    (("a", TensorNode(0)), ("c", TensorNode(2)), ("e", TensorNode(3)), ("s", ScalarNode(0)))
)


def apart(layout: Layout) -> Layout:
    """Leaf b moves to the end of a, so that no byte holds the region together."""
    tensors = list(layout.tensors)
    tensors[1] = replace(tensors[1], offset_bytes=32)
    regions = (Region(0, 0), Region(0, 48), Region(64, 32))
    return replace(layout, tensors=tuple(tensors), regions=regions, topology_hash=b"")


BROKEN_LEAVES: list[tuple[str, str, Callable[[Layout], Layout]]] = [
    ("unknown dtype", "c", with_leaf(2, dtype="qint8")),
    ("empty dtype", "c", with_leaf(2, dtype="")),
    ("bytes are not shape x itemsize", "c", with_leaf(2, size_bytes=31)),
    ("one byte too many", "c", with_leaf(2, size_bytes=33)),
    ("bytes of another dtype", "c", with_leaf(2, dtype="int64")),
    ("misaligned", "c", with_leaf(2, offset_bytes=66)),
    ("negative stride", "c", with_leaf(2, stride=(-2, 1))),
    ("negative size", "c", with_leaf(2, shape=(-4, -2))),
    ("negative offset", "c", with_leaf(2, offset_bytes=-32)),
    ("rank differs", "c", with_leaf(2, stride=(2,))),
    ("rank beyond 64", "c", with_leaf(2, shape=(1,) * 65, stride=(1,) * 65, size_bytes=4)),
    ("a bool for a size", "c", with_leaf(2, shape=(True, 8), stride=(8, 1))),
    ("shape beyond 63 bits", "c", with_leaf(2, shape=(2**63,), stride=(1,))),
    ("product beyond 64 bits", "c", with_leaf(2, shape=(2**33, 2**33), stride=(1, 1))),
    ("product that wraps to its bytes", "c", with_leaf(2, shape=(2**62, 4), stride=(4, 1))),
    ("product hidden by a zero", "e", with_leaf(3, shape=(0, 2**62, 2**62), stride=(1, 1, 1))),
    ("stride beyond the extent", "c", with_leaf(2, stride=(2**62, 1))),
    ("offset near 2**64", "c", with_leaf(2, offset_bytes=2**64 - 32)),
    ("offset near 2**63", "c", with_leaf(2, offset_bytes=2**63 - 32)),
    ("beyond its region", "c", with_leaf(2, offset_bytes=68)),
    ("before its region", "c", with_leaf(2, offset_bytes=60)),
    ("region of one leaf is longer than it", "c", shorter),
    ("another's region", "c", with_leaf(2, region=1)),
    ("no such region", "c", with_leaf(2, region=3)),
    ("negative region", "c", with_leaf(2, region=-1)),
    ("empty leaf elsewhere", "e", with_leaf(3, offset_bytes=4)),
    ("path repeated", "a", with_leaf(1, path="a")),
    ("path of no place in the tree", "z", with_leaf(1, path="z")),
    ("leaves of one region only touch", "a", apart),
    ("leaf twice in the tree", "b", with_root(ab(0, 0))),
    ("leaf not in the tree", "b", with_root(without_b)),
    ("index beyond the leaves", "a", with_root(DictNode((("a", TensorNode(4)),)))),
    ("negative index", "a", with_root(DictNode((("a", TensorNode(-1)),)))),
    ("scalar index beyond the leaves", "s", with_root(DictNode((("s", ScalarNode(1)),)))),
    ("two leaves swapped", "b", with_root(ab(1, 0))),
    ("key repeated", "$", with_root(DictNode((("a", TensorNode(0)), ("a", TensorNode(1)))))),
    ("int key beyond 64 bits", "$", with_root(DictNode(((2**63, TensorNode(0)),)))),
    ("key that is not UTF-8", "$", with_root(DictNode((("\ud800", TensorNode(0)),)))),
    ("field that is no identifier", "$", with_root(RecordNode("m.C", (("a b", TensorNode(0)),)))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("named", "change"),
    [case[1:] for case in BROKEN_LEAVES],
    ids=[case[0] for case in BROKEN_LEAVES],
)
def test_a_broken_leaf_is_refused_and_named(named: str, change: Callable[[Layout], Layout]) -> None:
    with pytest.raises(InvalidInput) as caught:
        change(sample())
    assert caught.value.leaf == named
    assert caught.value.field is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dtype": "qint8"}, "dtype"),
        ({"size_bytes": 31}, "size_bytes"),
        ({"size_bytes": 33}, "size_bytes"),
        ({"offset_bytes": 2}, "offset_bytes"),
        ({"offset_bytes": -4}, "offset_bytes"),
        ({"offset_bytes": 2**63 - 32}, "shape"),
        ({"stride": (2**62, 1)}, "shape"),
        ({"shape": (2**62, 8), "stride": (8, 1)}, "shape"),
        ({"shape": (0, 2), "size_bytes": 0, "offset_bytes": 4}, "offset_bytes"),
        ({"shape": (0, 2**62), "size_bytes": 0}, "shape"),
        ({"stride": (2, -1)}, "stride"),
        ({"stride": (2,)}, "stride"),
        ({"shape": (1,) * 65, "stride": (1,) * 65, "size_bytes": 4}, "stride"),
    ],
)
def test_a_leaf_must_hold_on_its_own(changes: dict[str, Any], field: str) -> None:
    """Regions follow from the leaves here, so nothing else can notice."""
    root = DictNode((("x", TensorNode(0)),))
    Layout.build(tensors=(leaf("x"),), scalars=(), root=root)
    with pytest.raises(InvalidInput) as caught:
        Layout.build(tensors=(leaf("x", **changes),), scalars=(), root=root)
    assert caught.value.leaf == "x"
    assert str(caught.value.field).endswith(f".{field}")


def test_equal_regions_are_not_interchangeable() -> None:
    """One layout per tree: two empty leaves may not swap their (equal) regions."""
    empty = {"shape": (0,), "stride": (1,), "size_bytes": 0}
    root = DictNode((("a", TensorNode(0)), ("b", TensorNode(1))))
    layout = Layout.build(tensors=(leaf("a", **empty), leaf("b", **empty)), scalars=(), root=root)
    swapped = tuple(replace(item, region=1 - item.region) for item in layout.tensors)
    with pytest.raises(InvalidInput) as caught:
        replace(layout, tensors=swapped, topology_hash=b"")
    assert caught.value.leaf == "a"


def test_errors_say_which_rule_was_broken() -> None:
    def message(layout: Callable[[Layout], Layout]) -> str:
        with pytest.raises(InvalidInput) as caught:
            layout(sample())
        return caught.value.message

    assert "repeated" in message(with_leaf(1, path="a"))
    assert "outside" in message(with_leaf(2, offset_bytes=60))
    assert "outside" in message(with_leaf(2, offset_bytes=68))
    crossing = (Region(0, 0), Region(0, 32), Region(16, 80))
    assert "overlaps" in message(lambda it: replace(it, regions=crossing, topology_hash=b""))


@pytest.mark.parametrize(
    "regions",
    [
        (),
        (Region(0, 0), Region(0, 32)),
        (Region(0, 0), Region(0, 32), Region(16, 80)),
        (Region(0, 0), Region(64, 32), Region(0, 32)),
        (Region(0, 0), Region(0, 48), Region(64, 32)),
        (Region(0, 0), Region(0, 32), Region(64, 2**64)),
        (Region(0, 0), Region(-32, 64), Region(64, 32)),
        (Region(0, 0), Region(0, 32), Region(64, 32), Region(96, 0)),
        (Region(0, 0), Region(0, 32), Region(32, 32), Region(64, 32)),
    ],
)
def test_regions_are_what_the_leaves_make(regions: tuple[Region, ...]) -> None:
    with pytest.raises(InvalidInput):
        replace(sample(), regions=regions, topology_hash=b"")


@pytest.mark.parametrize("extent_bytes", [0, 95, 97, -1, 2**64])
def test_the_extent_ends_with_the_last_region(extent_bytes: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(sample(), extent_bytes=extent_bytes, topology_hash=b"")
    assert caught.value.field == "layout.extent_bytes"


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_is_skew(version: int) -> None:
    with pytest.raises(VersionSkew):
        replace(sample(), version=version, topology_hash=b"")


def test_a_hash_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(sample(), topology_hash=flat_layout("probe", 1).topology_hash)
    assert caught.value.field == "layout.topology_hash"


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> Layout:
        root: Node = ListNode(())
        for _ in range(depth - 1):
            root = ListNode((root,))
        return Layout.build(tensors=(), scalars=(), root=root)

    assert nested(24).extent_bytes == 0
    with pytest.raises(InvalidInput) as caught:
        nested(25)
    assert caught.value.leaf == "[0]" * 24


@pytest.mark.parametrize(
    "value",
    [object(), 1 << 40_000, "\ud800", [], http.HTTPStatus.OK, np.float64(1)],
    ids=["object", "long", "surrogate", "list", "enum", "numpy"],
)
def test_a_value_that_is_no_scalar_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        sample().with_scalars({"s": value})
    assert caught.value.leaf == "s"


def test_scalars_change_without_the_topology() -> None:
    layout = sample()
    changed = layout.with_scalars({"s": None})
    assert changed.scalar_values() == {"s": None}
    assert layout.scalar_values() == {"s": 1}
    assert changed.topology_hash == layout.topology_hash
    assert changed != layout
    with pytest.raises(InvalidInput) as caught:
        layout.with_scalars({"t": 1})
    assert caught.value.leaf == "t"


def test_flat_layout_is_one_leaf() -> None:
    layout = flat_layout("probe", 1 << 20)
    assert [item.path for item in layout.tensors] == ["probe"]
    assert layout.extent_bytes == 1 << 20
    assert flat_layout("probe", 0).extent_bytes == 0
    for size_bytes in (-1, 2**63):
        with pytest.raises(InvalidInput):
            flat_layout("probe", size_bytes)
