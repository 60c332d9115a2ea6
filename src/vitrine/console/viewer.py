"""One open page: who uses it, what it watches, and how it calls service functions."""

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread
import psycopg
from nicegui import Client, ui

from vitrine.api.connections import Pool, make_context
from vitrine.console import texts
from vitrine.console.poller import INTERVAL_SECONDS, Fetch, Poller, Show
from vitrine.console.sessions import Sessions, Visitor
from vitrine.errors import VitrineError
from vitrine.service.context import Context
from vitrine.service.roles import Role
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
