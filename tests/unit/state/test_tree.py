"""How a tree lies in a slot, and comes back out of it bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.unit.state.strategies import (
    DTYPES,
    Record,
    Slotted,
    bits,
    moved,
    random_tensor,
    same,
)
from worldline.errors import InvalidInput
from worldline.state.digest import digest_slot
from worldline.state.layout import Region
from worldline.state.tree import (
    TensorSpec,
    clear_padding,
    layout_of,
    materialize,
    pack,
    plan,
)

# --- bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_survives(dtype: torch.dtype) -> None:
    """All patterns of the one- and two-byte types, 4096 random ones of the others."""
    if dtype.itemsize == 1:
        raw = torch.arange(256, dtype=torch.uint8)
    elif dtype.itemsize == 2:
        raw = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    else:
        raw = random_tensor(torch.uint8, (4096 * dtype.itemsize,), 7)
    tensor = raw.view(dtype)
    _, _, back = moved([tensor, tensor[::2], tensor.reshape(-1, 4).t(), tensor[5]])
    assert back[0].dtype is dtype
    assert [bits(item) for item in back] == [
        bits(item) for item in (tensor, tensor[::2], tensor.reshape(-1, 4).t(), tensor[5])
    ]


def test_nan_payloads_and_negative_zero_survive() -> None:
    raw = torch.tensor([0x7F800001, 0x7FC0BEEF, -0x80000000, 1], dtype=torch.int32)
    _, _, back = moved({"x": raw.view(torch.float32)[::2], "y": raw.view(torch.float32)[1::2]})
    assert back["x"].view(torch.int32).tolist() == [0x7F800001, -0x80000000]
    assert back["y"].view(torch.int32).tolist() == [0x7FC0BEEF, 1]


def test_empty_and_zero_dimensional_leaves_among_others() -> None:
    tree = [torch.empty(0), torch.tensor(3), torch.empty(2, 0, 5), torch.ones(3), torch.empty(0)]
    layout, slot, back = moved(tree)
    assert same(tree, back)
    assert [leaf.size_bytes for leaf in layout.tensors] == [0, 8, 0, 12, 0]
    assert digest_slot(layout, memoryview(slot.numpy())).leaves[0] == 0
    assert moved([torch.empty(0, 3)])[0].extent_bytes == 0
    assert moved([])[0].extent_bytes == 0


def test_a_bare_leaf_is_a_tree() -> None:
    layout, _, back = moved(torch.arange(3))
    assert layout.tensors[0].path == "$"
    assert back.tolist() == [0, 1, 2]
    assert moved(7)[0].scalars[0].path == "$"


# --- paths --------------------------------------------------------------------------------------


def test_paths_are_stable_and_tell_keys_apart() -> None:
    tree = {
        "kv_cache": [1, 1, 1, {"k": torch.zeros(1)}],
        "a b": 1,
        "a.b": 1,
        "0": 1,
        0: 1,
        -7: (1, Record(1, Slotted(1))),
        'q"': 1,
        "é": 1,
        "": 1,
    }
    layout = plan(tree)
    assert layout.tensors[0].path == "kv_cache[3].k"
    assert [scalar.path for scalar in layout.scalars] == [
        "kv_cache[0]",
        "kv_cache[1]",
        "kv_cache[2]",
        '["a b"]',
        '["a.b"]',
        '["0"]',
        "{0}",
        "{-7}[0]",
        "{-7}[1].first",
        "{-7}[1].second.only",
        '["q\\""]',
        '["\\u00e9"]',
        '[""]',
    ]


# --- compactness and sharing --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "stride"),
    [
        (lambda base: base[10:30], (64, 1)),
        (lambda base: base[:, 3:7], (4, 1)),
        (lambda base: base[::2, ::2], (32, 1)),
        (lambda base: base[:, 3:7].t(), (1, 4)),
        (lambda base: base.t(), (1, 64)),
        (lambda base: base[:1].expand(5, 64), (0, 1)),
        (lambda base: base[:, :2].unsqueeze(1).expand(32, 9, 2), (2, 0, 1)),
        (lambda base: base.view(1, 32, 8, 8).to(memory_format=torch.channels_last), None),
        (lambda base: base[0].unfold(0, 4, 1), (1, 1)),
        (lambda base: base[3, 5], ()),
    ],
    ids=[
        "rows",
        "columns",
        "grid",
        "transposed",
        "whole",
        "expanded",
        "both",
        "channels",
        "window",
        "one",
    ],
)
def test_a_lone_view_is_packed_densely(
    make: Callable[[torch.Tensor], torch.Tensor], stride: tuple[int, ...] | None
) -> None:
    base = torch.arange(32 * 64, dtype=torch.int32).view(32, 64)
    view = make(base)
    layout, _, back = moved([view])
    assert same([view], back)
    assert back[0].stride() == (view.stride() if stride is None else stride)
    locations = len({index.item() for index in view.reshape(-1)})
    assert layout.extent_bytes == locations * 4


def test_ten_mebibytes_of_four_gibibytes_move_ten_mebibytes() -> None:
    storage = torch.empty(1 << 32, dtype=torch.uint8)  # never touched, so never resident
    view = storage[3 << 30 :][: 10 << 20]
    view[:] = 7
    layout, slot, back = moved({"view": view})
    assert layout.extent_bytes == slot.numel() == 10 << 20
    assert torch.equal(back["view"], view)
    assert plan({"view": storage.view(-1, 512)[:, :1]}).extent_bytes == 8 << 20


def test_one_address_and_two_lengths_are_two_leaves() -> None:
    base = torch.arange(100)
    layout, _, back = moved({"long": base, "short": base[:10]})
    assert [leaf.size_bytes for leaf in layout.tensors] == [800, 80]
    assert layout.regions == (Region(0, 800),)
    back["short"][3] = -1
    assert back["long"][3] == -1
    back["long"][4] = -2
    assert back["short"][4] == -2


def test_one_tensor_under_two_names_moves_once() -> None:
    base = torch.arange(1 << 10)
    layout, _, back = moved({"a": base, "b": {"c": base}})
    assert layout.extent_bytes == base.nbytes
    back["b"]["c"].zero_()
    assert not back["a"].any()


def test_interleaved_halves_share_a_region_and_neighbours_do_not() -> None:
    kv = torch.arange(8 * 128).view(8, 128)
    layout, _, back = moved({"k": kv[..., :64], "v": kv[..., 64:]})
    assert layout.regions == (Region(0, kv.nbytes),)
    assert same({"k": kv[..., :64], "v": kv[..., 64:]}, back)
    rows = plan({"k": kv[:4], "v": kv[4:]})
    assert len(rows.regions) == 2


def test_views_of_other_dtypes_stay_aliased_and_aligned() -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    tree = {"odd": raw[3:40], "wide": raw[16:32].view(torch.complex128)}
    layout, _, back = moved(tree)
    assert layout.tensors[1].offset_bytes % 16 == 0
    back["wide"].zero_()
    assert back["odd"].tolist()[13:29] == [0] * 16
    assert back["odd"].tolist()[:5] == [3, 4, 5, 6, 7]


def test_shared_leaves_that_nothing_aligns_are_refused() -> None:
    raw = bytearray(64)
    first = torch.frombuffer(raw, dtype=torch.int32, count=4, offset=0)
    second = torch.frombuffer(raw, dtype=torch.int32, count=4, offset=2)
    with pytest.raises(InvalidInput) as caught:
        plan({"first": first, "second": second})
    assert caught.value.leaf == "second"


def test_holes_are_zero_after_pack_so_that_equal_states_are_equal_slots() -> None:
    kv = torch.full((4, 6), 9, dtype=torch.uint8)
    layout, slot, _ = moved({"k": kv[:, :2], "v": kv[:, 3:5], "last": torch.tensor(1.5)})
    assert slot.tolist()[:4] != [0xAA] * 4
    assert 0xAA not in slot.tolist()
    assert slot[layout.tensors[0].offset_bytes :][2] == 0


def test_padding_can_be_cleared_without_touching_leaves() -> None:
    layout = plan([TensorSpec(torch.uint8, (300,)), TensorSpec(torch.uint8, (300,))])
    slot = torch.full((layout.extent_bytes + 8,), 0xAA, dtype=torch.uint8)
    clear_padding(layout, slot)
    assert layout.extent_bytes == 812
    assert not slot[300:512].any()
    assert (slot[:300] == 0xAA).all()
    assert (slot[512:] == 0xAA).all()


# --- into and out of a slot ---------------------------------------------------------------------

LAYOUT = plan({"x": TensorSpec(torch.int32, (4,)), "n": 1})


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(15, dtype=torch.uint8),
        torch.zeros(16, dtype=torch.int8),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(32, dtype=torch.uint8)[::2],
        torch.zeros(16, dtype=torch.uint8, device="meta"),
        torch.zeros(18, dtype=torch.uint8)[1:],
        bytearray(16),
    ],
    ids=["short", "int8", "2-D", "strided", "meta", "misaligned", "bytearray"],
)
def test_a_buffer_that_does_not_fit_is_refused(buffer: Any) -> None:
    tree = {"x": torch.zeros(4, dtype=torch.int32), "n": 1}
    for call in (
        lambda: materialize(LAYOUT, buffer),
        lambda: pack(tree, LAYOUT, buffer),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == "buffer"


ARANGE = torch.arange(8, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tree", "leaf"),
    [
        ({"x": torch.zeros(5, dtype=torch.int32), "n": 1}, "x"),
        ({"x": torch.zeros(2, 2, dtype=torch.int32), "n": 1}, "x"),
        ({"x": torch.zeros(4, dtype=torch.float32), "n": 1}, "x"),
        ({"x": torch.zeros(1, dtype=torch.int32).expand(4), "n": 1}, "x"),
        ({"x": TensorSpec(torch.int32, (4,)), "n": 1}, "x"),
        ({"y": torch.zeros(4, dtype=torch.int32), "n": 1}, "y"),
        ({"x": torch.zeros(4, dtype=torch.int32)}, "n"),
        ({"x": torch.zeros(4, dtype=torch.int32), "m": 1}, "m"),
        ({"x": torch.zeros(4, dtype=torch.int32), "n": 1, "y": ARANGE}, "y"),
        ({"n": 1}, "x"),
        ({"n": 1, "x": torch.zeros(4, dtype=torch.int32)}, None),
    ],
)
def test_only_the_tree_that_was_laid_out_is_packed(tree: object, leaf: str | None) -> None:
    slot = torch.full((LAYOUT.extent_bytes,), 3, dtype=torch.uint8)
    with pytest.raises(InvalidInput) as caught:
        pack(tree, LAYOUT, slot)
    assert caught.value.leaf == leaf
    assert (slot == 3).all()


@pytest.mark.parametrize(
    ("planned", "packed"),
    [
        ([ARANGE[:4], ARANGE[2:6]], [ARANGE[:4].clone(), ARANGE[2:6].clone()]),
        ([ARANGE[:4].clone(), ARANGE[2:6].clone()], [ARANGE[:4], ARANGE[2:6]]),
        ([ARANGE[:4], ARANGE[2:6]], [ARANGE[:4], ARANGE[3:7]]),
        ([ARANGE.unfold(0, 2, 1)], [ARANGE.unfold(0, 2, 1).clone()]),
    ],
    ids=["lost", "gained", "shifted", "window"],
)
def test_memory_shared_otherwise_is_refused(planned: object, packed: object) -> None:
    layout = plan(planned)
    with pytest.raises(InvalidInput) as caught:
        pack(packed, layout, torch.zeros(layout.extent_bytes, dtype=torch.uint8))
    assert caught.value.leaf in ("[0]", "[1]")


def test_a_refused_tree_leaves_the_slot_as_it_was() -> None:
    spec = TensorSpec(torch.uint8, (300,))
    layout = plan([spec, spec])
    slot = torch.full((layout.extent_bytes,), 3, dtype=torch.uint8)
    with pytest.raises(InvalidInput) as caught:
        pack([torch.zeros(300, dtype=torch.uint8), spec], layout, slot)
    assert caught.value.leaf == "[1]"
    assert (slot == 3).all()


def test_one_tensor_replaced_in_a_live_state_is_named() -> None:
    tree = {"a": torch.zeros(4), "b": torch.zeros(4), "c": 1}
    layout = plan(tree)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    state: Any = materialize(pack(tree, layout, slot), slot)
    state["c"] = 2
    state["a"].fill_(1.0)
    assert pack(state, layout, slot).scalar_values() == {"c": 2}
    assert state["a"].tolist() == [1.0] * 4
    state["b"] = state["b"] + 1
    with pytest.raises(InvalidInput) as caught:
        pack(state, layout, slot)
    assert caught.value.leaf == "b"
    state["b"] = state["a"]
    with pytest.raises(InvalidInput) as caught:
        pack(state, layout, slot)
    assert caught.value.leaf in ("a", "b")


def test_packing_takes_the_scalars_of_now() -> None:
    tree = {"x": torch.zeros(4, dtype=torch.int32), "n": 1}
    slot = torch.zeros(LAYOUT.extent_bytes, dtype=torch.uint8)
    tree["n"] = 2
    assert pack(tree, LAYOUT, slot).scalar_values() == {"n": 2}


def test_a_tree_in_the_way_of_its_own_slot_is_refused() -> None:
    slot = torch.zeros(64, dtype=torch.uint8)
    tree = {"x": slot[16:32].view(torch.int32), "n": 1}
    with pytest.raises(InvalidInput) as caught:
        pack(tree, LAYOUT, slot)
    assert caught.value.leaf == "x"


def test_layout_of_names_a_leaf_that_is_elsewhere() -> None:
    slot = torch.zeros(64, dtype=torch.uint8)
    inside = slot[16:32].view(torch.int64)
    layout = layout_of({"a": inside}, slot)
    assert layout.tensors[0].offset_bytes == 16
    assert layout.extent_bytes == 32
    for tree in (
        {"a": inside, "b": torch.zeros(2)},
        {"a": inside, "b": TensorSpec(torch.int8, ())},
    ):
        with pytest.raises(InvalidInput) as caught:
            layout_of(tree, slot)
        assert caught.value.leaf == "b"
    with pytest.raises(InvalidInput) as caught:
        layout_of({"a": slot[32:]}, slot[:32])
    assert caught.value.leaf == "a"


def test_views_are_views() -> None:
    slot = torch.zeros(LAYOUT.extent_bytes, dtype=torch.uint8)
    tree: Any = materialize(LAYOUT, slot)
    tree["x"][1] = -1
    assert slot.tolist()[4:8] == [255] * 4


def test_slots_may_start_inside_a_storage() -> None:
    storage = torch.zeros(64, dtype=torch.uint8)
    tree: Any = materialize(LAYOUT, storage[32:])
    tree["x"].fill_(-1)
    assert storage.tolist() == [0] * 32 + [255] * 16 + [0] * 16


# --- classes ------------------------------------------------------------------------------------


def test_dataclasses_come_back_without_running_code() -> None:
    @dataclass
    class Once:
        x: torch.Tensor

        def __post_init__(self) -> None:
            raise AssertionError("state is set, not computed")

    value = object.__new__(Once)
    value.x = torch.ones(2)
    _, _, back = moved(value, (Once,))
    assert type(back) is Once
    assert back.x.tolist() == [1, 1]


def test_a_class_that_was_not_given_is_refused() -> None:
    layout = plan({"cache": Record(1, torch.zeros(1))})
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    with pytest.raises(InvalidInput) as caught:
        materialize(layout, slot)
    assert caught.value.leaf == "cache"
    with pytest.raises(InvalidInput):
        materialize(layout, slot, (int,))


def test_a_class_of_another_release_is_refused() -> None:
    """A library renames a field: the same class name, another shape."""

    def release(name: str) -> type:
        namespace: dict[str, object] = {"__annotations__": {name: int}, "__module__": "library"}
        return dataclass(type("Cache", (), namespace))

    old, new = release("key_cache"), release("layers")
    layout = plan({"cache": old(1)})
    with pytest.raises(InvalidInput) as caught:
        materialize(layout, torch.zeros(0, dtype=torch.uint8), (new,))
    assert caught.value.leaf == "cache"
    with pytest.raises(InvalidInput) as caught:
        materialize(layout, torch.zeros(0, dtype=torch.uint8), (old, new))
    assert caught.value.field == "classes"
