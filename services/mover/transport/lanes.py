"""Lanes: how the bytes travel between two processes of one host, and what UCX is told for it.

Between hosts UCX takes RDMA where there is some, else TCP, whichever of these is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Lane(Enum):
    """What a mover may be set to."""

    #: In place where both ends can, else what UCX prefers.
    AUTO = "auto"
    #: UCX copies through shared memory: twice, by both ends' cores.
    POSIX = "posix"
    #: UCX has the kernel copy from process to process: once, by the receiver's core.
    CMA = "cma"
    #: As between hosts.
    TCP = "tcp"


#: For every lane. `UCX_*` variables win over these.
#:
#: - `POSIX_ERROR_HANDLING=y` keeps the shared-memory lane with endpoints that notice a dead peer.
#: - `TCP_TX_SEG_SIZE`, `TCP_RX_SEG_SIZE`: the default of 8 KiB costs four fifths of the rate.
#: - `KEEPALIVE_INTERVAL=1s`: a dead peer is noticed in about a second instead of twenty.
_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "POSIX_ERROR_HANDLING": "y",
        "TCP_TX_SEG_SIZE": "1m",
        "TCP_RX_SEG_SIZE": "2m",
        "KEEPALIVE_INTERVAL": "1s",
    }
)
#: CMA cannot take the right to read back from a peer, and UCX therefore leaves it out where errors
#: are handled, unless told that it can. Here it need not: with `get_zcopy` a peer reads and never
#: writes, and what it reads after an abort it throws away.
_CMA: Mapping[str, str] = MappingProxyType(
    {"CMA_MEMORY_INVALIDATE": "y", "RNDV_SCHEME": "get_zcopy"}
)
_OPTIONS: Mapping[Lane, Mapping[str, str]] = MappingProxyType(
    {Lane.AUTO: {}, Lane.POSIX: {}, Lane.CMA: _CMA, Lane.TCP: {"TLS": "tcp,self"}}
)


def ucx_options(
    lane: Lane, extra: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """UCX's options without their prefix: these, save where the environment has its own."""
    named = environment.get("UCX_TLS", extra.get("TLS", ""))
    wanted = {**_DEFAULTS, **_OPTIONS[lane]}
    if "cma" in named.split(","):
        wanted.update(_CMA)
    wanted.update(extra)
    return {name: value for name, value in wanted.items() if f"UCX_{name}" not in environment}


def reads_in_place(lane: Lane, extra: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether neighbours may map this process's memory: nobody has asked for other lanes."""
    return lane is Lane.AUTO and "TLS" not in extra and "UCX_TLS" not in environment
