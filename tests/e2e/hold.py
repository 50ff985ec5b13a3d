"""Hold: a test's half of `tests.e2e.held_mover`, and of stopping processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.e2e.held_mover import HOLD_DIR
from tests.oracles import until
from worldline.cli.process import ServiceProcess

ROOT = Path(__file__).parents[2]
HELD_MOVER = "tests.e2e.held_mover:main"


@dataclass
class Hold:
    """Holds one send of one node's next transfer."""

    directory: Path

    @property
    def env(self) -> dict[str, str]:
        """What a held mover needs in its environment."""
        return {HOLD_DIR: str(self.directory), "PYTHONPATH": str(ROOT)}

    def arm(self, node_id: str, nth: int) -> None:
        """Before the `nth` send of the node's next transfer."""
        for name in ("held", "go"):
            (self.directory / name).unlink(missing_ok=True)
        (self.directory / "hold").write_text(f"{node_id} {nth}")

    async def held(self) -> None:
        """Until it is held."""

        async def complaints() -> list[str]:
            return [] if (self.directory / "held").exists() else ["nothing is held"]

        await until(complaints)

    def release(self) -> None:
        """Let it go on."""
        (self.directory / "go").touch()

    async def later(self, node_id: str, by_s: float) -> None:
        """The clock of the node's mover goes on by so much at once, and never back."""
        said, whole = self.directory / f"later-{node_id}", self.directory / "later"
        whole.write_text(str(by_s))
        whole.rename(said)

        async def complaints() -> list[str]:
            return [f"{node_id} has not looked at its clock"] if said.exists() else []

        await until(complaints)


@contextmanager
def stopped(process: ServiceProcess) -> Iterator[None]:
    """The process does nothing at all until the end; its host goes on answering for it."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


async def until_stopped(process: ServiceProcess) -> None:
    """It takes a moment."""

    async def complaints() -> list[str]:
        status = psutil.Process(process.pid).status()
        return [] if status == psutil.STATUS_STOPPED else [f"it is {status}"]

    await until(complaints)
