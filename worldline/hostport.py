"""Host and port: where a service listens, and what it says of itself so that others can dial it.

An any-address (0.0.0.0, [::]) can be listened on and not dialled: a peer on another host that was
told of it would reach itself.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from worldline.errors import InvalidInput

PORT_MAX = 65_535
#: Names as in RFC 1123, and the underscores that container engines put into theirs.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?", re.ASCII)
_HOST_PORT = re.compile(
    r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, without brackets, and a port; 0 only where one listens and any will do."""

    host: str
    port: int

    @property
    def is_any(self) -> bool:
        """Whether it means every address of the host that it is used on."""
        address = _numeric(self.host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            return address.ipv4_mapped.is_unspecified
        return address is not None and address.is_unspecified

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listened(text: str, field: str = "listen") -> HostPort:
    """Parse where to listen: `HOST:PORT`, an IPv6 host in brackets, port 0 for any free one.

    Raises:
        InvalidInput: it is no such address; `field` is named.
    """
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise _invalid(text, field)
    host = match["six"] or match["host"]
    if (match["six"] is not None) != isinstance(_numeric(host), ipaddress.IPv6Address):
        raise _invalid(text, field)
    if _numeric(host) is None and not _is_name(host):
        raise _invalid(text, field)
    return HostPort(host, int(match["port"]))


def dialled(text: str, field: str) -> HostPort:
    """Parse what others dial: as where to listen, but of one host and with its port.

    Raises:
        InvalidInput: it is no such address; `field` is named.
    """
    address = listened(text, field)
    if address.is_any:
        raise InvalidInput(
            f"{field} is dialled by other hosts, and {text} means every address of their own; "
            "give a name or an address of this host",
            reason="NOT_DIALABLE",
            field=field,
        )
    if address.port == 0:
        raise InvalidInput(
            f"{field} is dialled, which takes a port of 1 to {PORT_MAX}; got {text!r}",
            reason="NOT_DIALABLE",
            field=field,
        )
    return address


def check_advertised(listen: str, advertise: str) -> None:
    """Whether a service that listens there and says this of itself can be dialled.

    Raises:
        InvalidInput: it cannot; `field` is `advertise`, or `listen` where that does not parse.
    """
    address = listened(listen)
    if advertise:
        dialled(advertise, "advertise")
    elif address.is_any:
        raise InvalidInput(
            f"listen {listen} means every address of this host, and none of them can be told to "
            "others; advertise the one that they are to dial, as in node-1.example:7402",
            reason="NOT_DIALABLE",
            field="advertise",
        )


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_name(host: str) -> bool:
    """Not `10.0.0`, `256.1.1.1` or `0`, of which resolvers make addresses of their own."""
    return _NAME.fullmatch(host) is not None and bool(host.strip("0123456789."))


def _invalid(text: str, field: str) -> InvalidInput:
    return InvalidInput(
        f"{field} must be HOST:PORT, an IPv6 address in brackets, as in 0.0.0.0:7400, [::]:7400 "
        f"or node-1.example:7400; got {text!r}",
        field=field,
    )
