"""UCX variables: what UCX_TLS and UCX_NET_DEVICES mean, read as UCX reads them. Pure.

UCX only logs a name that it does not know and goes on with the others, or with nothing but shared
memory: a fall-back that nobody notices until a move is slow (ucx#3776). Names and aliases as in
`ucp_context.c` of UCX 1.21.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TLS, NET_DEVICES = "UCX_TLS", "UCX_NET_DEVICES"
_ALL = "all"
#: Before a name: that transport alone, whatever else goes by the name.
_EXACT = "\\"
_RC, _UD, _DC = ("rc_verbs", "rc_mlx5"), ("ud_verbs", "ud_mlx5"), ("dc_mlx5",)
_SHARED_MEMORY = ("posix", "sysv", "xpmem", "cma", "knem")
_CUDA = ("cuda_copy", "cuda_ipc", "gdr_copy")
_ROCM = ("rocm_copy", "rocm_ipc", "rocm_gdr")
_ZE = ("ze_copy", "ze_ipc", "ze_gdr")
#: What one name stands for beside itself.
_ALIASES: dict[str, tuple[str, ...]] = {
    "mm": ("posix", "sysv", "xpmem"),
    "sm": _SHARED_MEMORY,
    "shm": _SHARED_MEMORY,
    "ib": (*_RC, *_UD, *_DC, "srd", "gga_mlx5"),
    "rc": _RC,
    "rc_v": ("rc_verbs",),
    "rc_x": ("rc_mlx5",),
    "ud": _UD,
    "ud_v": ("ud_verbs",),
    "ud_x": ("ud_mlx5",),
    "dc": _DC,
    "dc_x": _DC,
    "gga": ("gga_mlx5",),
    "cuda": _CUDA,
    "rocm": _ROCM,
    "ze": _ZE,
    "ugni": ("ugni_smsg", "ugni_udt", "ugni_rdma"),
}
#: Of every build of UCX: one of these may be right for another node.
_OTHERS = ("self", "tcp", "rdmacm", "sockcm", "gaudi_gdr", _ALL)
_KNOWN = frozenset((*_ALIASES, *(each for names in _ALIASES.values() for each in names), *_OTHERS))
#: What a mover says of bytes that no transport of UCX carries.
_MOVERS_OWN = ("in-place", "staged")
#: Transports whose devices UCX_NET_DEVICES does not choose.
_NOT_NETWORK = frozenset(["self", *_SHARED_MEMORY, *_CUDA, *_ROCM, *_ZE, "gaudi_gdr", *_MOVERS_OWN])
#: Those that have their segments in /dev/shm.
_IN_DEV_SHM = frozenset(["posix"])


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of names as UCX takes it: those, or with a `^` before the first all but those."""

    names: tuple[str, ...]
    negated: bool = False

    @classmethod
    def parse(cls, text: str) -> NameList:
        """Of a variable's value."""
        negated = text.startswith("^")
        parts = text.removeprefix("^").split(",")
        return cls(tuple(part.strip() for part in parts if part.strip()), negated)

    @property
    def malformed(self) -> bool:
        """UCX refuses `all` before other names."""
        return len(self.names) > 1 and self.names[0] == _ALL

    def allows(self, names: Iterable[str]) -> bool:
        """Whether what goes by any of these names is left."""
        if self.names == (_ALL,) and not self.negated:
            return True  # beside other names it is one that nothing goes by
        return self.negated != any(name in self.names for name in names)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Transports and devices by UCX's names, `tcp/eth0`."""

    names: tuple[str, ...]

    @property
    def transports(self) -> frozenset[str]:
        """Without their devices."""
        return frozenset(name.partition("/")[0] for name in self.names)

    @property
    def network(self) -> tuple[str, ...]:
        """Those that may lead to another host."""
        return tuple(name for name in self.names if is_network(name))

    @property
    def network_devices(self) -> frozenset[str]:
        """The devices of those."""
        return frozenset(name.partition("/")[2] for name in self.network)


def is_network(lane: str) -> bool:
    """Whether it may lead to another host."""
    return lane.partition("/")[0] not in _NOT_NETWORK


def transport_list(text: str) -> NameList:
    """UCX_TLS. What `name:aux` allows is allowed; forbidding it forbids nothing else."""
    listed = NameList.parse(text)
    names = [
        name.partition(":")[0]
        for name in listed.names
        if not (listed.negated and name.endswith(":aux"))
    ]
    return NameList(tuple(name for name in names if name), listed.negated)


def is_known(name: str) -> bool:
    """Whether some build of UCX has it."""
    return name.removeprefix(_EXACT) in _KNOWN


def names_of(transport: str) -> tuple[str, ...]:
    """Every name that UCX_TLS may call it by."""
    aliases = (alias for alias, names in _ALIASES.items() if transport in names)
    return (transport, _EXACT + transport, *aliases)


def lanes_left(tls: str | None, net_devices: str | None, here: Lanes) -> Lanes:
    """What of `here` the variables leave; None: not set."""
    transports = None if tls is None else transport_list(tls)
    devices = None if net_devices is None else NameList.parse(net_devices)

    def left(lane: str) -> bool:
        transport, _, device = lane.partition("/")
        if transports is not None and not transports.allows(names_of(transport)):
            return False
        return devices is None or not is_network(lane) or devices.allows((device,))

    return Lanes(tuple(lane for lane in here.names if left(lane)))


def takes_shared_memory(tls: str | None) -> bool:
    """Whether UCX will make segments in /dev/shm under this UCX_TLS; None: not set."""
    if tls is None:
        return True
    listed = transport_list(tls)
    return any(listed.allows(names_of(transport)) for transport in _IN_DEV_SHM)
