"""Facts: what every document of the serving bench says of the machine, the code and the seeds."""

from __future__ import annotations

from datetime import UTC, datetime

from bench import facts as shared


def facts(started_at: str, seeds: list[int]) -> dict[str, object]:
    """Machine, versions, commit, and what the caller knows."""
    commit, dirty = shared.commit()
    return {
        "machine": shared.machine(),
        "versions": shared.versions(),
        "commit": commit,
        "dirty": dirty,
        "started_at": started_at,
        "seeds": seeds,
    }


def started_at() -> str:
    """Now, as documents say it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
