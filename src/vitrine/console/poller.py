"""Reads what open pages show, once for all of them, and only while a page is open."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import psycopg

from vitrine.console import texts
from vitrine.errors import TransientError, VitrineError
from vitrine.operations.context import Context

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Fetch = Callable[[Context], Value]
Show = Callable[[Value], None]

ROUND_SECONDS = 1.0
INTERVAL_SECONDS = 2.0
"""How often a topic is read, unless it says otherwise."""

MAX_READS = 12
"""So many topics are read in one round, those read longest ago first: a bound for any number of viewers."""

MAX_THREADS = 2

PAUSE_SECONDS = 0.005
MAX_PAUSES_SECONDS = 0.25
"""Between two pages that are shown the same value, and for all pages together."""


@dataclass
class Topic(Generic[Value]):
    """One thing that pages show, for example a page of pipelines with a filter; pages with the same key share it."""

    key: Hashable
    fetch: Fetch[Value]
    every: float  # seconds
    value: Value | None = None
    read_at: float = -1e9  # of the monotonic clock
    reading: asyncio.Task[None] | None = None
    problem: str | None = None  # why the last read failed

    def is_due(self, now: float) -> bool:
        return now - self.read_at >= self.every - ROUND_SECONDS / 2


@dataclass
class State:
    """What the banner and the age in the corner of a page show."""

    read_at: float | None = None  # seconds since the epoch, of the last complete round
    error: str | None = None


class Poller:
    """`context`: reads as a viewer. `admit`: called in every round before anything is read."""

    def __init__(self, context: Context, admit: Callable[[], Awaitable[None]]) -> None:
        self.state = State()
        self.reads = 0
        """How many times something was read, for tests."""
        self._context = context
        self._admit = admit
        self._topics: dict[Hashable, Topic[Any]] = {}
        self._shows: dict[Hashable, dict[int, Show[Any]]] = {}
        self._listeners: dict[int, Callable[[State], None]] = {}
        self._numbers = iter(range(1, 1 << 62))
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._limiter = anyio.CapacityLimiter(MAX_THREADS)
        self._tasks: set[asyncio.Task[Any]] = set()

    def listen(self, listener: Callable[[State], None]) -> int:
        """A page is open: rounds run until the last one is closed."""
        number = next(self._numbers)
        self._listeners[number] = listener
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="console poller")
        return number

    def close(self, number: int) -> None:
        """A page was closed."""
        self._listeners.pop(number, None)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def watch(self, key: Hashable, fetch: Fetch[Value], show: Show[Value], *, every: float = INTERVAL_SECONDS) -> int:
        """Call `show` when what `fetch` returns has changed; the number ends it."""
        self._topics.setdefault(key, Topic(key, fetch, every))
        number = next(self._numbers)
        self._shows.setdefault(key, {})[number] = show
        return number

    def unwatch(self, number: int) -> None:
        for key, shows in list(self._shows.items()):
            if shows.pop(number, None) is not None and not shows:
                del self._topics[key], self._shows[key]

    async def read(self, key: Hashable) -> Any:
        """What is shown under this key, read now if it is old; None if it cannot be read."""
        topic = self._topics.get(key)
        if topic is None:
            return None
        if topic.reading is not None or topic.is_due(time.monotonic()):
            with suppress(Exception):  # `problem_of` has it
                await self._read(topic)
        return topic.value

    def problem_of(self, keys: Iterable[Hashable]) -> str | None:
        """Why what is shown under one of these keys may be old; None if the last read of each has succeeded."""
        found = (self._topics[key].problem for key in keys if key in self._topics)
        return next((one for one in found if one is not None), None)

    def begin(self, key: Hashable) -> None:
        """Read what is shown under this key; the caller does not wait for it."""
        self._keep(asyncio.create_task(self.read(key), name="console read"))

    def hurry(self) -> None:
        """Read everything soon: a viewer has changed something."""
        for topic in self._topics.values():
            topic.read_at = -1e9
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()  # before the round: what a viewer changes meanwhile is read in the next one
            try:
                await self._round()
                self.state = State(time.time(), None)
            except (psycopg.OperationalError, VitrineError, OSError) as exc:
                self._fail(exc)
            except Exception as exc:
                if self.state.error is None:  # once, not in every round
                    log.exception("the console could not read", extra={"action": "console_read_failed"})
                self._fail(exc)
            await self._show_each(self._listeners, self.state, lambda: True)
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _fail(self, exc: Exception) -> None:
        self.state = State(self.state.read_at, _text_of(exc))

    async def _round(self) -> None:
        await self._admit()
        now = time.monotonic()
        due = sorted((one for one in self._topics.values() if one.is_due(now)), key=lambda one: one.read_at)
        for topic in due[:MAX_READS]:
            try:
                await self._read(topic)
            except (psycopg.OperationalError, TransientError):
                raise  # the others would wait for the same database
            except Exception:  # noqa: BLE001, S112  `problem_of` has it; one page must not stop the others
                continue

    async def _read(self, topic: Topic[Any]) -> None:
        """One read for all who wait for it; it continues if one of them no longer does."""
        if topic.reading is None:
            self.reads += 1
            topic.read_at = time.monotonic()
            topic.reading = asyncio.create_task(self._fetch(topic), name="console fetch")
        await asyncio.shield(topic.reading)

    async def _fetch(self, topic: Topic[Any]) -> None:
        try:
            value = await anyio.to_thread.run_sync(partial(topic.fetch, self._context), limiter=self._limiter)
        except Exception as exc:
            before, topic.problem = topic.problem, _text_of(exc)
            if topic.problem == texts.UNEXPECTED != before:  # once, not at every read
                log.exception("the console could not read", extra={"action": "console_read_failed"})
            raise
        finally:
            topic.reading = None
        topic.problem = None
        if value == topic.value:
            return
        topic.value = value
        shows = self._shows.get(topic.key, {})
        self._keep(
            asyncio.create_task(self._show_each(shows, value, lambda: topic.value is value), name="console show")
        )

    async def _show_each(self, shows: Mapping[int, Show[Value]], value: Value, is_newest: Callable[[], bool]) -> None:
        """One page at a time: a request of the API that arrives meanwhile waits for one of them, and not for all."""
        numbers = list(shows)
        pause = min(PAUSE_SECONDS, MAX_PAUSES_SECONDS / max(1, len(numbers)))
        for number in numbers:
            if not is_newest():
                return
            if number in shows:
                _show(shows[number], value)
                await asyncio.sleep(pause)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        """Until it is done: the loop itself would not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _text_of(exc: Exception) -> str:
    match exc:
        case VitrineError():
            return str(exc)
        case psycopg.OperationalError():
            return texts.NO_RESPONSE
        case _:
            return texts.UNEXPECTED


def _show(show: Show[Value], value: Value) -> None:
    """A page with a mistake does not stop the others."""
    try:
        show(value)
    except Exception:
        log.exception("a page of the console could not be shown", extra={"action": "console_page_failed"})
