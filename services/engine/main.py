"""Entry point of `worldline-engine`."""

from __future__ import annotations

from services.engine.runtime import serve
from services.engine.settings import EngineSettings
from worldline.rpc.host import load_settings, run_service


def main() -> None:
    """Run the engine service until SIGTERM or SIGINT."""
    run_service(load_settings(EngineSettings), serve)


if __name__ == "__main__":
    main()
