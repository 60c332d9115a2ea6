"""The pages with which a browser logs in and out: plain forms, without NiceGUI."""

import asyncio
import time
from html import escape
from typing import cast
from urllib.parse import parse_qs

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from vitrine.api.connections import make_context
from vitrine.api.failed_logins import FailedLogins
from vitrine.api.tokens import TokenReader
from vitrine.console import texts
from vitrine.console.sessions import COOKIE, Sessions, Visitor
from vitrine.service import sessions as service
from vitrine.service.context import Caller
from vitrine.service.roles import Role
from vitrine.settings import Settings
from vitrine.store.tokens import ValidToken

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


def make_router(settings: Settings, sessions: Sessions) -> APIRouter:
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
        session_id = await anyio.to_thread.run_sync(service.open_session, context, token.id)
        response = RedirectResponse(_safe(target), 303)
        response.set_cookie(
            COOKIE,
            session_id,
            path=HOME,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
            max_age=int(service.LONGEST.total_seconds()),
        )
        return response

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        session_id = request.cookies.get(COOKIE)
        visitor = cast(Visitor | None, request.scope.get("vitrine.visitor"))
        if session_id and visitor and visitor.session:
            context = make_context(settings, sessions.pool, visitor.caller)
            await anyio.to_thread.run_sync(service.close_session, context, session_id)
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
