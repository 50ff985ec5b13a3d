"""Enter: entry points that run a service inside a network namespace, as the process they are.

`ip netns exec` ends in an exec, so the service keeps its process id, its readiness descriptor and
its parent.
"""

from __future__ import annotations

import os
import sys

#: Names the namespace, in the environment of the service.
NAMESPACE_VARIABLE = "WORLDLINE_FABRIC_NAMESPACE"


def mover() -> None:
    """`worldline-mover` inside."""
    _become("services.mover.launch")


def admission() -> None:
    """`worldline-admission` inside."""
    _become("services.admission.main")


def _become(module: str) -> None:
    namespace = os.environ[NAMESPACE_VARIABLE]
    code = f"from {module} import main; main()"
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", code]
    os.execvp(command[0], command)  # noqa: S606
