"""What the commands show: lines, tables and a progress bar."""

import shutil
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console
    from rich.progress import Progress

    from vitrine.errors import VitrineError
    from vitrine.flow.rows import Counts
    from vitrine.settings import Settings

WIDE = 120
"""A terminal of this width has room for every column of a table."""

BAR_AFTER_SECONDS = 0.3
"""A shorter run shows no progress bar, which is slow to import."""


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    # a closed pipe (`| head`) then raises here and not at exit
    sys.stdout.flush()


def show_json(value: object) -> None:
    import json

    show(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def with_excerpt(error: "VitrineError") -> str:
    """The sentence of an error and, if it concerns the query, that line of it with a caret."""
    return str(error) if error.place is None else f"{error}\n{error.place.excerpt()}"


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    wrap: Collection[str] = (),
) -> None:
    from vitrine.settings import allows_colour
    from vitrine.tables import table

    colours = sys.stdout.isatty() and allows_colour()
    show(table(columns, rows, right=right, wrap=wrap, width=terminal_width(), colours=colours))


def terminal_width() -> int | None:
    """None: the output is not a terminal, so nothing is shortened."""
    return shutil.get_terminal_size((0, 0)).columns or None


def is_wide() -> bool:
    return (terminal_width() or WIDE) >= WIDE


def local_time(moment: "datetime", settings: "Settings") -> str:
    """In the time zone of the schedules."""
    return f"{moment.astimezone(settings.zone):%Y-%m-%d %H:%M:%S %Z}"


def rich_console() -> "Console":
    from rich.console import Console

    return Console()


@contextmanager
def progress_bar(name: str) -> Generator[Callable[["Counts", int | None], None]]:
    """A function that shows the progress of a run; on a terminal only."""
    if not sys.stdout.isatty():
        yield lambda counts, expected: None
        return
    bar = _Bar(name)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, name: str) -> None:
        self._name = name
        self._since = time.monotonic()
        self._progress: Progress | None = None
        self._expected: int | None = None

    def update(self, counts: "Counts", expected: int | None) -> None:
        self._expected = expected or self._expected
        if self._progress is None:
            if time.monotonic() - self._since < BAR_AFTER_SECONDS:
                return
            self._progress = self._start()
        total = max(self._expected, counts.read) if self._expected else None
        self._progress.update(self._progress.task_ids[0], completed=counts.read, total=total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _start(self) -> "Progress":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn(self._name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True
        )
        progress.add_task(self._name, total=None)
        progress.start()
        return progress
