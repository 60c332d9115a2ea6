"""What a request for the console must pass: Host, session, origin; the rules about hosts and proxies are the API's."""

from http.cookies import CookieError, SimpleCookie
from typing import Protocol
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrine.api import problems
from vitrine.api.clients import Client
from vitrine.api.guard import Guard
from vitrine.api.problems import Refused
from vitrine.api.tokens import TokenReader
from vitrine.console import login, texts
from vitrine.console.sessions import COOKIE, Sessions, Visitor
from vitrine.errors import VitrineError
from vitrine.settings import Settings

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
    return HTMLResponse(login.unavailable_page(), 503, _HEADERS)


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
        return HTMLResponse(login.AGAIN_PAGE, headers=_HEADERS)
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
