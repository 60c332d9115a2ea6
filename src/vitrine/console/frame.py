"""The frame of every page: navigation, who is logged in, the age of what is shown, and a banner for failures."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from nicegui import ui

from vitrine.console import parts, texts
from vitrine.console.components import Age
from vitrine.console.poller import INTERVAL_SECONDS, ROUND_SECONDS, State
from vitrine.console.viewer import Viewer
from vitrine.service.roles import Role

HOME = "/console"

TICK_SECONDS = INTERVAL_SECONDS - ROUND_SECONDS / 2
"""What a page shows is not read more often either."""

HEAD = '<link rel="stylesheet" href="/console/files/console.css"><script src="/console/files/console.js"></script>'


@dataclass(frozen=True)
class Entry:
    """A link in the navigation."""

    label: str
    path: str  # below /console
    role: Role = Role.VIEWER


NAVIGATION: list[Entry] = [Entry(texts.OVERVIEW, "")]
"""A page that belongs into the navigation adds itself when it is registered."""


@contextmanager
def build(viewer: Viewer, title: str, path: str) -> Generator[Callable[[State], None]]:
    """Everything around a page; its content is built in the block. The function shows the state of the poller."""
    ui.add_head_html(HEAD)
    with viewer.client.layout, parts.box("v-top") as top:
        top.move(target_index=0)  # before <main>, which is the page of NiceGUI
        parts.link(texts.SKIP, "#content", "v-skip")
        age = _build_header(viewer, path)
        banner = parts.text("", "v-banner", tag="div")
        banner.props["role"] = "alert"
        banner.set_visibility(False)

    def show(state: State) -> None:
        error = state.error or viewer.problem
        if error is None:
            age.tick(state.read_at)
        reason = texts.NOT_UPDATED.format(reason=error) if error else ""
        if banner.text != reason:
            banner.set_text(reason)
            banner.set_visibility(bool(reason))
        viewer.show_problem(error)

    with parts.box("v-main") as content:
        content.props["id"] = "content"
        content.props["tabindex"] = "-1"
        parts.text(title, "v-hidden", tag="h1")
        yield show


def _build_header(viewer: Viewer, path: str) -> Age:
    with parts.box("v-header", tag="header"):
        with parts.box("v-brand"):
            mark = parts.box("v-mark", tag="span")
            mark.props["aria-hidden"] = "true"
            parts.link(texts.PRODUCT, HOME, "v-product")
        with parts.box("v-nav", tag="nav") as navigation:
            navigation.props["aria-label"] = texts.MENU
            for entry in NAVIGATION:
                if viewer.may(entry.role):
                    _link(entry, path)
        with parts.box("v-corner"):
            age = Age(updated=texts.UPDATED, zone=texts.ZONE, every=TICK_SECONDS)
            theme = parts.button("◐", name=texts.THEME)
            theme.classes("v-icon").on("click", js_handler="() => vitrine.toggleTheme()")
            _who(viewer)
    return age


def refused(role: Role) -> None:
    """The content of a page that needs another role."""
    parts.empty(texts.FORBIDDEN, texts.NEEDS_ROLE.format(role=role))


def _link(entry: Entry, path: str) -> None:
    current = path.rstrip("/").removeprefix(HOME)
    is_current = current == entry.path if not entry.path else current.startswith(entry.path)
    made = parts.link(entry.label, f"{HOME}{entry.path}")
    if is_current:
        made.props["aria-current"] = "page"


def _who(viewer: Viewer) -> None:
    if viewer.visitor.session is None:
        shown = parts.text(texts.ANONYMOUS, "v-who")
        shown.props["title"] = texts.ANONYMOUS_HELP
        return
    with ui.element("form").props('method="post" action="/console/logout"').classes("v-row"):
        shown = parts.text(viewer.name, "v-who")
        shown.props["title"] = f"{viewer.name}: {viewer.visitor.caller.role}"
        with ui.element("button").props('type="submit"').classes("v-button"):
            parts.text(texts.LOG_OUT)
