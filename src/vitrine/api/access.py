"""Access: what a request must pass before anything else, and the routes for tokens and the audit log."""

import asyncio
import base64
import binascii
import hmac
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_network
from typing import Annotated, cast
from uuid import UUID

import anyio.to_thread
import psycopg
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrine.api import addresses, permissions, problems
from vitrine.api.addresses import Client, Proxies
from vitrine.api.connections import CALLER, Pool, Service
from vitrine.api.parameters import Limit
from vitrine.api.permissions import Permission
from vitrine.api.problems import Refused, documented
from vitrine.errors import VitrineError
from vitrine.listening import HostRule, parse_address
from vitrine.operations import access
from vitrine.operations.bodies.access import TOKEN_NAME, AuditPage, CreatedToken, NewToken, TokenPage, WhoAmI
from vitrine.operations.context import ANONYMOUS, Caller, Role
from vitrine.settings import Settings
from vitrine.store.access import NEWEST, AuditFilters, ValidToken, list_valid_tokens, record_token_use, tokens_exist
from vitrine.text import token_hash

log = logging.getLogger(__name__)

FREE_ATTEMPTS = 5
STEP_SECONDS = 0.25
MAX_DELAY_SECONDS = 2.0
FORGOTTEN_AFTER_SECONDS = 300.0
MAX_ADDRESSES = 1024
MAX_WAITING = 64
MAX_WAITING_OF_ADDRESS = 8


@dataclass
class _Failures:
    count: int = 0
    last_at: float = 0.0
    waiting: int = 0


class FailedLogins:
    """Counts failures by address, for a limited number of addresses; the one that failed longest ago is forgotten."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._waiting = 0

    async def slow_down(self, address: str) -> bool:
        """Wait for longer after each failure of an address; False, without a wait, if too many wait already."""
        failures = self._note(_group(address))
        delay = min(MAX_DELAY_SECONDS, STEP_SECONDS * max(0, failures.count - FREE_ATTEMPTS))
        if delay == 0:
            return True
        if self._waiting >= MAX_WAITING or failures.waiting >= MAX_WAITING_OF_ADDRESS:
            return False
        self._waiting += 1
        failures.waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
            failures.waiting -= 1
        return True

    def _note(self, group: str) -> _Failures:
        now = time.monotonic()
        failures = self._failures.pop(group, None) or _Failures()
        if now - failures.last_at > FORGOTTEN_AFTER_SECONDS:
            failures.count = 0
        failures.count += 1
        failures.last_at = now
        self._failures[group] = failures
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        # one line for 1, 10, 100 … failures: a flood of wrong tokens must not flood the log
        if str(failures.count).rstrip("0") == "1":
            log.warning(
                "wrong access token",
                extra={"action": "login_failed", "address": group, "failures": failures.count},
            )
        return failures


def _group(address: str) -> str:
    """One client has a whole /64 of IPv6 addresses."""
    parsed = parse_address(address)
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address


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
        hashed = token_hash(text)
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
            exist = tokens_exist(connection)  # first: a token that is created in between is then in the list
            valid = list_valid_tokens(connection)
            known = Known(
                exist=exist or bool(valid),
                by_hash={token.hash: token for token in valid},
                read_at=started,
            )
            if used:
                try:
                    record_token_use(connection, used)
                except VitrineError as exc:
                    log.warning("the last use of a token is not recorded: %s", exc, extra={"action": "use_unrecorded"})
            return known


_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z]+) +(?P<value>[\x21-\x7e]+) *")
_IN_URL = re.compile(rb"vtr_[0-9A-Za-z]{20,}|(?:^|[&;?])(?:access_)?token=", re.IGNORECASE)

UNAUTHENTICATED = (
    "give a valid access token in the header Authorization: Bearer; an administrator creates one with"
    " `vitrine token create`"
)


class Guard:
    """ASGI middleware, outside of every other one."""

    def __init__(
        self, app: ASGIApp, settings: Settings, tokens: TokenReader, on_error: Callable[[Exception], Response]
    ) -> None:
        self._app = app
        self._proxies = Proxies(settings.trusted_proxies)
        self._exposed = addresses.is_exposed(settings)
        self._host_rule = HostRule(settings.allowed_hosts, self._exposed)
        self._speaks_tls = settings.tls_cert is not None
        self._tokens = tokens
        self._on_error = on_error
        self._failed_logins = FailedLogins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there is no WebSocket"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._admit(scope)
        except Refused as refused:
            await refused.response(scope, receive, send)
            return
        except (psycopg.OperationalError, VitrineError) as exc:
            await self._on_error(exc)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Refused, unless the request may proceed; its scope then has the caller and the address of the client."""
        headers = Headers(scope=scope)
        # guarantee: K3
        self._check_host(headers)
        self._check_target(scope)
        client = self._client(scope, headers)
        found = permissions.find(scope["method"], scope["path"])
        if found.permission and found.permission.role is None:
            return
        # guarantee: H19
        caller = await self._authenticate(headers, client, found.permission)
        if found.permission is None:
            raise Refused(_unknown(found.methods))
        if not caller.role.includes(role := found.permission.role or Role.ADMIN):
            raise Refused(
                problems.respond(403, "FORBIDDEN", f"this needs the role {role}, and your token has {caller.role}")
            )
        scope[CALLER] = caller

    def _check_host(self, headers: Headers) -> None:
        """Before anything else: a page under a foreign name must learn nothing, not even that a token is missing."""
        if refusal := self._host_rule.refuses(headers.getlist("host")):
            raise Refused(problems.respond(refusal.status, refusal.code, refusal.detail))

    def _check_target(self, scope: Scope) -> None:
        if not scope["path"].startswith("/"):
            raise Refused(problems.respond(400, "BAD_TARGET", "send a request target that begins with /"))
        if _IN_URL.search(scope.get("query_string", b"")) or _IN_URL.search(scope.get("raw_path") or b""):
            raise Refused(
                problems.respond(
                    400,
                    "TOKEN_IN_URL",
                    "a token does not belong in an address, which proxies and browsers record: send it in the header"
                    " Authorization, and revoke it if it was a real one",
                )
            )

    def _client(self, scope: Scope, headers: Headers) -> Client:
        peer = scope["client"][0] if scope.get("client") else ""
        client = self._proxies.client(peer, headers, https=scope["scheme"] == "https")
        scope["client"] = (client.address, 0)
        scope["scheme"] = "https" if client.https else "http"
        if self._exposed and not (self._speaks_tls or client.through_proxy or client.is_local):
            raise Refused(
                problems.respond(
                    403, "NOT_ENCRYPTED", "this connection is not encrypted; use the proxy in front of this API"
                )
            )
        return client

    async def _authenticate(self, headers: Headers, client: Client, permission: Permission | None) -> Caller:
        known = await self._known(permission)
        if not known.exist and self._serves_anonymously(client):
            return Caller("api", ANONYMOUS, Role.ADMIN, client.address)
        in_browser = permission is not None and permission.in_browser
        given = headers.getlist("authorization")
        text = _token_in(given[0], in_browser=in_browser) if len(given) == 1 else None
        token = known.find(text) if text else None
        if token is not None:
            self._tokens.note_use(token)
            return Caller("api", token.name, Role(token.role), client.address)
        if given and not await self._failed_logins.slow_down(client.address):
            raise Refused(
                problems.respond(
                    429,
                    "TOO_MANY_FAILURES",
                    "too many wrong tokens; wait, then try again",
                    headers={"Retry-After": "5"},
                )
            )
        refusal = problems.respond(401, "UNAUTHENTICATED", UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})
        if in_browser:
            refusal.headers.append("WWW-Authenticate", 'Basic realm="Vitrine: the password is a token"')
        raise Refused(refusal)

    async def _known(self, permission: Permission | None) -> Known:
        try:
            return await self._tokens.read()
        except (psycopg.OperationalError, VitrineError):
            # while the store is unavailable, only routes that show nothing of it answer
            if permission is None or permission.needs_store:
                raise
            return self._tokens.last or Known(exist=False, by_hash={}, read_at=0.0)

    def _serves_anonymously(self, client: Client) -> bool:
        """Only to this machine: never through a proxy, and never if the API is bound to another address."""
        # guarantee: H20
        if self._exposed or self._proxies or not client.is_local:
            return False
        if client.mentions_proxy:
            raise Refused(
                problems.respond(
                    403,
                    "PROXY_WITHOUT_TOKENS",
                    "the request has passed a proxy, and there are no access tokens yet; create one with `vitrine token"
                    " create`, and name the proxy in VITRINE_TRUSTED_PROXIES",
                )
            )
        return True


def _token_in(header: str, *, in_browser: bool) -> str | None:
    """The token of an Authorization header; None if it has none."""
    found = _CREDENTIALS.fullmatch(header)
    if found is None:
        return None
    match found["scheme"].lower():
        case "bearer":
            return found["value"]
        case "basic" if in_browser:
            try:
                return base64.b64decode(found["value"], validate=True).decode("ascii").partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return None
        case _:
            return None


def _unknown(methods: frozenset[str]) -> Response:
    if methods:
        return problems.respond_to_status(405, headers={"Allow": ", ".join(sorted(methods))})
    return problems.respond_to_status(404)


router = APIRouter(tags=["access"])

MAX_TEXT = 200


@router.get("/whoami", summary="Show the caller")
def who_am_i(service: Service) -> WhoAmI:
    """The name and the role of the token that the request was sent with, and the address that the API sees."""
    return access.who_am_i(service)


@router.get("/tokens", summary="List the access tokens", responses=documented(422))
def list_tokens(
    service: Service,
    limit: Limit = 50,
    after: Annotated[
        str,
        Query(pattern="^[a-z0-9_.-]*$", max_length=63, description="Start after this name: `next` of the last page."),
    ] = "",
) -> TokenPage:
    """Tokens that are not revoked, sorted by name. Their texts are not stored; the audit log has the revoked ones."""
    return access.list_tokens(service, after=after, limit=limit)


@router.post(
    "/tokens", status_code=201, summary="Create an access token", responses=documented(400, 409, 413, 415, 422)
)
def create_token(service: Service, request: Request, response: Response, new: NewToken) -> CreatedToken:
    """The answer shows the token once. From the first token on, every request needs one."""
    created = access.create_token(service, new)
    _read_again(request)
    response.headers["Cache-Control"] = "no-store"
    return created


@router.delete("/tokens/{name}", status_code=204, summary="Revoke an access token", responses=documented(404, 422))
def revoke_token(
    service: Service, request: Request, name: Annotated[str, Path(pattern=TOKEN_NAME, examples=["airflow"])]
) -> None:
    """The token loses its rights within five seconds, at every API process."""
    access.revoke_token(service, name)
    _read_again(request)


@router.get("/audit", summary="Read the audit log", responses=documented(422))
def list_audit(
    service: Service,
    limit: Limit = 50,
    before: Annotated[
        int | None, Query(ge=1, le=NEWEST, description="Only entries older than this id: `next` of the last page.")
    ] = None,
    pipeline: Annotated[str | None, Query(max_length=MAX_TEXT, description="Only changes of this pipeline.")] = None,
    actor: Annotated[str | None, Query(max_length=MAX_TEXT, description="Only changes by this token or user.")] = None,
    operation: Annotated[
        str | None, Query(max_length=MAX_TEXT, description="Only this operation, for example pipelines.change.")
    ] = None,
    since: Annotated[
        datetime | None, Query(description="Only changes since this time; without an offset it is UTC.")
    ] = None,
) -> AuditPage:
    """Every change, newest first: who asked for it, from where, and what it was before and after."""
    start = since.replace(tzinfo=UTC) if since and since.tzinfo is None else since
    filters = AuditFilters(pipeline=pipeline, actor=actor, operation=operation, since=start)
    return access.list_audit_log(service, filters, before=before, limit=limit)


def _read_again(request: Request) -> None:
    cast(TokenReader, request.app.state.tokens).forget()
