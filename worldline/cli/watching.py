"""Watching: a move as it goes on, for people a few lines that follow it, for machines one each."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from worldline.cli.output import err_console, human_bytes, print_json_line
from worldline.cli.top_frame import brief_ms
from worldline.cli.top_snapshot import progress_jsonable
from worldline.sdk import Progress
from worldline.sdk.move_record import ARM, PUSH

#: How often what only time changes is drawn again.
_DRAWS_PER_S = 8
_BAR_CELLS = 24


@dataclass(frozen=True, slots=True)
class Watched:
    """What a watcher knows of a move: what runs, since when, and what ran before.

    `ended` are steps with their milliseconds and what is worth saying of them.
    """

    now: Progress | None = None
    heard_s: float = 0.0
    ended: tuple[tuple[str, float, str], ...] = ()

    def heard(self, progress: Progress, now_s: float) -> Watched:
        """The move has gone on; `now_s` is when that was heard, on any clock of one rate."""
        before = self.now
        if before is None or before.step == progress.step:
            ended = self.ended
        elif before.step:
            began_ms = before.elapsed_ms - before.step_ms
            lasted_ms = max(before.step_ms, progress.elapsed_ms - progress.step_ms - began_ms)
            ended = (*self.ended, (before.step, lasted_ms, _said_after(before.step, progress)))
        else:
            ended = self.ended
        return replace(self, now=progress, heard_s=now_s, ended=ended)


def _said_after(step: str, progress: Progress) -> str:
    return human_bytes(progress.total_bytes) if step == PUSH and progress.total_bytes else ""


def lines(watched: Watched, now_s: float) -> RenderableType:
    """The move at `now_s`, a line a step; the last one is what runs. Pure."""
    if watched.now is None:
        return Text("asking placement", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=8)
    table.add_column(justify="right", min_width=8)
    table.add_column()
    for step, lasted_ms, said in watched.ended:
        table.add_row(Text(f"  {step}"), Text(brief_ms(lasted_ms)), Text(said))
    progress, since_ms = watched.now, max(0.0, now_s - watched.heard_s) * 1e3
    if progress.step:
        table.add_row(
            Text(f"  {progress.step}", style="bold"),
            Text(brief_ms(progress.step_ms + since_ms)),
            Text(said_of(progress, since_ms)),
        )
    elif not progress.phase.terminal:
        table.add_row(Text(f"  {progress.phase.name.lower().replace('_', ' ')}"), Text(), Text())
    return Group(Text(f"move {progress.move_id}"), table)


def said_of(progress: Progress, since_ms: float) -> str:
    """What is worth saying of the step that runs, that long after it was heard of. Pure."""
    if progress.step == ARM and progress.wait_max_ms > 0:
        left_ms = max(0.0, progress.wait_max_ms - progress.step_ms - since_ms)
        return f"for the wire; it is waited for {brief_ms(left_ms)} more at most"
    if progress.step != PUSH or not progress.total_bytes:
        return ""
    done = progress.sent_bytes / progress.total_bytes
    filled = round(done * _BAR_CELLS)
    sent, total = human_bytes(progress.sent_bytes), human_bytes(progress.total_bytes)
    said = f"{'━' * filled}{'╌' * (_BAR_CELLS - filled)} {done:4.0%}  {sent} of {total}"
    if progress.remaining_ms is None:
        return said
    left_ms = max(0.0, progress.remaining_ms - since_ms)
    return f"{said}, {human_bytes(progress.rate_bytes_per_s)}/s, {brief_ms(left_ms)} left"


class Watch:
    """For `on_progress`. On a terminal lines that change in place, elsewhere a line a step."""

    def __init__(self, *, as_json: bool, screen: Console = err_console) -> None:
        self._as_json = as_json
        self._screen = screen
        self._watched = Watched()
        live = screen.is_terminal and not as_json
        self._live = (
            Live(
                get_renderable=self._lines,
                console=screen,
                refresh_per_second=_DRAWS_PER_S,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if live
            else None
        )

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """It has gone on."""
        before = len(self._watched.ended)
        self._watched = self._watched.heard(progress, time.monotonic())
        if self._as_json:
            print_json_line(progress_jsonable(progress))
        elif self._live is None:
            for step, lasted_ms, said in self._watched.ended[before:]:
                text = f"  {step:<8} {brief_ms(lasted_ms):>8}  {said}".rstrip()
                self._screen.print(text, markup=False, highlight=False)

    def _lines(self) -> RenderableType:
        return lines(self._watched, time.monotonic())
