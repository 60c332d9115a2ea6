"""Waits for the end of requests: any number of waiting clients cost one statement at a time, and no thread each."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from starlette.concurrency import run_in_threadpool

from vitrine.errors import TransientError, VitrineError
from vitrine.service.history import POLL_SECONDS

MAX_WAITING = 500
"""Clients that may wait at once: each has an open socket, and a process may often have no more than 1024 files open."""

LONGEST = timedelta(seconds=60)

ListOpen = Callable[[Iterable[UUID]], frozenset[UUID]]


class RequestWaiting:
    """Used in the event loop only. While a client waits, one task asks which of the awaited requests are open."""

    def __init__(self, list_open: ListOpen) -> None:
        self._list_open = list_open
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def count(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def until_ended(self, request_id: UUID, seconds: float, gone: Coroutine[Any, Any, None]) -> None:
        """Returns when the request has ended, the time is over, the client is `gone`, or the server stops."""
        if self.count >= MAX_WAITING:
            gone.close()
            raise TransientError(
                f"{MAX_WAITING} clients are waiting already; ask without wait, or later", code="TOO_MANY_WAITING"
            )
        ended = asyncio.Event()
        self._waiting.setdefault(request_id, set()).add(ended)
        if self._closed:
            ended.set()
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        reasons = [asyncio.create_task(ended.wait()), asyncio.create_task(gone)]
        try:
            await asyncio.wait(reasons, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()
            self._remove(request_id, ended)

    def close(self) -> None:
        """Answer every waiting client now."""
        self._closed = True
        for waiting in self._waiting.values():
            for ended in waiting:
                ended.set()

    def _remove(self, request_id: UUID, ended: asyncio.Event) -> None:
        waiting = self._waiting[request_id]
        waiting.discard(ended)
        if not waiting:
            del self._waiting[request_id]

    async def _watch(self) -> None:
        while self._waiting and not self._closed:
            await asyncio.sleep(POLL_SECONDS)
            awaited = list(self._waiting)
            still_open = frozenset(awaited)
            # while the database is unavailable, clients wait on
            with suppress(psycopg.OperationalError, VitrineError):
                still_open = await run_in_threadpool(self._list_open, awaited)
            for request_id in set(awaited) - still_open:
                for ended in self._waiting.get(request_id, ()):
                    ended.set()
