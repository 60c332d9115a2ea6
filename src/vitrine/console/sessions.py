"""Who visits the console: the session in the cookie, or any user of this machine while there are no tokens."""

import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta

import anyio.to_thread

from vitrine.api.connections import Pool
from vitrine.api.tokens import TokenReader
from vitrine.service import sessions as service
from vitrine.service.context import ANONYMOUS, Caller
from vitrine.service.roles import Role
from vitrine.store import sessions
from vitrine.store.sessions import Session

COOKIE = "vitrine_console"
FRESH_SECONDS = 2.0
"""What was read is used for this time: a revoked token is refused within five seconds."""

MAX_REMEMBERED = 1000
WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Visitor:
    """A browser that may see pages."""

    caller: Caller
    session: bytes | None  # the hash of its session id; None: there are no tokens, and it is on this machine


@dataclass
class _Read:
    session: Session | None
    at: float


@dataclass
class Sessions:
    """Reads sessions from the store, in a thread of its own; what was just read is remembered."""

    pool: Pool
    tokens: TokenReader
    _read: OrderedDict[bytes, _Read] = field(default_factory=OrderedDict[bytes, _Read])
    _limiter: anyio.CapacityLimiter | None = None

    async def find(self, session_id: str, address: str) -> Visitor | None:
        """The visitor with this id in the cookie; None: it is unknown, expired or its token is not valid."""
        return await self.again(Visitor(Caller("console", "", Role.VIEWER, address), service.hash_of(session_id)))

    async def anonymous(self, address: str) -> Visitor | None:
        """The visitor without a session; None if a token was ever created."""
        known = await self.tokens.read()
        return None if known.exist else Visitor(Caller("console", ANONYMOUS, Role.ADMIN, address), None)

    async def again(self, visitor: Visitor) -> Visitor | None:
        """The visitor with the rights of now; None if they have none any more."""
        address = visitor.caller.address or ""
        if visitor.session is None:
            return await self.anonymous(address)
        if self._is_old(visitor.session):
            await self.refresh([visitor.session])
        session = self._read[visitor.session].session if visitor.session in self._read else None
        if session is None or session.seconds_left <= time.monotonic() - self._read[visitor.session].at:
            return None
        known = await self.tokens.read()
        token = next((one for one in known.by_hash.values() if one.id == session.token_id), None)
        if token is None:
            return None
        self.tokens.note_use(token)
        return Visitor(Caller("console", token.name, Role(token.role), address), visitor.session)

    async def refresh(self, hashes: Collection[bytes]) -> None:
        """Read these sessions again, all at once, and note that they are in use."""
        if not hashes:
            return
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        started = time.monotonic()
        found = await anyio.to_thread.run_sync(self._load, hashes, limiter=self._limiter)
        for one in hashes:
            self._read[one] = _Read(found.get(one), started)
            self._read.move_to_end(one)
        while len(self._read) > MAX_REMEMBERED:
            self._read.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """Read it again before the next decision: this process has changed it."""
        self._read.pop(service.hash_of(session_id), None)

    def _is_old(self, session: bytes) -> bool:
        known = self._read.get(session)
        return known is None or time.monotonic() - known.at >= FRESH_SECONDS

    def _load(self, hashes: Collection[bytes]) -> dict[bytes, Session]:
        with self.pool.connection(min(WAIT_SECONDS, self.pool.timeout)) as connection:
            found = {one.hash: one for one in sessions.list_valid(connection, hashes)}
            ending = [one.hash for one in found.values() if _may_be_extended(one)]
            if ending:
                sessions.record_use(connection, ending, idle=service.IDLE, longest=service.LONGEST)
            return found


def _may_be_extended(session: Session) -> bool:
    """Not at every read: after a minute of use, the end has come nearer by more than that."""
    return session.seconds_left < (service.IDLE - timedelta(minutes=1)).total_seconds()
