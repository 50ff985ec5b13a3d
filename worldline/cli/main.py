"""Main: the console script. Imports next to nothing, so that Ctrl-C is quiet from the start."""

from __future__ import annotations

import contextlib
import os
import sys

#: As shells count it: 128 and the number of SIGINT.
INTERRUPTED = 130
#: The same of SIGTERM.
TERMINATED = 143


def main() -> None:
    """Run the command line; exit with its status."""
    try:
        status = _run()
        # Here and not at the interpreter's end, where a full disk would be a traceback.
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # `worldline moves | head`: the reader has what it wanted
        _give_stdout_up()
        status = 1
    except OSError as error:
        _give_stdout_up()
        _say(f"worldline: OUTPUT_FAILED: {error}")
        status = 1
    sys.exit(status)


def _run() -> int | str | None:
    from worldline.cli.app import app

    try:
        app()
    except SystemExit as ending:
        return ending.code
    return 0


def _give_stdout_up() -> None:
    """What is still buffered has nowhere to go."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
