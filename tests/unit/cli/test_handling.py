"""What a codec, a digest engine and a set-up make of a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.admissibility.codec import Codec
from worldline.admissibility.condition import Transfer
from worldline.admissibility.schedule import VerificationPlacement
from worldline.cli.handling import Handling

GBIT_PER_S = 1e9 / 8
TRANSFER = Transfer(1_670_124_960, 400.0)
CODEC = Codec(0.644, 230e9, 252e9)


def test_without_an_engine_the_rate_is_the_paths() -> None:
    assert Handling(setup_ms=5.0).condition(TRANSFER, 1e9).t_migrate_ms == pytest.approx(
        5 + 1670.124960
    )


def test_sequential_verification_is_the_sum_of_both_passes() -> None:
    handling = Handling(digest_rate_bytes_per_s=52.6e9, placement=VerificationPlacement.SEQUENTIAL)
    wire_ms = TRANSFER.state_bytes / (97.95 * GBIT_PER_S) * 1e3
    digest_ms = TRANSFER.state_bytes / 52.6e9 * 1e3
    condition = handling.condition(TRANSFER, 97.95 * GBIT_PER_S)
    assert condition.t_migrate_ms == pytest.approx(wire_ms + digest_ms)


def test_with_a_codec_the_whole_state_is_digested() -> None:
    handling = Handling(
        codec=CODEC, digest_rate_bytes_per_s=10e9, placement=VerificationPlacement.SEQUENTIAL
    )
    condition = handling.condition(TRANSFER, 25 * GBIT_PER_S)
    state_bytes = TRANSFER.state_bytes
    wire_ms = 0.644 * state_bytes / (25 * GBIT_PER_S) * 1e3
    codec_ms = state_bytes / 230e9 * 1e3 + state_bytes / 252e9 * 1e3
    assert condition.t_migrate_ms == pytest.approx(
        wire_ms + codec_ms + state_bytes / 10e9 * 1e3, rel=1e-6
    )


@given(
    st.integers(1, 10**12),
    st.floats(1e6, 1e12),
    st.floats(1e6, 1e12),
    st.sampled_from(VerificationPlacement),
)
def test_verification_never_makes_a_path_faster(
    state_bytes: int, wire: float, digest: float, placement: VerificationPlacement
) -> None:
    handling = Handling(digest_rate_bytes_per_s=digest, placement=placement)
    rate = handling.verified_rate_bytes_per_s(state_bytes, wire)
    assert rate <= min(wire, digest) * (1 + 1e-9)
    assert rate >= 1 / (1 / wire + 1 / digest) * (1 - 1e-9)
