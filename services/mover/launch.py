"""Launch: the entry point of `worldline-mover`; sets the process up before anything is loaded."""

from __future__ import annotations

from services.mover.streaming import stream_copies


def main() -> None:
    """Run a mover whose copies stream."""
    stream_copies()
    from services.mover.main import main as serve

    serve()


if __name__ == "__main__":
    main()
