"""The tokens that are valid now, read from the store every two seconds: a revoked one is refused within five."""

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import anyio.to_thread
import psycopg

from vitrine import token_text
from vitrine.api.connections import Pool
from vitrine.errors import VitrineError
from vitrine.store import tokens
from vitrine.store.tokens import ValidToken

log = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
VALID_SECONDS = 4.5
"""After this time nothing is decided by what was read before; in between it is used while it is read again."""

WAIT_SECONDS = 2.0
RETRY_SECONDS = 0.5
USE_SECONDS = 60.0


@dataclass(frozen=True)
class Known:
    """What the store contained at some moment."""

    exist: bool  # a token was ever created: the API never serves without one again
    by_hash: Mapping[bytes, ValidToken]
    read_at: float

    def find(self, text: str) -> ValidToken | None:
        """The valid token with this text. Only hashes are compared, so that the time of it reveals nothing."""
        hashed = token_text.hash_of(text)
        found = self.by_hash.get(hashed) if hashed is not None else None
        if hashed is None or found is None or not hmac.compare_digest(found.hash, hashed):
            return None
        return found if found.seconds_left > time.monotonic() - self.read_at else None


@dataclass
class _Failure:
    error: psycopg.OperationalError | VitrineError
    at: float


@dataclass
class TokenReader:
    """Reads the tokens at most once at a time, in a thread of its own: busy routes do not delay it."""

    pool: Pool
    last: Known | None = None  # as old as it may be
    _reading: asyncio.Task[None] | None = None
    _failure: _Failure | None = None
    _limiter: anyio.CapacityLimiter | None = None
    _changed_at: float = 0.0  # what was read before is void
    _announced: bool = False
    _used_at: dict[UUID, float] = field(default_factory=dict[UUID, float])
    _unrecorded: set[UUID] = field(default_factory=set[UUID])

    def prepare(self) -> None:
        """Read in the background, when the API starts."""
        self._start()

    async def read(self) -> Known:
        """What the store contains; an error if it cannot be read."""
        while True:
            age = time.monotonic() - self.last.read_at if self.last else VALID_SECONDS
            if self.last and age < FRESH_SECONDS:
                return self.last
            if self._failure and age >= VALID_SECONDS and time.monotonic() - self._failure.at < RETRY_SECONDS:
                raise self._failure.error
            reading = self._start()
            if self.last and age < VALID_SECONDS:
                return self.last
            await asyncio.shield(reading)

    def forget(self) -> None:
        """Read again before the next decision: this process has changed the tokens."""
        self.last, self._changed_at = None, time.monotonic()

    def note_use(self, token: ValidToken) -> None:
        now = time.monotonic()
        if now - self._used_at.get(token.id, -USE_SECONDS) >= USE_SECONDS:
            self._used_at[token.id] = now
            self._unrecorded.add(token.id)
            self._start()

    def _start(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        started = time.monotonic()
        used, self._unrecorded = self._unrecorded, set()
        try:
            known = await anyio.to_thread.run_sync(self._load, started, used, limiter=self._limiter)
            self._failure = None
            self._announce(known)
            if started >= self._changed_at:
                self.last = known
        except (psycopg.OperationalError, VitrineError) as exc:
            self._failure = _Failure(exc, time.monotonic())
            self._unrecorded |= used

    def _announce(self, known: Known) -> None:
        if not known.exist and not self._announced:
            self._announced = True
            log.info(
                "there are no access tokens: the API answers requests of this machine only, and each of them as an"
                " administrator; create a token with `vitrine token create NAME --role admin`",
                extra={"action": "no_tokens"},
            )

    def _load(self, started: float, used: set[UUID]) -> Known:
        with self.pool.connection(min(WAIT_SECONDS, self.pool.timeout)) as connection:
            exist = tokens.exist(connection)  # first: a token that is created in between is then in the list
            valid = tokens.list_valid(connection)
            known = Known(
                exist=exist or bool(valid),
                by_hash={token.hash: token for token in valid},
                read_at=started,
            )
            if used:
                try:
                    tokens.record_use(connection, used)
                except VitrineError as exc:
                    log.warning("the last use of a token is not recorded: %s", exc, extra={"action": "use_unrecorded"})
            return known
