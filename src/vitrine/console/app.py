"""Attaches the console to the API's application, when it is served; and its Content Security Policy."""

import inspect
import re
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from nicegui import app as nicegui_app
from nicegui import core, ui
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrine.console import guard, pages, texts
from vitrine.console.guard import PATH, ConsoleGuard
from vitrine.console.viewer import Console
from vitrine.settings import Settings

_SCRIPT = re.compile(rb"<script(?=[\s>])")


def policy(nonce: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            # Vue compiles the templates of components in the browser, which needs eval; no inline script does
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            # Quasar and NiceGUI write style elements; a style runs no code
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


_EVERYWHERE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "DENY"}


class ContentPolicy:
    """ASGI middleware inside the compression: gives every script of a page the nonce of its response.

    Text of pipelines cannot contain a script element here: NiceGUI escapes `<` in the elements of a page.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = _Page(send)
        await self._app(scope, receive, page.send)


class _Page:
    """One response: a page is held back until it is complete, everything else passes at once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # None: passes
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.update(_EVERYWHERE)
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
            headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body", False):
                return
            await self._finish()
            return
        await self._send(message)

    async def _finish(self) -> None:
        assert self._start is not None  # noqa: S101  for the type checker
        nonce = secrets.token_urlsafe(16)
        body = _SCRIPT.sub(b'<script nonce="' + nonce.encode() + b'"', bytes(self._body))
        headers = MutableHeaders(raw=self._start["headers"])
        headers["Content-Security-Policy"] = policy(nonce)
        headers["Content-Length"] = str(len(body))
        headers["Cache-Control"] = "no-store"
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body})


RECONNECT_SECONDS = 30.0
MAX_MESSAGE_BYTES = 1_000_000

_FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


def attach(app: FastAPI) -> None:
    """Serve the console at /console of this application, and lead / there; call it before the server starts."""
    settings, pool, tokens = app.state.settings, app.state.pool, app.state.tokens
    console = Console(settings, pool, tokens)
    _restrict_sockets()
    core.app.add_middleware(ContentPolicy)  # before run_with adds the compression around it
    _add_routes(console, settings)
    for page in pages.PAGES:
        page.register(console)
    _add_error_pages()
    cast(Any, ui).run_with(
        app,
        mount_path=PATH,
        title=texts.PRODUCT,
        dark=None,
        language="en-US",
        favicon=Path(str(files("vitrine.console").joinpath("files/icon.svg"))),
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_SECONDS,
        tailwind=False,
        show_welcome_message=False,
    )
    app.add_middleware(
        ConsoleGuard,
        settings=settings,
        tokens=tokens,
        sessions=console.sessions,
        pages=console,
        site=core.app,
    )


def _restrict_sockets() -> None:
    """Only websockets of this origin, with small messages, each for its own page; none writes to our log."""
    sockets = cast(Any, core.sio).eio
    sockets.cors_allowed_origins = None  # the default of NiceGUI is any origin
    sockets.transports = ["websocket"]
    sockets.max_http_buffer_size = MAX_MESSAGE_BYTES
    nicegui_app.config.socket_io_js_transports = ["websocket"]
    cast(dict[str, Any], nicegui_app.config.quasar_config)["loadingBar"] = {"skipHijack": True}
    handlers = cast(dict[str, dict[str, Any]], core.sio.handlers)["/"]
    handlers.pop("log", None)
    for name in ("handshake", "event", "javascript_response", "ack"):
        handlers[name] = _bound(handlers[name])


def _bound(handler: Callable[[str, dict[str, Any]], Any]) -> Callable[[str, dict[str, Any]], Awaitable[Any]]:
    """Messages name the page they are for: only the page that the guard has admitted the socket for."""

    async def checked(sid: str, message: Any = None, *_: Any) -> Any:
        query = parse_qs(cast(Any, core.sio).get_environ(sid).get("QUERY_STRING", ""))
        if not isinstance(message, dict):
            return False
        given = cast(dict[str, Any], message)
        if [given.get("client_id")] != query.get("client_id"):
            return False
        try:
            answer = handler(sid, given)
            return await answer if inspect.isawaitable(answer) else answer
        except (KeyError, TypeError, ValueError):
            # no message of a page: a stack of each would fill the log. Errors of our own handlers do not pass here
            return False

    return checked


def _add_error_pages() -> None:
    """In place of those of NiceGUI, which show the exception, and no way back."""

    async def missing(_request: Request, _exc: Exception) -> Response:
        return HTMLResponse(guard.problem_page(texts.NOT_FOUND, target=PATH, label=texts.OVERVIEW), 404)

    async def full(_request: Request, _exc: Exception) -> Response:
        return HTMLResponse(guard.problem_page(texts.TOO_MANY_PAGES), 503)

    async def broken(_request: Request, _exc: Exception) -> Response:
        return HTMLResponse(guard.problem_page(texts.CALL_FAILED), 500)

    for kind, handler in ((404, missing), (503, full), (Exception, broken)):
        core.app.add_exception_handler(kind, handler)


def _add_routes(console: Console, settings: Settings) -> None:
    nicegui_app.include_router(guard.make_login_router(settings, console.sessions), include_in_schema=False)
    known = {
        name: (files("vitrine.console").joinpath("files", name).read_bytes(), kind) for name, kind in _FILES.items()
    }

    @nicegui_app.get("/files/{name}", include_in_schema=False)
    async def get_file(name: str) -> Response:
        if name not in known:
            raise HTTPException(404)
        content, media_type = known[name]
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})
