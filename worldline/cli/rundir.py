"""Run directory: where a local cluster keeps its files and how other commands find it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from worldline.errors import Conflict, InvalidInput, NotFound

_CLUSTER_FILE = "cluster.json"
_LOCK_FILE = "lock"
_WORK_DIR = "run"
#: A Unix socket's path has at most 107 bytes (unix(7)); sockets lie two levels below.
_PATH_BYTES_MAX = 70


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What `cluster.json` says."""

    pid: int
    placement_address: str
    admission_address: str
    nodes: tuple[str, ...]


def default_run_dir() -> Path:
    """One per user: below XDG_RUNTIME_DIR, or in the temporary directory."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        return Path(base) / "worldline"
    return Path(tempfile.gettempdir()) / f"worldline-{os.getuid()}"


def find_cluster(run_dir: Path | None = None) -> ClusterFile:
    """The cluster that runs in `run_dir` (default: the user's own).

    Raises:
        NotFound: none does; the message says how to name or start one.
    """
    path = (run_dir or default_run_dir()) / _CLUSTER_FILE
    try:
        fields = json.loads(path.read_text())
        found = ClusterFile(
            pid=int(fields["pid"]),
            placement_address=str(fields["placement_address"]),
            admission_address=str(fields["admission_address"]),
            nodes=tuple(str(node) for node in fields["nodes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    # A cluster that was killed leaves its file; the next one in the directory replaces it.
    if found is None or not psutil.pid_exists(found.pid):
        raise NotFound(
            f"no cluster found in {path.parent}; start one with `worldline up`, or name placement "
            "with --placement HOST:PORT or WORLDLINE_PLACEMENT",
            reason="NO_CLUSTER",
            field="placement",
        )
    return found


class RunDir:
    """A locked run directory. Everything in it is removed at the end, whatever happened."""

    def __init__(self, path: Path, *, created: bool, lock_fd: int) -> None:
        self.path = path
        self._created = created
        self._lock_fd = lock_fd
        self.work_path = path / _WORK_DIR
        self.log_path = self.work_path / "logs"

    @classmethod
    def acquire(cls, path: Path | None = None) -> RunDir:
        """Lock `path` (default: a fresh temporary directory) and make it ready.

        Raises:
            Conflict: another cluster runs there.
            InvalidInput: the path is too long, belongs to somebody else or cannot be made.
        """
        path, created = (path.absolute(), False) if path is not None else (_temporary(), True)
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise InvalidInput(
                f"{path} is too long: sockets are made below it; at most {_PATH_BYTES_MAX} bytes",
                field="dir",
            )
        created = created or _make(path)
        lock_fd = _lock(path)
        self = cls(path, created=created, lock_fd=lock_fd)
        # A cluster that was killed leaves its files; the lock says that it is gone.
        shutil.rmtree(self.work_path, ignore_errors=True)
        self.log_path.mkdir(parents=True, mode=0o700)
        return self

    def publish(self, cluster: ClusterFile) -> None:
        """Write `cluster.json`, whole or not at all."""
        temporary = self.path / f".{_CLUSTER_FILE}"
        temporary.write_text(json.dumps(asdict(cluster), indent=2) + "\n")
        temporary.replace(self.path / _CLUSTER_FILE)

    def keep_logs(self) -> Path | None:
        """Copy the logs to a directory that stays; None where there is no room or no log."""
        kept = Path(tempfile.mkdtemp(prefix="worldline-logs-"))
        try:
            shutil.copytree(self.log_path, kept, dirs_exist_ok=True)
        except OSError:
            shutil.rmtree(kept, ignore_errors=True)
            return None
        return kept

    def release(self) -> None:
        """Remove what was made and give the lock back; idempotent."""
        if self._lock_fd < 0:
            return
        (self.path / _CLUSTER_FILE).unlink(missing_ok=True)
        shutil.rmtree(self.work_path, ignore_errors=True)
        (self.path / _LOCK_FILE).unlink(missing_ok=True)
        if self._created:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="worldline-"))


def _make(path: Path) -> bool:
    """True when it was made now."""
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=False)
    except FileExistsError:
        if not path.is_dir() or path.stat().st_uid != os.getuid():
            raise InvalidInput(
                f"{path} is not a directory of yours; choose another with --dir", field="dir"
            ) from None
        return False
    except OSError as error:
        raise InvalidInput(f"cannot make {path}: {error.strerror}", field="dir") from error
    return True


def _lock(path: Path) -> int:
    try:
        lock_fd = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(f"cannot write in {path}: {error.strerror}", field="dir") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_fd)
        raise Conflict(
            f"a cluster already runs in {path}{_who(path)}; stop it or choose another --dir",
            reason="CLUSTER_RUNNING",
            field="dir",
        ) from None
    return lock_fd


def _who(path: Path) -> str:
    try:
        found = find_cluster(path)
    except NotFound:
        return ""
    return f" (pid {found.pid}, placement at {found.placement_address})"
