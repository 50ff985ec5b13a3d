"""Dialled: the addresses of peers that a service was told, checked before anybody waits for them.

gRPC tries an address that nobody can have for as long as it is let, and says nothing meanwhile.
"""

from __future__ import annotations

import re

from worldline.hostport import dialled

#: Names that gRPC resolves by itself (its naming document).
_SCHEME = re.compile(r"(unix|unix-abstract|dns|ipv4|ipv6|vsock|xds):\S*\D\S*")


def check_dialled(**addresses: str) -> None:
    """Every address by its setting's name; an empty one is not set.

    Raises:
        InvalidInput: the first that nobody can have; `field` is its name.
    """
    for field, text in addresses.items():
        if text and not _SCHEME.fullmatch(text):
            dialled(text, field)
