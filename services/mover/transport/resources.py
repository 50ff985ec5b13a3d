"""Resources: the transports and devices that UCX has on this machine, whatever its variables say.

Asked of a context of its own, which opens no device: a few milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import ucxx._lib.libucxx as ucx_api

from worldline.errors import Unavailable

#: `resource 1  :  md 1  dev 1  flags -- tcp/eth0`, as ucp_context_print_info writes it.
_RESOURCE = re.compile(r"^#\s+resource\s+\d+\s+:.*\s(?P<lane>\S+/\S+)\s*$", re.MULTILINE)
#: Over the environment's, which are the ones in doubt.
EVERYTHING: Mapping[str, str] = {"TLS": "all", "NET_DEVICES": "all"}


@cache
def lanes_here() -> tuple[str, ...]:
    """Every `transport/device`, sorted. Asked once a process.

    Raises:
        Unavailable: UCX cannot be used at all, or reads one of its variables as nonsense.
    """
    try:
        context: Any = ucx_api.UCXContext(dict(EVERYTHING), (ucx_api.Feature.TAG,))
    except (ucx_api.UCXError, OSError, RuntimeError) as error:
        raise Unavailable(
            f"UCX does not work here: {error}; its log names the variable at fault",
            reason="TRANSPORT_UNUSABLE",
        ) from error
    return parse_resources(context.info)


def parse_resources(text: str) -> tuple[str, ...]:
    """The lanes in the description of a context, sorted."""
    return tuple(sorted({found["lane"] for found in _RESOURCE.finditer(text)}))


def ucx_version() -> str:
    """Of the library that is loaded."""
    return ".".join(str(part) for part in ucx_api.get_ucx_version())
