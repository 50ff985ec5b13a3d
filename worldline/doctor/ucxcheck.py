"""UCX check: variables that name nothing, or leave lanes that cannot carry what they should. Pure.

Fault 33: an ERROR here is what a mover refuses to start with.
"""

from __future__ import annotations

from collections.abc import Iterator

from worldline.doctor.facts import ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.doctor.ucxvariables import (
    NET_DEVICES,
    TLS,
    Lanes,
    NameList,
    is_known,
    lanes_left,
    names_of,
    transport_list,
)

_WHY_NAME = "UCX only logs a name that it does not have, and goes on without it"
_CUDA = frozenset(("cuda_copy", "cuda_ipc", "gdr_copy"))
_RDMA = ("rc", "ud", "dc", "srd", "gga")


def check_ucx(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Of one process that told what UCX has here; nothing where it did not."""
    here = Lanes(facts.lanes_here)
    if not here.names:
        return ()
    tls = facts.environment.get(TLS)
    net_devices = facts.environment.get(NET_DEVICES)
    found = [*_transports(facts.subject, tls, here)]
    if not any(one.severity is Severity.ERROR for one in found):
        found += _devices(facts.subject, tls, net_devices, here)
    if not any(one.severity is Severity.ERROR for one in found):
        found += _reach(facts, lanes_left(tls, net_devices, here))
    return tuple(found)


def _transports(subject: str, tls: str | None, here: Lanes) -> Iterator[Finding]:
    if tls is None:
        return
    listed = transport_list(tls)
    callable_here = {name for one in here.transports for name in names_of(one)} | {"all"}
    absent = [name for name in listed.names if name not in callable_here]
    unknown = [name for name in absent if not is_known(name)]
    have = ",".join(sorted(here.transports))
    remedy = f"unset {TLS}    # or choose of: {have}"
    if not listed.names or listed.malformed:
        yield _malformed(subject, TLS, tls, remedy)
    elif unknown:
        yield Finding(
            Severity.WARNING if listed.negated else Severity.ERROR,
            "UCX_TLS_UNKNOWN",
            subject,
            f"{TLS}={tls} names {', '.join(unknown)}, which no UCX has",
            _WHY_NAME,
            remedy,
            TLS,
        )
    elif not lanes_left(tls, None, here).names:
        yield Finding(
            Severity.ERROR,
            "UCX_TLS_NOTHING",
            subject,
            f"{TLS}={tls} leaves no usable transport: none of these is on this machine",
            "no byte could be moved",
            remedy,
            TLS,
        )
    elif absent and not listed.negated:
        yield Finding(
            Severity.WARNING,
            "UCX_TLS_ABSENT",
            subject,
            f"{TLS}={tls} names {', '.join(absent)}, which this machine does not have",
            "moves take what is left of the list, which may be far slower",
            remedy,
            TLS,
        )


def _devices(
    subject: str, tls: str | None, net_devices: str | None, here: Lanes
) -> Iterator[Finding]:
    if net_devices is None:
        return
    listed = NameList.parse(net_devices)
    present = here.network_devices
    absent = [name for name in listed.names if name not in present and name != "all"]
    have = ", ".join(sorted(present)) or "none"
    remedy = f"unset {NET_DEVICES}    # or choose of: {have}"
    left = lanes_left(tls, net_devices, here).network
    if listed.malformed:
        yield _malformed(subject, NET_DEVICES, net_devices, remedy)
    elif not listed.negated and len(absent) == len(listed.names):
        names = f"{', '.join(absent)}, which is not on this machine" if absent else "no device"
        yield Finding(
            Severity.ERROR,
            "UCX_NET_DEVICES_NOTHING",
            subject,
            f"{NET_DEVICES}={net_devices} names {names}",
            f"{_WHY_NAME}: without one no other host is reached",
            remedy,
            NET_DEVICES,
        )
    elif not left and lanes_left(tls, None, here).network:
        yield Finding(
            Severity.ERROR,
            "UCX_NET_DEVICES_UNUSED",
            subject,
            f"{NET_DEVICES}={net_devices} leaves none of the devices that "
            + ("UCX" if tls is None else f"{TLS}={tls}")
            + " could use",
            "no other host is reached",
            remedy,
            NET_DEVICES,
        )
    elif absent:
        yield Finding(
            Severity.WARNING,
            "UCX_NET_DEVICES_ABSENT",
            subject,
            f"{NET_DEVICES}={net_devices} names {', '.join(absent)}, which is not on this machine",
            _WHY_NAME,
            remedy,
            NET_DEVICES,
        )


def _reach(facts: ProcessFacts, left: Lanes) -> Iterator[Finding]:
    tls = facts.environment.get(TLS)
    if tls is not None and not left.network:
        yield Finding(
            Severity.WARNING,
            "UCX_TLS_ONE_HOST",
            facts.subject,
            f"{TLS}={tls} leaves no lane to another host",
            "moves between hosts are refused before they freeze anything",
            _more(tls, "tcp"),
            TLS,
        )
    if tls is not None and facts.uses_gpu and not left.transports & _CUDA:
        yield Finding(
            Severity.WARNING,
            "UCX_TLS_STAGED",
            facts.subject,
            f"{TLS}={tls} leaves no lane that carries device memory",
            "every move of a GPU's state is copied through pinned host memory",
            _more(tls, "cuda"),
            TLS,
        )
    if facts.rdma_devices and not any(lane.startswith(_RDMA) for lane in left.names):
        yield Finding(
            Severity.WARNING,
            "RDMA_UNUSED",
            facts.subject,
            f"{', '.join(facts.rdma_devices)} is active and no lane uses it",
            "moves between hosts go over TCP, at a fraction of the rate",
            f"unset {TLS} {NET_DEVICES}    # and give the container /dev/infiniband",
        )


def _malformed(subject: str, name: str, value: str, remedy: str) -> Finding:
    return Finding(
        Severity.ERROR,
        f"{name}_MALFORMED",
        subject,
        f"{name}={value} is no list of names: `all` stands alone, and nothing at all is no list",
        "UCX does not start with it",
        remedy,
        name,
    )


def _more(tls: str, transport: str) -> str:
    return f"unset {TLS}" if tls.startswith("^") else f"export {TLS}={tls},{transport}"
