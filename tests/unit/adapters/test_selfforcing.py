"""Caches of Self-Forcing's pipelines: into a tree and back without a trace, or refused whole."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.engine.model.config import MG2
from services.engine.model.state import CACHE_KEYS, state_spec
from tests.selfforcing import BLOCKS, FLAVOURS, WINDOW_FRAMES, Pipeline
from worldline.adapters.selfforcing import caches_from, caches_of, copy_into, tree_of
from worldline.adapters.selfforcing.forms import KINDS
from worldline.errors import InvalidInput
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.harvest import harvest
from worldline.state.tree import TensorSpec, materialize, pack, plan

SEED = 5
#: Blocks before the move: caches that nothing wrote yet, that are filling, that have rolled.
MOMENTS = (0, 1, 2, 5)
_PARAMETER = torch.nn.Parameter(torch.ones(1))
_META = torch.device("meta")


def played(flavour: str, blocks: int) -> Pipeline:
    pipeline = Pipeline(flavour)
    pipeline.begin(SEED)
    for _ in range(blocks):
        pipeline.block()
    return pipeline


def fresh(flavour: str) -> Pipeline:
    """A receiver that has made its caches, and played something else in them."""
    pipeline = Pipeline(flavour)
    pipeline.begin(SEED + 1)
    return pipeline


def packed(tree: Any) -> tuple[Any, torch.Tensor]:
    layout = plan(tree)
    slot = torch.full((layout.extent_bytes,), 0xA5, dtype=torch.uint8)
    return pack(tree, layout, slot), slot


def moved(tree: Any) -> Any:
    """The tree as another process gets it: bytes of a slot, and a layout off the wire."""
    layout, slot = packed(tree)
    return materialize(layout_from_proto(layout_to_proto(layout)), slot.clone())


def state_of(pipeline: Pipeline) -> dict[str, Any]:
    return pipeline.state(tree_of(caches_of(pipeline)))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("blocks", MOMENTS)
def test_generation_goes_on_as_if_nothing_had_happened(flavour: str, blocks: int) -> None:
    source, target = played(flavour, blocks), fresh(flavour)
    state = moved(state_of(source))
    target.install(caches_from(state["caches"], caches_of(target)), state)
    expected = [source.block() for _ in range(4)]
    there = [target.block() for _ in range(2)]
    # And back, by copy where every tensor is there to be copied into.
    state = moved(state_of(target))
    back = played(flavour, 3)
    copy_into(state["caches"], caches_of(back))
    back.install({}, state)
    assert there + [back.block() for _ in range(2)] == expected
    assert len({*expected}) == 4, "a pipeline that repeats itself proves nothing"


_CHILD = """
import json, sys, torch
from pathlib import Path
from tests.selfforcing import FLAVOURS, Pipeline
from worldline.adapters.selfforcing import caches_from, caches_of
from worldline.state.codec import layout_from_proto
from worldline.state.tree import materialize
from worldline.v1 import manifest_pb2

torch.set_num_threads(1)
said = {}
for flavour in FLAVOURS:
    path = Path(sys.argv[1]) / flavour
    layout = layout_from_proto(manifest_pb2.Layout.FromString((path / "layout").read_bytes()))
    slot = torch.frombuffer(bytearray((path / "slot").read_bytes()), dtype=torch.uint8)
    state = materialize(layout, slot)
    pipeline = Pipeline(flavour)
    pipeline.begin(0)
    pipeline.install(caches_from(state["caches"], caches_of(pipeline)), state)
    said[flavour] = [pipeline.block() for _ in range(3)]
print(json.dumps(said))
"""


def test_it_goes_on_in_another_process(tmp_path: Path) -> None:
    expected = {}
    for flavour in FLAVOURS:
        source = played(flavour, 5)
        layout, slot = packed(state_of(source))
        (tmp_path / flavour).mkdir()
        (tmp_path / flavour / "layout").write_bytes(layout_to_proto(layout).SerializeToString())
        (tmp_path / flavour / "slot").write_bytes(slot.numpy().tobytes())
        expected[flavour] = [source.block() for _ in range(3)]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    assert json.loads(done.stdout) == expected


# The tree.


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_tree_holds_the_caches_own_tensors_in_new_containers(flavour: str) -> None:
    pipeline = played(flavour, 5)
    tree = tree_of(caches_of(pipeline))
    assert list(tree) == ["kv_cache1", "kv_cache_mouse", "crossattn_cache", "vae_cache"]
    for name, cache in tree.items():
        assert cache is not getattr(pipeline, name)
    for index in range(BLOCKS):
        for name in ("kv_cache1", "kv_cache_mouse", "crossattn_cache"):
            own = getattr(pipeline, name)[index]
            assert tree[name][index] is not own
            assert all(tree[name][index][key] is own[key] for key in own)
    assert isinstance(tree["crossattn_cache"][0]["is_init"], bool) == (flavour != "flags")
    assert isinstance(tree["kv_cache1"][0]["global_end_index"], int) == (flavour == "numbers")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_no_leaf_or_scalar_can_be_lost(flavour: str) -> None:
    """Changed on its own, each changes what follows, or is refused."""
    source = played(flavour, WINDOW_FRAMES // 2 - 1)
    state = state_of(source)
    twin = copy.deepcopy(source)
    expected = [twin.block() for _ in range(2)]
    changes = 0
    for name, cache in state["caches"].items():
        for index, entry in enumerate(cache):
            keys = entry if isinstance(entry, dict) else (None,)
            for key in keys:
                other = moved(state)
                container, at = (
                    (other["caches"][name], index)
                    if key is None
                    else (other["caches"][name][index], key)
                )
                container[at] = _perturbed(container[at])
                changes += 1
                assert _followed(flavour, other) != expected, f"{name}[{index}].{key}"
    assert changes == BLOCKS * (4 + 4 + 3) + 2


def _perturbed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return None
    if value.dtype is torch.bool:
        return ~value
    return value + 1


def _followed(flavour: str, state: Any) -> list[int] | str:
    target = Pipeline(flavour)
    target.begin(SEED + 1)
    # A flag alone has the text projected anew, to what it was: its keys must go with it.
    for block in state["caches"]["crossattn_cache"]:
        if not block["is_init"]:
            target.text = target.text * 2
    try:
        target.install(caches_from(state["caches"], caches_of(target)), state)
        return [target.block() for _ in range(2)]
    except (InvalidInput, RuntimeError) as error:
        return str(error)


def test_the_layout_of_matrix_game_2_needs_no_memory() -> None:
    """30 blocks as its pipeline allocates them: 420 tensors, 450 leaves, 1,670,124,960 bytes."""

    def rolling(*shape: int) -> list[dict[str, Any]]:
        index = torch.empty(1, dtype=torch.int64, device=_META)
        keys = torch.empty(shape, dtype=torch.bfloat16, device=_META)
        return [
            {"k": keys, "v": keys, "global_end_index": index, "local_end_index": index}
            for _ in range(30)
        ]

    text = torch.empty(1, 257, 12, 128, dtype=torch.bfloat16, device=_META)
    caches = {
        "kv_cache": rolling(1, 6 * 880, 12, 128),
        "kv_cache_mouse": rolling(880, 6, 16, 64),
        "kv_cache_keyboard": rolling(1, 6, 16, 64),
        "crossattn_cache": [{"k": text, "v": text, "is_init": False} for _ in range(30)],
    }
    tree = tree_of(caches)
    with pytest.raises(InvalidInput, match="meta tensor"):
        plan(tree)
    layout = plan(_specs(tree))
    assert len(layout.tensors) == 420
    assert len(layout.tensors) + len(layout.scalars) == 450
    assert layout.extent_bytes == sum(one.size_bytes for one in layout.tensors) == 1_670_124_960
    # Name by name and shape by shape that of the preset which has its state.
    spec = state_spec(MG2)
    assert layout == plan({name: spec[name] for name in CACHE_KEYS})


def _specs(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec(value.dtype, tuple(value.shape))
    if isinstance(value, dict):
        return {key: _specs(child) for key, child in value.items()}
    return [_specs(child) for child in value] if isinstance(value, list) else value


def test_a_cache_that_was_not_made_yet_travels_as_none() -> None:
    pipeline = Pipeline("numbers")
    tree = moved(tree_of(caches_of(pipeline)) | {"more": torch.zeros(1)})
    del tree["more"]
    assert tree == dict.fromkeys(
        ("kv_cache1", "kv_cache_mouse", "crossattn_cache", "vae_cache"), None
    )
    assert caches_from(tree, caches_of(fresh("numbers"))) == tree
    with pytest.raises(InvalidInput, match="one side only"):
        copy_into(tree, caches_of(fresh("numbers")))


# Refused whole.


def _refused(caches: Any, field: str, reason: str = "CACHE_SHAPE_UNKNOWN", said: str = "") -> None:
    with pytest.raises(InvalidInput) as refused:
        tree_of(caches)
    assert (refused.value.field, refused.value.reason) == (field, reason)
    assert said in refused.value.message


@pytest.mark.parametrize("name", ["kv_cache1", "kv_cache_mouse", "crossattn_cache"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_one_key_more_or_less_is_refused(flavour: str, name: str) -> None:
    caches = caches_of(played(flavour, 2))
    block = caches[name][1]
    for key in list(block):
        kept = block.pop(key)
        _refused(caches, f"{name}[1].{key}")
        for other in (
            None,
            "x",
            object(),
            1.0,
            torch.zeros(2, 3),
            torch.nn.Parameter(torch.ones(1)),
        ):
            block[key] = other
            _refused(caches, f"{name}[1].{key}")
        block[key] = kept
    block["k_scales"] = torch.ones(1)
    _refused(caches, f"{name}[1].k_scales", said="not known here")
    del block["k_scales"]
    tree_of(caches)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda caches: caches.update(kv_cache1=tuple(caches["kv_cache1"])), "kv_cache1"),
        (lambda caches: caches.update(kv_cache1={}), "kv_cache1"),
        (lambda caches: caches["kv_cache1"].append(None), "kv_cache1[3]"),
        (lambda caches: caches.update(vae_cache={}), "vae_cache"),
        (lambda caches: caches["vae_cache"].append("Red"), "vae_cache[2]"),
        (lambda caches: caches["vae_cache"].append([]), "vae_cache[2]"),
        (
            lambda caches: caches["kv_cache1"][0].update(local_end_index=True),
            "kv_cache1[0].local_end_index",
        ),
        (
            lambda caches: caches["kv_cache1"][0].update(local_end_index=torch.tensor([1])),
            "kv_cache1[0].local_end_index",
        ),
        (
            lambda caches: caches["kv_cache1"][0].update(local_end_index=25),
            "kv_cache1[0].local_end_index",
        ),
        (
            lambda caches: caches["kv_cache1"][0].update(local_end_index=-1),
            "kv_cache1[0].local_end_index",
        ),
        (
            lambda caches: caches["kv_cache1"][0].update(global_end_index=3),
            "kv_cache1[0].local_end_index",
        ),
        (
            lambda caches: caches["kv_cache1"][0].update(v=torch.zeros(1, 24, 2, 8).half()),
            "kv_cache1[0].v",
        ),
        (
            lambda caches: caches["crossattn_cache"][0].update(is_init=1),
            "crossattn_cache[0].is_init",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(spoil: Callable[[Any], Any], field: str) -> None:
    caches = caches_of(played("numbers", 2))
    spoil(caches)
    _refused(caches, field)


def test_caches_that_are_not_known() -> None:
    caches = caches_of(played("numbers", 1))
    _refused({**caches, "kv_bank": []}, "kv_bank", "CACHE_CLASS_UNKNOWN", "kv_cache1")
    _refused({**caches, 7: []}, "7", "CACHE_CLASS_UNKNOWN")
    _refused([caches], "caches", "CACHE_CLASS_UNKNOWN", "list")
    pipeline: Any = played("numbers", 1)
    pipeline.kv_cache_size = 24
    with pytest.raises(InvalidInput, match="besides") as refused:
        caches_of(pipeline)
    assert refused.value.field == "kv_cache_size"
    assert caches_of(pipeline, besides=["kv_cache_size"]).keys() == caches.keys()
    with pytest.raises(InvalidInput, match="no cache"):
        caches_of(object.__new__(type("Empty", (), {})))
    assert set(caches) <= set(KINDS)


# The receiving side.


def _mismatch(
    install: Callable[[Any, Any], Any], caches: Any, field: str, flavour: str = "tensors"
) -> None:
    """Nothing is written unless everything fits."""
    tree = moved(tree_of(caches_of(played(flavour, 5))))
    before = copy.deepcopy(caches)
    with pytest.raises(InvalidInput) as refused:
        install(tree, caches)
    assert (refused.value.field, refused.value.reason) == (field, "CACHE_MISMATCH")
    for one, other in zip(harvest(before).tensors, harvest(caches).tensors, strict=True):
        assert isinstance(one.value, torch.Tensor)
        assert isinstance(other.value, torch.Tensor)
        assert torch.equal(one.value, other.value)
    assert harvest(before).scalars == harvest(caches).scalars


@pytest.mark.parametrize("install", [caches_from, copy_into])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda caches: caches.pop("kv_cache_mouse"), "kv_cache_mouse"),
        (lambda caches: caches.update(kv_cache_keyboard=None), "kv_cache_keyboard"),
        (lambda caches: caches["kv_cache1"].pop(), "kv_cache1"),
        (lambda caches: caches["vae_cache"].append(None), "vae_cache"),
        (
            lambda caches: caches["kv_cache1"][2].update(
                k=torch.zeros(1, 12, 2, 8), v=torch.zeros(1, 12, 2, 8)
            ),
            "kv_cache1[2].k",
        ),
        (
            lambda caches: caches["crossattn_cache"][2].update(
                k=torch.zeros(1, 5, 2, 8).half(), v=torch.zeros(1, 5, 2, 8).half()
            ),
            "crossattn_cache[2].k",
        ),
        (
            lambda caches: caches["kv_cache1"][2].update(global_end_index=9, local_end_index=9),
            "kv_cache1[2].global_end_index",
        ),
        (
            lambda caches: caches["crossattn_cache"][0].update(is_init=torch.tensor([True])),
            "crossattn_cache[0].is_init",
        ),
        (lambda caches: caches["vae_cache"].__setitem__(1, torch.zeros(3)), "vae_cache[1]"),
    ],
)
def test_a_receiver_of_another_configuration_refuses(
    install: Callable[[Any, Any], Any], change: Callable[[Any], Any], field: str
) -> None:
    caches = caches_of(played("tensors", 5))
    change(caches)
    _mismatch(install, caches, field)


def test_copying_needs_a_tensor_to_copy_into() -> None:
    _mismatch(copy_into, caches_of(fresh("tensors")), "vae_cache[0]")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_copying_moves_no_address(flavour: str) -> None:
    held = played(flavour, 4)
    before = [item.address for item in harvest(caches_of(held)).tensors]
    source = played(flavour, 6)
    state = moved(state_of(source))
    copy_into(state["caches"], caches_of(held))
    assert [item.address for item in harvest(caches_of(held)).tensors] == before
    held.install({}, state)
    assert held.block() == source.block()


def test_rolling_caches_made_from_a_slot_go_on_in_the_slot() -> None:
    source = played("tensors", 5)
    layout, slot = packed(state_of(source))
    state: Any = materialize(layout, slot)
    target = fresh("tensors")
    target.install(caches_from(state["caches"], caches_of(target)), state)
    before = slot.clone()
    target.block()
    assert not torch.equal(slot, before)
    span = range(slot.data_ptr(), slot.data_ptr() + slot.numel())
    for cache in (target.kv_cache1, target.kv_cache_mouse):
        for block in cache:
            assert all(block[key].data_ptr() in span for key in block)
    # The decoder keeps tensors of its own, which the tree of the next move has.
    assert target.vae_cache[0].data_ptr() not in span
    assert tree_of(caches_of(target))["vae_cache"][0] is target.vae_cache[0]
