"""The full-size preset's arithmetic, as far as it can be held against the small one's on a CPU."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.engine.model import graph_world
from services.engine.model.causal import CausalWorld
from services.engine.model.config import MG2, TINY
from services.engine.model.pointwise import Pointwise, attend, attend_frames, compiled, plain
from services.engine.model.rotary import phasors, rotate, rotate_pairs
from services.engine.model.weights import build_weights, in_bfloat16
from tests.unit.engine.support import PrivateState, script
from worldline.errors import Unavailable

MICRO = replace(TINY, layers=2, action_layers=1, heads=2, rows=4, cols=4, ffn_dim=64)
CPU = torch.device("cpu")
BLOCKS = 4
TOKENS = MICRO.frames_per_block * MICRO.tokens_per_frame


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def latents_of(world: CausalWorld) -> Tensor:
    """What the decoder's cache holds behind some blocks: every pass had its part in it."""
    session = PrivateState(world)
    for block in range(BLOCKS):
        session.block(script(block))
    latents: Tensor = session.tree["decoder"]["latent"].clone()
    return latents


def apart(one: Tensor, other: Tensor) -> float:
    """Norm of the difference over that of the first."""
    return float((one.double() - other.double()).norm() / one.double().norm())


def arguments(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random ones with the shapes that a pass has."""
    drawn = torch.Generator().manual_seed(len(name))

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(dtype)

    hidden, row = normal(TOKENS, MICRO.dim), normal(MICRO.dim)
    update = normal(TOKENS, MICRO.dim, dtype=dtype)
    values = normal(1, TOKENS, MICRO.heads, MICRO.head_dim, dtype=dtype)
    turns = phasors(normal(TOKENS, MICRO.head_dim // 2))
    frames = [normal(16, count, 4, 32, dtype=dtype) for count in (3, 6, 6)]
    return {
        "modulated": (hidden, row, row.flip(0)),
        "gated": (hidden, row, update),
        "gated_normed": (hidden, row, update),
        "added_normed": (hidden, update),
        "added_modulated": (hidden, update, row, row.flip(0)),
        "unit": (values,),
        "turned": (values, turns),
        "write_turned": (torch.zeros_like(values, dtype=torch.bfloat16), values, turns),
        "attend_frames": tuple(frames),
    }[name]


def called(functions: Pointwise, name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What it returns, or what it has written."""
    given = arguments(name, dtype)
    result = getattr(functions, name)(*given)
    if result is None:
        return given[:1]
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [field.name for field in fields(Pointwise)])
def test_what_is_compiled_is_what_is_plain(name: str, dtype: torch.dtype) -> None:
    """As one graph, without a break; a sum in another order is all that may differ."""
    expected = called(plain(dtype), name, dtype)
    traced = called(compiled(dtype, backend="aot_eager"), name, dtype)
    for one, other in zip(expected, traced, strict=True):
        assert other.dtype is one.dtype
        assert apart(one, other) < (1e-6 if one.dtype is torch.float32 else 1e-2)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6))
def test_a_turn_needs_no_complex_numbers(seed: int, count: int, pairs: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(2, count, 3, 2 * pairs, generator=drawn)
    turns = phasors(10 * torch.randn(count, pairs, generator=drawn))
    turned = rotate(values, turns)
    torch.testing.assert_close(turned, rotate_pairs(values, turns))
    torch.testing.assert_close(turned.norm(), values.norm())


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 6))
def test_attention_written_out_is_attention(seed: int, queries: int, keys: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(5, count, 2, 8, generator=drawn) for count in (queries, keys, keys)
    )
    torch.testing.assert_close(attend_frames(query, key, value), attend(query, key, value))


def test_bfloat16_stays_near_float32() -> None:
    weights = build_weights(MICRO, 0, CPU)
    wide = latents_of(CausalWorld(weights))
    narrow = latents_of(CausalWorld(in_bfloat16(weights)))
    other = latents_of(CausalWorld(in_bfloat16(build_weights(MICRO, 1, CPU))))
    assert 0 < apart(wide, narrow) < 0.2 < apart(wide, other)


def test_only_the_blocks_products_are_narrowed() -> None:
    weights = in_bfloat16(build_weights(MICRO, 0, CPU))
    assert weights.dtype is torch.bfloat16
    wired, unwired = weights.blocks
    assert wired.action is not None
    assert unwired.action is None
    assert wired.action.mouse_qkv.dtype is torch.bfloat16
    kept = (weights.latent_in, weights.positions, weights.latent_out, wired.modulation)
    assert {one.dtype for one in kept} == {torch.float32}


@pytest.mark.parametrize("named", [None, "no-such-compiler"])
def test_without_a_compiler_the_world_says_so(
    monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    if named is None:
        monkeypatch.delenv("CC", raising=False)
    else:
        monkeypatch.setenv("CC", named)
    with pytest.raises(Unavailable, match=named or "gcc or clang") as refused:
        graph_world.graph_world(replace(build_weights(MICRO, 0, CPU), config=MG2))
    assert (refused.value.reason, refused.value.field) == ("COMPILER_MISSING", "world.preset")
