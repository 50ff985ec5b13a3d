"""The arithmetic of the lossy family: fidelity, eight bits, low rank, nearest pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from bench.lossy.fidelity import CEILING_DB, divergence_db, psnr_db
from bench.lossy.lowrank import factor_elements, low_rank
from bench.lossy.nearest import nearest, same_bits
from bench.lossy.quantise import eight_bit_bytes, fp8, int8

SAMPLES = arrays(np.uint8, (2, 3, 4))
SHARED = st.sampled_from([(0, 1, 2, 3), (0, 1), (1,), (3,)])
SEEDS = st.integers(0, 1 << 32)
#: From the smallest that a cache could hold to the largest.
SCALES = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 5e3, 1e30])


def values(seed: int, scale: float, shape: tuple[int, ...] = (2, 5, 3, 4)) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * scale).to(torch.bfloat16)


@given(one=SAMPLES, other=SAMPLES)
def test_psnr_is_infinite_for_the_same_bits_alone(one: np.ndarray, other: np.ndarray) -> None:
    found = psnr_db(one, other)
    assert math.isinf(found) == np.array_equal(one, other)
    assert found == psnr_db(other, one)
    assert found >= 0.0


def test_psnr_is_that_of_the_textbook() -> None:
    black, white = np.zeros((2, 2, 2, 3), np.uint8), np.full((2, 2, 2, 3), 255, np.uint8)
    assert psnr_db(black, white) == 0.0
    assert psnr_db(black, black + np.uint8(1)) == pytest.approx(48.1308, abs=1e-4)
    one_off = black.copy()
    one_off[0, 0, 0, 0] = 1
    # A 24th of the mean square error: 10 lg 24 more.
    assert psnr_db(one_off, black) == pytest.approx(48.1308 + 13.8021, abs=1e-4)


@given(psnr=st.floats(0.0, 200.0))
def test_divergence_falls_with_fidelity_and_is_never_negative(psnr: float) -> None:
    assert divergence_db(psnr) == max(0.0, CEILING_DB - psnr)
    assert divergence_db(math.inf) == 0.0


@given(seed=SEEDS, scale=SCALES, shared=SHARED)
def test_int8_is_off_by_half_a_level(seed: int, scale: float, shared: tuple[int, ...]) -> None:
    exact = values(seed, scale)
    restored = int8(exact, shared)
    peak = exact.float().abs().amax(dim=shared, keepdim=True)
    # Half a level, and the rounding of the restored value to bfloat16.
    off = (restored.float() - exact.float()).abs()
    assert bool((off <= peak / 254 * 1.001 + restored.float().abs() * 2**-8).all())
    assert restored.dtype is torch.bfloat16
    assert restored.isfinite().all()


@given(seed=SEEDS, scale=SCALES, shared=SHARED)
def test_fp8_is_off_by_its_mantissa(seed: int, scale: float, shared: tuple[int, ...]) -> None:
    exact = values(seed, scale)
    restored = fp8(exact, shared)
    peak = exact.float().abs().amax(dim=shared, keepdim=True)
    # Three bits of mantissa: a sixteenth at most; below 2**-6 of 448 the steps are equal.
    off = (restored.float() - exact.float()).abs()
    bound = exact.float().abs() / 16 * 1.01 + peak / 448 * 2**-10 * 1.01
    assert bool((off <= bound + restored.float().abs() * 2**-8).all())
    assert restored.isfinite().all()


@given(seed=SEEDS, scale=SCALES)
def test_a_scale_for_each_channel_serves_each_channel(seed: int, scale: float) -> None:
    """One channel a million times larger ruins the others where all share a scale."""
    exact = values(seed, scale or 1.0)
    exact[..., 0] *= 1e6
    others = exact[..., 1:].float()
    apart = (int8(exact, (0, 1))[..., 1:].float() - others).abs()
    together = (int8(exact, (0, 1, 2, 3))[..., 1:].float() - others).abs()
    assert float(apart.sum()) < float(together.sum())


def test_eight_bits_count_their_scales() -> None:
    assert eight_bit_bytes((2, 5, 3, 4), (0, 1, 2, 3)) == 120 + 4
    assert eight_bit_bytes((2, 5, 3, 4), (0, 1)) == 120 + 4 * 12


@given(seed=SEEDS, rank=st.integers(1, 6))
def test_low_rank_is_of_that_rank_and_exact_where_the_matrix_is(seed: int, rank: int) -> None:
    matrices = torch.randn((2, 9, 6), generator=torch.Generator().manual_seed(seed))
    near = low_rank(matrices, rank)
    assert bool((torch.linalg.matrix_rank(near, rtol=1e-4) <= rank).all())
    assert torch.allclose(low_rank(near, rank), near, atol=1e-4)
    assert torch.allclose(low_rank(matrices, 6), matrices, atol=1e-4)
    strengths = torch.linalg.svdvals(matrices)
    # Eckart and Young: what is left is what was cut off, and no other matrix leaves less.
    left = torch.linalg.matrix_norm(near - matrices)
    assert torch.allclose(left, strengths[:, rank:].square().sum(dim=1).sqrt(), atol=1e-4)


def test_factors_are_counted() -> None:
    assert factor_elements(384, 32, 16) == 384 * 16 + 16 * 32


@given(seed=SEEDS, count=st.integers(1, 5))
def test_nearest_is_the_nearest(seed: int, count: int) -> None:
    pieces = [values(seed + number, 1.0) for number in range(count + 1)]
    match = nearest(pieces[0], pieces[1:])
    gaps = [float((pieces[0].float() - other.float()).norm()) for other in pieces[1:]]
    assert gaps[match.candidate] == min(gaps)
    assert match.distance == pytest.approx(min(gaps) / float(pieces[0].float().norm()), rel=1e-5)
    assert nearest(pieces[0], pieces).distance == 0.0


def test_only_the_same_bits_are_the_same() -> None:
    zero, negative = torch.zeros(3, dtype=torch.bfloat16), -torch.zeros(3, dtype=torch.bfloat16)
    assert same_bits(zero, zero.clone())
    assert not same_bits(zero, negative)
    # Equal as numbers, and still no piece that can be had for its name.
    assert nearest(zero, [negative]).distance == math.inf
