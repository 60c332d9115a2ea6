"""Small parts that pages are made of; text is always set as text, never as HTML."""

import inspect
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, cast

from nicegui import ui
from nicegui.element import Element

from vitrine.console import texts
from vitrine.console.components import When
from vitrine.status import RunStatus, Status

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
