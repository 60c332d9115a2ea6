"""The Content Security Policy of the pages: only scripts of this server run, and each inline one has a nonce."""

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
