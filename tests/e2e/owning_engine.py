"""An engine whose `tiny` keeps its states in tensors of its own. Not a test itself."""

from __future__ import annotations


def main() -> None:
    """The engine's own main, with another model behind the preset's name."""
    from services.engine import models
    from services.engine.main import main as engine_main
    from tests.unit.engine.owning import owning_world

    models.build_world = lambda *_: owning_world()
    engine_main()
