"""The open pages: who uses each, what it watches, how it calls operations, and the frame around it."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread
import psycopg
from fastapi import Request, Response
from nicegui import Client, ui
from starlette.exceptions import HTTPException

from vitrine.api.access import TokenReader
from vitrine.api.connections import Pool, make_context
from vitrine.console import parts, texts
from vitrine.console.components import Age
from vitrine.console.guard import VISITOR, Sessions, Visitor
from vitrine.console.poller import INTERVAL_SECONDS, ROUND_SECONDS, Fetch, Poller, Show, State
from vitrine.errors import VitrineError
from vitrine.operations.context import Caller, Context, Role
from vitrine.settings import Settings

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Value = TypeVar("Value")

MAX_CALLS = 4


class Viewer:
    """What a page needs. `role` decides which buttons are shown; service functions decide what is allowed."""

    calls = anyio.CapacityLimiter(MAX_CALLS)

    def __init__(
        self, client: Client, visitor: Visitor, *, settings: Settings, pool: Pool, sessions: Sessions, poller: Poller
    ) -> None:
        self.client = client
        self.visitor = visitor
        self.settings = settings
        self.poller = poller
        self._pool = pool
        self._sessions = sessions
        self._watches: dict[Hashable, int] = {}
        self._shown_problem: str | None = None
        self._on_problem: list[Callable[[str | None], None]] = []
        self.is_held = False  # the page shows what cannot be shown again: it stays open, without rights

    @property
    def name(self) -> str:
        return self.visitor.caller.name

    @property
    def problem(self) -> str | None:
        """Why a part of the page may be old; None if all that it watches was read."""
        return self.poller.problem_of(self._watches)

    def on_problem(self, show: Callable[[str | None], None]) -> None:
        """Call `show` when the page begins or ceases to be old; with None: all was read again."""
        self._on_problem.append(show)

    def show_problem(self, problem: str | None) -> None:
        if self._shown_problem != problem:
            self._shown_problem = problem
            for show in self._on_problem:
                show(problem)

    def may(self, role: Role) -> bool:
        return self.visitor.caller.role.includes(role)

    async def watch(
        self, key: Hashable, fetch: Fetch[Value], show: Show[Value], *, every: float = INTERVAL_SECONDS
    ) -> Value | None:
        """Show what `fetch` returns, now and whenever it has changed; None if it cannot be read now.

        `key` names what is read: pages with the same key share one read, so it must contain every argument.
        """
        shown: object = None

        def show_once(value: Value) -> None:
            nonlocal shown
            if value is not shown:
                shown = value
                show(value)

        number = self.poller.watch(key, fetch, show_once, every=every)
        self.unwatch(key)  # after it: the value of `expect` is kept
        self._watches[key] = number
        value = await self.poller.read(key)
        # a page that watches something else by now must not show it
        if value is not None and self._watches.get(key) == number:
            show_once(value)
        return value

    def expect(self, key: Hashable, fetch: Fetch[Value], *, every: float = INTERVAL_SECONDS) -> None:
        """Begin to read what the page will watch, while its elements are built."""
        self._watches[key] = self.poller.watch(key, fetch, _show_nothing, every=every)
        self.poller.begin(key)

    def unwatch(self, key: Hashable) -> None:
        number = self._watches.pop(key, None)
        if number is not None:
            self.poller.unwatch(number)

    async def call(
        self,
        function: Callable[Concatenate[Context, Arguments], Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer | None:
        """Call a service function with the rights that the visitor has now; an error is shown, and None returned."""
        try:
            return await self.attempt(function, *args, **kwargs)
        except VitrineError as exc:
            self.tell(str(exc), problem=True)
        except psycopg.OperationalError:
            self.tell(texts.STORE_UNAVAILABLE, problem=True)
        return None

    async def attempt(
        self,
        function: Callable[Concatenate[Context, Arguments], Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer:
        """The same, with its errors: VitrineError, or an OperationalError of the store."""
        visitor = await self._sessions.again(self.visitor)
        if visitor is None:
            self.leave()
            raise VitrineError(texts.SESSION_ENDED)
        self.visitor = visitor
        context = make_context(self.settings, self._pool, visitor.caller)
        work = partial(function, context, *args, **kwargs)
        try:
            return await anyio.to_thread.run_sync(work, limiter=self.calls)
        except (VitrineError, psycopg.OperationalError):
            raise
        except Exception as exc:
            # NiceGUI would log it only, and the page would wait for ever
            log.exception("a request of the console failed", extra={"action": "console_call_failed"})
            raise VitrineError(texts.CALL_FAILED) from exc

    async def act(
        self,
        done: str,
        function: Callable[Concatenate[Context, Arguments], Answer],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Answer | None:
        """Call a function that changes something, say that it is done, and let every page read again."""
        answer = await self.call(function, *args, **kwargs)
        if answer is not None:
            self.tell(done)
        self.poller.hurry()
        return answer

    def tokens_changed(self) -> None:
        """Read them again before the next decision: this process has created or revoked one."""
        self._sessions.tokens.forget()

    def tell(self, text: str, *, problem: bool = False) -> None:
        """A short message at the edge of the page."""
        with self.client:
            ui.notify(
                text,
                type="negative" if problem else "positive",
                position="bottom",
                timeout=10_000 if problem else 5_000,
                close_button=texts.CLOSE if problem else False,
                multi_line=problem,
            )

    def leave(self) -> None:
        """The rights of this page have ended: the browser asks for a new login."""
        if not self.is_held:
            self.client.run_javascript("location.reload()")

    async def again(self) -> bool:
        """Whether the visitor still has rights; the page is left if not."""
        visitor = await self._sessions.again(self.visitor)
        if visitor is None or visitor.caller.role != self.visitor.caller.role:
            self.leave()
            return False
        self.visitor = visitor
        return True

    def close(self) -> None:
        for number in self._watches.values():
            self.poller.unwatch(number)
        self._watches.clear()


def _show_nothing(_: object) -> None:
    """The page that expects the value does not show it yet."""


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
def build_frame(viewer: Viewer, title: str, path: str) -> Generator[Callable[[State], None]]:
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


MAX_PAGES = 200
"""So many pages may be open in one process; each holds its elements in memory."""

COLLECTED_PAGES = 50
COLLECT_SECONDS = 0.2
"""The memory of closed pages is freed when none is open, or after so many; it stops the process for about 0.1 s."""

COLLECT_TURNS = 20
"""Of the event loop."""

Build = Callable[[Viewer, Request], Awaitable[None]]


class Console:
    """The pages of one process, and what they share."""

    def __init__(self, settings: Settings, pool: Pool, tokens: TokenReader) -> None:
        self.settings = settings
        self.sessions = Sessions(pool, tokens)
        self._pool = pool
        self._viewers: dict[str, Viewer] = {}
        self._closed = 0  # since the last collection
        self._collecting: asyncio.Task[None] | None = None  # the loop itself would not keep it
        reader = make_context(settings, pool, Caller("console", "vitrine", Role.VIEWER))
        self.poller = Poller(reader, self._admit)

    def page(self, path: str, *, title: str, role: Role = Role.VIEWER) -> Callable[[Build], Build]:
        """A page under /console; its function builds the content inside the frame. `role`: who may open it."""

        def decorate(build: Build) -> Build:
            @wraps(build)
            async def show(request: Request, client: Client) -> Response | None:
                return await self._show(build, request, client, title, role)

            # NiceGUI reads the parameters of the function
            del show.__dict__["__wrapped__"]
            ui.page(path, title=f"{title} · {texts.PRODUCT}", response_timeout=20)(show)
            return build

        return decorate

    def may_connect(self, page: str, session: bytes | None) -> bool:
        viewer = self._viewers.get(page)
        # a page that is not known was built before a restart: NiceGUI lets its browser load it again
        # guarantee: H33
        return viewer is None or viewer.visitor.session == session

    async def _show(self, build: Build, request: Request, client: Client, title: str, role: Role) -> Response | None:
        visitor = cast(Visitor, request.scope[VISITOR])
        if len(self._viewers) >= MAX_PAGES:
            raise HTTPException(503, texts.TOO_MANY_PAGES)
        viewer = Viewer(
            client,
            visitor,
            settings=self.settings,
            pool=self._pool,
            sessions=self.sessions,
            poller=self.poller,
        )
        self._viewers[client.id] = viewer
        with build_frame(viewer, title, request.url.path) as shown:
            number = self.poller.listen(shown)
            cast(Any, client).on_delete(lambda: self._close(client.id, number))
            if not viewer.may(role):
                refused(role)
                return None
            await build(viewer, request)
        return None

    def _close(self, page: str, number: int) -> None:
        self.poller.close(number)
        viewer = self._viewers.pop(page, None)
        if viewer is not None:
            viewer.close()
            self._closed += 1
        if self._closed >= COLLECTED_PAGES or (self._closed and not self._viewers):
            self._closed = 0
            self._collecting = asyncio.create_task(_collect(), name="console collection")

    async def _admit(self) -> None:
        """Pages whose token was revoked, or whose session has ended, are left."""
        viewers = list(self._viewers.values())
        await self.sessions.refresh({one.visitor.session for one in viewers if one.visitor.session is not None})
        for viewer in viewers:
            await viewer.again()


async def _collect() -> None:
    """Free elements, which refer to one another: Python itself would do so when the heap has grown by a quarter."""
    await asyncio.sleep(COLLECT_SECONDS)
    # tasks of NiceGUI refer to the pages; on a busy machine they are due at the same moment, and must end before
    for _ in range(COLLECT_TURNS):
        await asyncio.sleep(0)
    gc.collect()
