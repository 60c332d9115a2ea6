"""Who may see the console: Host, session and origin of a request, and the pages to log in and out."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Protocol, cast
from urllib.parse import parse_qs, quote, urlsplit

import anyio.to_thread
import psycopg
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrine.api import problems
from vitrine.api.access import FailedLogins, Guard, TokenReader
from vitrine.api.addresses import Client
from vitrine.api.connections import Pool, make_context
from vitrine.api.problems import Refused
from vitrine.console import texts
from vitrine.errors import VitrineError
from vitrine.operations import access
from vitrine.operations.context import ANONYMOUS, Caller, Role
from vitrine.settings import Settings
from vitrine.store.access import Session, ValidToken, list_valid_sessions, record_session_use

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
        return await self.again(Visitor(Caller("console", "", Role.VIEWER, address), access.hash_of(session_id)))

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
        self._read.pop(access.hash_of(session_id), None)

    def _is_old(self, session: bytes) -> bool:
        known = self._read.get(session)
        return known is None or time.monotonic() - known.at >= FRESH_SECONDS

    def _load(self, hashes: Collection[bytes]) -> dict[bytes, Session]:
        with self.pool.connection(min(WAIT_SECONDS, self.pool.timeout)) as connection:
            found = {one.hash: one for one in list_valid_sessions(connection, hashes)}
            ending = [one.hash for one in found.values() if _may_be_extended(one)]
            if ending:
                record_session_use(connection, ending, idle=access.IDLE, longest=access.LONGEST)
            return found


def _may_be_extended(session: Session) -> bool:
    """Not at every read: after a minute of use, the end has come nearer by more than that."""
    return session.seconds_left < (access.IDLE - timedelta(minutes=1)).total_seconds()


MAX_BYTES = 4096
RECENT_SECONDS = 0.5
HOME = "/console"

AGAIN_PAGE = (
    f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><title>{texts.PRODUCT}</title>'
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="/console/files/icon.svg">
<link rel="stylesheet" href="/console/files/console.css">
</head>
<body class="v-plain">
<main class="v-login">
<h1><span class="v-mark" aria-hidden="true"></span>{product}</h1>
{content}
</main>
</body>
</html>
"""

_FORM = """<form method="post" action="/console/login">
<input type="hidden" name="next" value="{target}">
<label for="token">{label}</label>
<input id="token" name="token" type="password" autocomplete="current-password" spellcheck="false" autofocus required
 maxlength="200" aria-describedby="help"{invalid}>
{problem}
<p id="help" class="v-muted">{help}</p>
<button class="v-button v-primary" type="submit">{button}</button>
</form>"""


def page(*, target: str = HOME, problem: str = "") -> str:
    """`target`: the address that follows the login."""
    form = _FORM.format(
        target=escape(target, quote=True),
        label=texts.TOKEN,
        help=texts.TOKEN_HELP,
        button=texts.LOG_IN,
        invalid=' aria-invalid="true"' if problem else "",
        problem=f'<p class="v-problem" role="alert">{escape(problem)}</p>' if problem else "",
    )
    return _PAGE.format(title=f"{texts.LOG_IN} · {texts.PRODUCT}", product=texts.PRODUCT, content=form)


def unavailable_page() -> str:
    return problem_page(texts.STORE_UNAVAILABLE)


def problem_page(text: str, *, target: str = "", label: str = texts.TRY_AGAIN) -> str:
    """One sentence and one link. `target`: the address of the link; the same page if it is empty."""
    content = f'<p class="v-problem" role="alert">{escape(text)}</p><a href="{target}">{label}</a>'
    return _PAGE.format(title=texts.PRODUCT, product=texts.PRODUCT, content=content)


def make_login_router(settings: Settings, sessions: Sessions) -> APIRouter:
    router = APIRouter()
    failed = FailedLogins()

    def show(request: Request, problem: str, status: int, target: str = HOME) -> Response:
        return HTMLResponse(page(target=_safe(target), problem=problem), status)

    @router.get("/login")
    async def show_login(request: Request) -> Response:
        if request.scope.get("vitrine.visitor") is not None:
            return RedirectResponse(_safe(request.query_params.get("next", HOME)), 303)
        return show(request, "", 200, request.query_params.get("next", HOME))

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        fields = await _form(request)
        if fields is None:
            return show(request, texts.WRONG_TOKEN, 400)
        target, address = fields.get("next", HOME), request.client.host if request.client else ""
        token = await _find(sessions.tokens, fields.get("token", "").strip())
        if token is None:
            if not await failed.slow_down(address):
                return show(request, texts.TOO_MANY_FAILURES, 429, target)
            return show(request, texts.WRONG_TOKEN, 401, target)
        sessions.tokens.note_use(token)
        caller = Caller("console", token.name, Role(token.role), address)
        context = make_context(settings, sessions.pool, caller)
        session_id = await anyio.to_thread.run_sync(access.open_session, context, token.id)
        response = RedirectResponse(_safe(target), 303)
        response.set_cookie(
            COOKIE,
            session_id,
            path=HOME,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
            max_age=int(access.LONGEST.total_seconds()),
        )
        return response

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        session_id = request.cookies.get(COOKIE)
        visitor = cast(Visitor | None, request.scope.get("vitrine.visitor"))
        if session_id and visitor and visitor.session:
            context = make_context(settings, sessions.pool, visitor.caller)
            await anyio.to_thread.run_sync(access.close_session, context, session_id)
            sessions.forget(session_id)
        response = RedirectResponse(f"{HOME}/login", 303)
        response.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="strict")
        return response

    return router


async def _find(tokens: TokenReader, text: str) -> ValidToken | None:
    """The token with this text. One that was just created is found, although tokens are read every two seconds only."""
    known = await tokens.read()
    token = known.find(text)
    if token is not None:
        return token
    # wrong tokens make the store be read twice a second at most
    await asyncio.sleep(max(0.0, known.read_at + RECENT_SECONDS - time.monotonic()))
    tokens.forget()
    return (await tokens.read()).find(text)


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a small form; None: it is too large, or not text."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            return None
    try:
        found = parse_qs(body.decode("ascii"), max_num_fields=10)
    except ValueError:
        return None
    return {name: values[0] for name, values in found.items()}


def _safe(target: str) -> str:
    """Only an address of the console: another one would make the login page a way to any site."""
    is_ours = target == HOME or target.startswith((f"{HOME}/", f"{HOME}?"))
    return target if is_ours and target.isprintable() and "\\" not in target and not target.startswith("//") else HOME


PATH = "/console"
VISITOR = "vitrine.visitor"
"""Where the guard leaves the visitor in the scope of a request."""

OPEN_PATHS = frozenset({f"{PATH}/login", f"{PATH}/files/console.css", f"{PATH}/files/icon.svg"})
"""What a browser without a session may read."""

FORMS = frozenset({f"{PATH}/login", f"{PATH}/logout"})
"""The only paths that take a body."""

MAX_SOCKETS = 400
"""Each keeps its connection: the API must have others left."""

SOCKET = f"{PATH}/_nicegui_ws/socket.io"


class Pages(Protocol):
    """The pages that are open."""

    def may_connect(self, page: str, session: bytes | None) -> bool:
        """Whether a socket of this session may serve the page with this id; a page of another one may not."""
        ...


class ConsoleGuard(Guard):
    """ASGI middleware around the API: requests for the console pass here, all others reach the API as they are."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        tokens: TokenReader,
        sessions: Sessions,
        pages: Pages,
        site: ASGIApp,
    ) -> None:
        """`site`: what serves the pages."""
        super().__init__(app, settings, tokens, on_error=_unavailable)
        self._sessions = sessions
        self._pages = pages
        self._mount = Mount(PATH, site)
        self._sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_root = scope["type"] == "http" and path == "/" and scope["method"] in ("GET", "HEAD")
        if scope["type"] not in ("http", "websocket") or not (is_root or _is_ours(path)):
            await self._app(scope, receive, send)
            return
        try:
            if is_root:
                self._check_host(Headers(scope=scope))
                await RedirectResponse(PATH)(scope, receive, send)
                return
            scope = await self._admit_visitor(_tidy(scope))
        except Refused as refused:
            await _refuse(refused.response, scope, receive, send)
            return
        except (psycopg.OperationalError, VitrineError) as exc:
            await _refuse(self._on_error(exc), scope, receive, send)
            return
        _, child = self._mount.matches(scope)
        scope.update(child)
        self._sockets += scope["type"] == "websocket"
        try:
            await self._mount.handle(scope, receive, send)
        finally:
            self._sockets -= scope["type"] == "websocket"

    async def _admit_visitor(self, scope: Scope) -> Scope:
        headers = Headers(scope=scope)
        self._check_host(headers)
        self._check_target(scope)
        client = self._client(scope, headers)
        _check_method(scope)
        if scope["type"] == "websocket" or scope["method"] == "POST":
            # guarantee: H30
            _check_origin(headers)
        visitor = await self._visitor(headers, client)
        if visitor is None and not (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            raise Refused(_to_login(scope, headers))
        if scope["type"] == "websocket":
            self._check_socket(scope, visitor)
        scope[VISITOR] = visitor
        return scope

    async def _visitor(self, headers: Headers, client: Client) -> Visitor | None:
        session_id = session_in(headers)
        if session_id is not None and (visitor := await self._sessions.find(session_id, client.address)):
            return visitor
        anonymous = await self._sessions.anonymous(client.address)
        return anonymous if anonymous and self._serves_anonymously(client) else None

    def _check_socket(self, scope: Scope, visitor: Visitor | None) -> None:
        """A socket belongs to one page, and that page to one session: the id of a page alone opens nothing."""
        if self._sockets >= MAX_SOCKETS:
            raise Refused(problems.respond(503, "TOO_MANY_PAGES", texts.TOO_MANY_PAGES))
        page = parse_qs(scope["query_string"].decode("ascii", "replace")).get("client_id", [""])[0]
        session = visitor.session if visitor else None
        if not scope["path"].startswith(SOCKET) or not self._pages.may_connect(page, session):
            raise Refused(problems.respond(403, "OTHER_PAGE", "open the page again"))


_HEADERS = {"Cache-Control": "no-store"}


def _unavailable(_: Exception) -> Response:
    return HTMLResponse(unavailable_page(), 503, _HEADERS)


def session_in(headers: Headers) -> str | None:
    """The session id in the cookie; None if there is none."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load("; ".join(headers.getlist("cookie")))
    except CookieError:
        return None
    found = cookies.get(COOKIE)
    return found.value if found is not None and 0 < len(found.value) <= 200 else None


def _is_ours(path: str) -> bool:
    # guarantee: H31
    return path == PATH or path.startswith(f"{PATH}/")


def _tidy(scope: Scope) -> Scope:
    """The scope with one spelling of the first page, and without a header that NiceGUI would write into its pages."""
    path = f"{PATH}/" if scope["path"] == PATH else scope["path"]
    headers = [(name, value) for name, value in scope["headers"] if name != b"x-forwarded-prefix"]
    return {**scope, "path": path, "headers": headers}


def _check_method(scope: Scope) -> None:
    if scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD"):
        return
    if scope["method"] != "POST" or scope["path"] not in FORMS:
        raise Refused(problems.respond_to_status(405, headers={"Allow": "GET, HEAD"}))


def _check_origin(headers: Headers) -> None:
    """Browsers send the origin with every form and every websocket; one of another site is refused, and so is none."""
    origins = headers.getlist("origin")
    if len(origins) != 1 or urlsplit(origins[0]).netloc != headers.get("host"):
        raise Refused(problems.respond(403, "OTHER_ORIGIN", texts.OTHER_ORIGIN))


def _to_login(scope: Scope, headers: Headers) -> Response:
    if scope["type"] == "websocket":
        return problems.respond(401, "UNAUTHENTICATED", texts.LOG_IN_FIRST)
    if headers.get("sec-fetch-site") == "cross-site" and session_in(headers) is None:
        # the cookie is not sent with a link from another site; the browser sends it when the page itself asks again
        return HTMLResponse(AGAIN_PAGE, headers=_HEADERS)
    wants_page = "text/html" in headers.get("accept", "")
    if not wants_page:
        return problems.respond(401, "UNAUTHENTICATED", texts.LOG_IN_FIRST)
    query = scope["query_string"].decode("ascii", "replace")
    target = quote(scope["path"]) + (f"?{query}" if query else "")
    return RedirectResponse(f"{PATH}/login?next={quote(target, safe='')}", 303, _HEADERS)


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        return
    await response(scope, receive, send)
