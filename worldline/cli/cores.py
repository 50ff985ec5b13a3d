"""Cores: CPUs for each engine of a local cluster alone, where there are enough. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: For admission, placement and whatever else runs here; each mover is counted beside it.
_REST = 1


def share_out(
    allowed: frozenset[int], nodes: Mapping[int, frozenset[int]], engines: int, threads: int
) -> tuple[frozenset[int], ...]:
    """The CPUs of each engine; empty where there are not enough for all, and then nobody is bound.

    An engine gets one for each compute thread and one for what serves them, all of one NUMA node,
    and no other engine has any of them. One for each mover and one for the rest is left free.
    `nodes` are the CPUs of each NUMA node; empty where the machine does not say.
    """
    each = threads + 1
    if len(allowed) < engines * each + engines + _REST:
        return ()
    left = [sorted(cpus & allowed) for _, cpus in sorted(nodes.items())] or [sorted(allowed)]
    shares = []
    for _ in range(engines):
        # From where most are left: engines spread over the machine's memory.
        roomiest = max(left, key=len)
        if len(roomiest) < each:
            return ()
        shares.append(frozenset(roomiest[:each]))
        del roomiest[:each]
    return tuple(shares)


def told(shares: Sequence[frozenset[int]], engines: int, threads: int, allowed: int) -> str:
    """What was decided, in a line."""
    if shares:
        return f"each engine has {threads + 1} CPUs of its own"
    wanted = engines * (threads + 1) + engines + _REST
    return f"engines share the {allowed} CPUs that are here; with {wanted} each would have its own"
