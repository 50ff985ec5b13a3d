"""Lanes: what UCX is told, and who may read in place."""

from __future__ import annotations

import pytest

from services.mover.transport.lanes import Lane, reads_in_place, ucx_options

EVERY = {"POSIX_ERROR_HANDLING", "TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE", "KEEPALIVE_INTERVAL"}


@pytest.mark.parametrize(
    ("lane", "more"),
    [
        (Lane.AUTO, {}),
        (Lane.POSIX, {}),
        (Lane.CMA, {"CMA_MEMORY_INVALIDATE": "y", "RNDV_SCHEME": "get_zcopy"}),
        (Lane.TCP, {"TLS": "tcp,self"}),
    ],
)
def test_every_lane_has_its_options(lane: Lane, more: dict[str, str]) -> None:
    options = ucx_options(lane, {}, {})
    assert options.keys() == EVERY | more.keys()
    assert options | more == options


def test_what_is_given_wins_and_the_environment_over_that() -> None:
    options = ucx_options(Lane.TCP, {"TLS": "posix", "EXTRA": "1"}, {"UCX_TCP_TX_SEG_SIZE": "8k"})
    assert options["TLS"] == "posix"
    assert options["EXTRA"] == "1"
    assert "TCP_TX_SEG_SIZE" not in options
    assert "TLS" not in ucx_options(Lane.TCP, {}, {"UCX_TLS": "rc"})


@pytest.mark.parametrize(
    ("extra", "environment"), [({"TLS": "posix,cma"}, {}), ({}, {"UCX_TLS": "cma,self"})]
)
def test_cma_that_was_asked_for_by_name_may_not_write(
    extra: dict[str, str], environment: dict[str, str]
) -> None:
    assert ucx_options(Lane.AUTO, extra, environment)["RNDV_SCHEME"] == "get_zcopy"


def test_neighbours_read_in_place_unless_other_lanes_were_asked_for() -> None:
    assert reads_in_place(Lane.AUTO, {"KEEPALIVE_INTERVAL": "5s"}, {"UCX_LOG_LEVEL": "info"})
    for lane in set(Lane) - {Lane.AUTO}:
        assert not reads_in_place(lane, {}, {})
    assert not reads_in_place(Lane.AUTO, {"TLS": "tcp"}, {})
    assert not reads_in_place(Lane.AUTO, {}, {"UCX_TLS": "tcp"})
