"""What the commands show: lines, tables and a progress bar."""

import shutil
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vitrine.text import Coloured, coloured, natural_width, printable, printable_json, table

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic import BaseModel
    from rich.console import Console
    from rich.progress import Progress

    from vitrine.errors import VitrineError
    from vitrine.settings import Settings

WIDE = 120
"""A terminal of this width has room for every column of a table."""

LISTS = frozenset({"NOT_APPLIED", "NOT_EXPORTED", "YAML"})
"""Codes of errors with a line for each mistake; a line break in any other is part of a value."""

BAR_AFTER_SECONDS = 0.3
"""A shorter run shows no progress bar, which is slow to import."""


def show(text: str) -> None:
    """Print one line; characters that would control the terminal are visible."""
    # guarantee: K11
    _write(printable(text))


def show_lines(text: str) -> None:
    """The same for a text whose line breaks are ours."""
    _write(printable(text, lines=True))


def show_json(value: object) -> None:
    import json

    _write(printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def _write(text: str) -> None:
    """The only place that writes to stdout, except for progress bars; `text` is safe for a terminal."""
    sys.stdout.write(f"{text}\n")
    # a closed pipe (`| head`) then raises here and not at exit
    sys.stdout.flush()


def show_body(body: "BaseModel") -> None:
    """The body as the API returns it."""
    _write(printable_json(json_text(body)))


def json_text(body: "BaseModel") -> str:
    return body.model_dump_json(indent=2, by_alias=True)


def show_page(page: "BaseModel", items: Sequence[str]) -> None:
    """A page without items, and its items as `json_text`: thousands of bodies would take much memory."""
    nested = ",\n    ".join(item.replace("\n", "\n    ") for item in items)
    filled = f'"items": [\n    {nested}\n  ]' if items else '"items": []'
    _write(printable_json(json_text(page).replace('"items": []', filled, 1)))


def show_marked(mark: "Coloured", text: str) -> None:
    """One line behind a mark, which has its colour if the output is a terminal that shows colours."""
    from vitrine.settings import allows_colour

    _write(f"{coloured(mark) if sys.stdout.isatty() and allows_colour() else mark}  {printable(text)}")


def show_wrapped(text: str, indent: str = "") -> None:
    """Text in lines that fit the terminal; complete in one line where the output is none."""
    from textwrap import fill

    text, width = printable(text), terminal_width()
    _write(text if width is None else fill(text, max(40, width), subsequent_indent=indent, break_long_words=False))


def with_excerpt(error: "VitrineError") -> str:
    """The sentence of an error and, if it concerns the query, that line of it with a caret."""
    text = printable(str(error), lines=error.code in LISTS)
    return text if error.place is None else f"{text}\n{error.place.excerpt()}"


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    wrap: Collection[str] = (),
) -> None:
    from vitrine.settings import allows_colour

    colours = sys.stdout.isatty() and allows_colour()
    _write(table(columns, rows, right=right, wrap=wrap, width=terminal_width(), colours=colours))


def fits(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table of these rows is not wider than the terminal."""

    width = terminal_width()
    return width is None or natural_width(columns, rows) <= width


def terminal_width() -> int | None:
    """None: the output is not a terminal, so nothing is shortened."""
    return shutil.get_terminal_size((0, 0)).columns or None


def is_wide() -> bool:
    return (terminal_width() or WIDE) >= WIDE


def local_time(moment: "datetime", settings: "Settings") -> str:
    """In the time zone of the schedules."""
    return f"{moment.astimezone(settings.zone):%Y-%m-%d %H:%M:%S %Z}"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def age(moment: "datetime | None", now: "datetime") -> str:
    """How long ago, in the largest unit: 45s, 12m, 3h, 5d."""
    if moment is None:
        return "never"
    seconds = max(0, int((now - moment).total_seconds()))
    return next((f"{seconds // size}{unit}" for size, unit in _UNITS if seconds >= size), f"{seconds}s")


def rich_console() -> "Console":
    from rich.console import Console

    return Console()


@contextmanager
def progress_bar(name: str) -> Generator[Callable[[int, int | None], None]]:
    """A function that shows how many rows of how many a run has read; on a terminal only."""
    if not sys.stdout.isatty():
        yield lambda read, expected: None
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

    def update(self, read: int, expected: int | None) -> None:
        self._expected = expected or self._expected
        if self._progress is None:
            if time.monotonic() - self._since < BAR_AFTER_SECONDS:
                return
            self._progress = self._start()
        total = max(self._expected, read) if self._expected else None
        self._progress.update(self._progress.task_ids[0], completed=read, total=total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _start(self) -> "Progress":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            transient=True,
        )
        progress.add_task(printable(self._name), total=None)
        progress.start()
        return progress
