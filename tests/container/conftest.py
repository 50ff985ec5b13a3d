"""Containers: where there is no Docker engine with the image, the test is skipped and says why."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

IMAGE = "worldline:cpu"


def _why_not() -> str | None:
    if shutil.which("docker") is None:
        return "docker is not found; `docker/engine.sh` brings an engine of its own along"
    for command, reason in (
        (("docker", "version", "--format", "{{.Server.Version}}"), "no Docker engine answers"),
        (("docker", "image", "ls", "--quiet", IMAGE), f"no image {IMAGE}; `make images` makes it"),
    ):
        try:
            done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        except subprocess.TimeoutExpired:
            return "the Docker engine does not answer"
        if done.returncode or not done.stdout.strip():
            return reason
    if os.geteuid() != 0 or shutil.which("tc") is None:
        return "making a wire slow takes root and tc"
    return None


@pytest.fixture(scope="session")
def image() -> str:
    """The image to test; skips where it cannot be run."""
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    return IMAGE
