"""The state of a Matrix-Game-2-like model: 30 blocks, 420 tensors, 450 leaves, 1.67 GB exactly."""

from __future__ import annotations

import torch

from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.tree import TensorSpec, plan

BLOCKS = 30


def rolling(*shape: int) -> list[dict[str, TensorSpec]]:
    return [
        {
            "k": TensorSpec(torch.bfloat16, shape),
            "v": TensorSpec(torch.bfloat16, shape),
            "global_end_index": TensorSpec(torch.int64, (1,)),
            "local_end_index": TensorSpec(torch.int64, (1,)),
        }
        for _ in range(BLOCKS)
    ]


def state() -> dict[str, object]:
    first_frame = TensorSpec(torch.bfloat16, (1, 257, 12, 128))
    return {
        "kv_cache": rolling(1, 6 * 880, 12, 128),
        "kv_cache_mouse": rolling(880, 6, 16, 64),
        "kv_cache_keyboard": rolling(1, 6, 16, 64),
        "crossattn_cache": [
            {"k": first_frame, "v": first_frame, "is_init": False} for _ in range(BLOCKS)
        ],
    }


def test_the_layout_has_no_padding() -> None:
    layout = plan(state())
    assert len(layout.tensors) == 420
    assert len(layout.tensors) + len(layout.scalars) == 450
    assert layout.extent_bytes == 1_670_124_960
    assert sum(leaf.size_bytes for leaf in layout.tensors) == layout.extent_bytes
    assert {leaf.path for leaf in layout.tensors} >= {"kv_cache[3].k", "kv_cache_mouse[29].v"}
    assert {scalar.path for scalar in layout.scalars} >= {"crossattn_cache[29].is_init"}


def test_the_layout_fits_a_message() -> None:
    message = layout_to_proto(plan(state()))
    assert len(message.SerializeToString()) < 64 << 10
    assert layout_from_proto(message) == plan(state())


def test_dropping_any_one_leaf_changes_the_topology() -> None:
    whole = plan(state()).topology_hash
    seen = {whole}
    for name in state():
        for block in (0, 14, 29):
            for key in list(state()[name][0]):  # type: ignore[index]
                tree = state()
                del tree[name][block][key]  # type: ignore[index, attr-defined]
                seen.add(plan(tree).topology_hash)
    assert len(seen) == 1 + 3 * (3 * 4 + 3)
