"""Entry point of `worldline-engine`."""

from __future__ import annotations

from pydantic_settings import CliApp

from services.engine.runtime import serve
from services.engine.settings import EngineSettings
from worldline.rpc.host import run_service


def main() -> None:
    """Run the engine service until SIGTERM or SIGINT."""
    run_service(CliApp.run(EngineSettings), serve)


if __name__ == "__main__":
    main()
