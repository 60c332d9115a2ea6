"""Small parts that pages are made of; text is always set as text, never as HTML."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, cast

from nicegui import ui
from nicegui.element import Element

from vitrine.console import texts
from vitrine.console.components import When
from vitrine.core import schedule
from vitrine.core.schedule import Cron
from vitrine.core.status import HALTED, RunStatus, Status
from vitrine.operations.bodies.pipelines import PipelineBody

TONES = {
    Status.IDLE: "idle",
    Status.RUN_REQUESTED: "waiting",
    Status.RUNNING: "running",
    Status.PAUSE_REQUESTED: "paused",
    Status.PAUSED: "paused",
    Status.FAILED: "failed",
    RunStatus.SUCCESS: "success",
    RunStatus.ABANDONED: "failed",
}
"""The colour of a status; the text beside it says the same."""


_TONE_OF = {known.value: tone for known, tone in TONES.items()}


def tone_of(status: str) -> str:
    return _TONE_OF.get(status, "idle")


def box(classes: str = "", *, tag: str = "div") -> Element:
    """An element to fill in a `with` block."""
    return ui.element(tag).classes(classes)


def set_attribute(element: Element, name: str, value: str) -> None:
    """Send it only if it has changed."""
    if cast(dict[str, Any], element.props).get(name) != value:
        element.props[name] = value
        element.update()


def set_text(label: ui.label, content: str) -> None:
    """Send it only if it has changed."""
    if label.text != content:
        label.set_text(content)


def text(content: str, classes: str = "", *, tag: str = "span") -> ui.label:
    """A text. `tag`: h1, h2, p, span, strong …"""
    label = ui.label(content).classes(classes)
    label.tag = tag
    return label


def prose(content: str, classes: str = "") -> Element:
    """A paragraph; what stands between backticks is a command or a name."""
    with box(classes, tag="p") as made:
        for number, piece in enumerate(content.split("`")):
            if piece:
                text(piece, "v-mono" if number % 2 else "")
    return made


def badge(content: str, tone: str) -> ui.label:
    label = text(content, "v-badge")
    return label.props(f'data-tone="{tone}"')


def when(at: datetime | None, *, age: bool = False, missing: str = "–") -> When:
    return When(at.isoformat() if at else None, age=age, missing=missing)


def link(content: str, target: str, classes: str = "") -> Element:
    """`target`: the whole path; the links of NiceGUI would add /console to it once more."""
    made = text(content, classes, tag="a")
    made.props["href"] = target
    return made


def button(
    content: str,
    on_click: Callable[..., Any] | None = None,
    *,
    primary: bool = False,
    danger: bool = False,
    name: str | None = None,
) -> Element:
    """`name`: for screen readers, if the content says too little."""
    kind = " v-primary" if primary else " v-danger" if danger else ""
    made = text(content, f"v-button{kind}", tag="button")
    made.props["type"] = "button"
    if name:
        made.props["aria-label"] = name
    if on_click is not None:
        made.on("click", once(on_click), [])
    return made


def once(handler: Callable[[], Any]) -> Callable[[], Any]:
    """The same, but what arrives while it works is ignored: a second click would ask, create or save twice."""
    is_busy = False

    def handle() -> Awaitable[None] | None:
        nonlocal is_busy
        if is_busy:
            return None
        answer = handler()
        if not inspect.isawaitable(answer):
            return None
        is_busy = True
        return finish(answer)

    async def finish(answer: Awaitable[Any]) -> None:
        nonlocal is_busy
        try:
            await answer
        finally:
            is_busy = False

    return handle


def empty(title: str, help_text: str, commands: str = "") -> None:
    """What to do first, where there is nothing to show."""
    with box("v-empty"):
        text(title, tag="h2")
        text(help_text, "v-muted", tag="p")
        if commands:
            code(commands)


def code(content: str, classes: str = "") -> Element:
    """Text in a fixed width, with a button that copies it."""
    with box("v-code-box") as made:
        text(content, f"v-code {classes}", tag="pre")
        copy_button(content)
    return made


def copy_button(content: str) -> Element:
    made = button(texts.COPY)
    made.classes("v-copy")
    # in the browser: a page may write to the clipboard only while it handles a click
    made.props["data-copy"] = content
    return made


async def confirm(title: str, explained: str, action: str, *, danger: bool = False) -> bool:
    """Ask before something happens; False: it was cancelled."""
    with ui.dialog() as dialog, box("v-dialog"):
        dialog.props["aria-label"] = title
        # not at once: when it is hidden, the browser returns the focus to the button
        dialog.on("hide", dialog.delete, [])
        text(title, tag="h2")
        text(explained, "v-muted", tag="p")
        with box("v-row v-end"):
            button(texts.CANCEL, lambda: dialog.submit(False))
            button(action, lambda: dialog.submit(True), primary=not danger, danger=danger)
    return bool(await dialog)


def capped(count: int, limit: int = 1000) -> str:
    return f"{limit}+" if count > limit else str(count)


def duration(seconds: float) -> str:
    """As `vitrine.duration` in the browser shows it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} d" + (f" {hours} h" if hours else "")


def promise(item: PipelineBody) -> str:
    """In a few words: the option `freshness` or, without one, the schedule."""
    freshness = item.options.freshness
    if freshness is not None:
        return texts.PROMISE.format(duration=duration(freshness.total_seconds()))
    if item.schedule_interval:
        return texts.SCHEDULE.format(schedule=item.schedule_interval)
    return texts.NO_PROMISE


def longest_age(item: PipelineBody) -> tuple[float, str] | None:
    """In seconds, and as a legend; None: nothing is promised."""
    if item.stale_at is None:
        return None
    seconds = (item.stale_at - (item.fresh_as_of or item.created_at)).total_seconds()
    text = texts.LEGEND_PROMISE_NOW if _varies(item) else texts.LEGEND_PROMISE
    return seconds, text.format(duration=duration(seconds))


def _varies(item: PipelineBody) -> bool:
    """The due times of a cron line are not equally far apart."""
    if item.options.freshness is not None or item.schedule_interval is None:
        return False
    return isinstance(schedule.parse(item.schedule_interval), Cron)


def next_start(
    status: Status, next_due_at: datetime | None, after: Sequence[str], *, enabled: bool
) -> tuple[str | None, str]:
    """The time, or None and what starts it."""
    if not enabled:
        return None, texts.WHEN_ENABLED
    if next_due_at is None and not after:
        return None, texts.NO_SCHEDULE
    if status in HALTED:
        return None, texts.WHEN_RUN_AGAIN if status is Status.FAILED else texts.WHEN_RESUMED
    if next_due_at is not None:
        return next_due_at.isoformat(), ""
    return None, texts.AFTER.format(names=", ".join(after))


_SOURCE = (
    *("SOURCE", "READER_ERROR", "ROW_TOO_LARGE", "RESULT_TOO_LARGE", "PLAN_TIMEOUT", "FIRST_ROW_TIMEOUT"),
    *("TEMP_FILE_LIMIT", "CURSOR", "HORIZON", "ROW_SECURITY", "NULL_CURSOR", "DUPLICATE_KEY", "NULL_KEY"),
    *("UNKNOWN_SOURCE", "SCHEMA_NOT_ALLOWED", "SYNTAX", "FUNC", "NODE", "PARAM", "NOT_SELECT", "UNQUALIFIED"),
    *("DELETE_COLUMN", "QUERY"),
)
_TRANSFORM = ("TRANSFORM", "UNKNOWN_TASK", "TASK_OPTIONS", "KEY_OF_TRANSFORM", "NO_LANE")
_TARGET = (
    *("TARGET", "SINK", "SCHEMA_CHANGED", "SHRINK_GUARD", "STAGING", "INDEX", "BULK", "VERSION_REGRESSION"),
    *("TOO_MANY_REJECTS", "UNIQUE_SWAP", "DATA_ERROR", "ENCODING"),
)
_CODES = ((_TRANSFORM, texts.TRANSFORM), (_TARGET, texts.TARGET), (_SOURCE, texts.SOURCE))


def origin_of(code: str, message: str = "") -> str:
    """Source, transform, target or platform. A failed connection names its side in the message."""
    for beginnings, side in _CODES:
        if code.startswith(beginnings):
            return side
    if message.startswith("source "):
        return texts.SOURCE
    return texts.TARGET if message.startswith("target ") else texts.PLATFORM
