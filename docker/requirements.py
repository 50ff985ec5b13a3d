"""Requirements: what pyproject.toml says that a project needs, a line each. Standard library only.

`python3 requirements.py pyproject.toml [--build]`; with `--build`, what building it needs too.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, *, build: bool) -> list[str]:
    """The project's dependencies, and those of its build where asked for."""
    found = tomllib.loads(pyproject.read_text())
    needed = list(found["project"]["dependencies"])
    return needed + list(found["build-system"]["requires"]) if build else needed


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if each != "--build"]
    for line in requirements(Path(arguments[0]), build="--build" in sys.argv):
        sys.stdout.write(line + "\n")
