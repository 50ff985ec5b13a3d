"""Skew check: versions, layouts and configurations that differ between processes. Pure.

Fault 36: another protocol or layout is refused at the handshake, before a byte moves; here one
hears of it before anybody tries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from worldline.doctor.facts import ENGINE, ProcessFacts
from worldline.doctor.finding import Finding, Severity
from worldline.state.manifest import Fingerprint
from worldline.state.remedies import remedies

#: Refused at the handshake.
_HARD = {"protocol": "protocol", "granule_bytes": "granules of digests"}
#: May differ, and then nobody knows which of them did it.
_SOFT = {"worldline": "Worldline", "libucx-cu13": "UCX"}


def check_skew(processes: Iterable[ProcessFacts]) -> tuple[Finding, ...]:
    """Everybody against what most of them have."""
    everybody = tuple(processes)
    found: list[Finding] = []
    for name, label in _HARD.items():
        found += _version(everybody, name, label, Severity.ERROR)
    for name, label in _SOFT.items():
        found += _version(everybody, name, label, Severity.WARNING)
    return tuple(found)


def check_fingerprints(
    engines: Mapping[str, tuple[str, Mapping[str, str]]],
) -> tuple[Finding, ...]:
    """Engines by name, each with its fingerprint and the facts behind it.

    Those that few have are named with the facts in which they differ from what most have.
    """
    if len(engines) < 2:
        return ()
    usual, _ = _most(fingerprint for fingerprint, _ in engines.values())
    usual_facts = next(facts for fingerprint, facts in engines.values() if fingerprint == usual)
    found = []
    for name, (fingerprint, facts) in sorted(engines.items()):
        if fingerprint == usual:
            continue
        usually, here = Fingerprint.of(usual_facts), Fingerprint.of(facts)
        differ = [line.partition(":")[0] for line in usually.differences(here)]
        mends = remedies(usually, here) or ("make them equal",)
        found.append(
            Finding(
                Severity.WARNING,
                "FINGERPRINT_DIFFERS",
                f"{ENGINE} {name}",
                f"its configuration differs from that of most engines in {', '.join(differ)}",
                "sessions at T0 do not move between it and them",
                f"worldline nodes --json    # shows the facts of each; {'; '.join(mends)}",
                differ[0] if differ else "fingerprint",
            )
        )
    return tuple(found)


def _version(
    processes: tuple[ProcessFacts, ...], name: str, label: str, severity: Severity
) -> Iterator[Finding]:
    told = [one for one in processes if one.versions.get(name)]
    if len({one.versions[name] for one in told}) < 2:
        return
    usual, _ = _most(one.versions[name] for one in told)
    for one in told:
        if one.versions[name] == usual:
            continue
        consequence = (
            "what it offers to the others is refused at the handshake, before a byte moves"
            if severity is Severity.ERROR
            else "both may work; what was tested together is one version"
        )
        release = f"{name}=={usual}" if name in _SOFT else "-U worldline    # on every host"
        yield Finding(
            severity,
            "VERSIONS_DIFFER",
            one.subject,
            f"{label} is {one.versions[name]} here and {usual} with most others",
            consequence,
            f"pip install {release}",
            name,
        )


def _most(values: Iterable[str]) -> tuple[str, int]:
    """The commonest, of equally common ones the greatest, so that the answer is one."""
    counted = Counter(values)
    return max(counted.items(), key=lambda item: (item[1], item[0]))
