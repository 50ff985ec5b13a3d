"""An engine whose `tiny` does not repeat itself. Not a test itself."""

from __future__ import annotations


def main() -> None:
    """The engine's own main, with another model behind the preset's name."""
    from services.engine import models
    from services.engine.main import main as engine_main
    from tests.unit.engine.unsteady import Counting

    models.build_world = lambda *_: Counting()
    engine_main()
