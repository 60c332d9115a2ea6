"""Limits that a request must meet before it reaches a route: size, media type, depth, storable values, origin."""

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrine.api import problems
from vitrine.api.problems import Refused

MAX_BYTES = 256 * 1024
MAX_BYTES_OF_MANY = 8 * 1024 * 1024
"""Of the route that applies many definitions at once."""

MAX_SECONDS = 20.0
MAX_DEPTH = 32


class RequestLimits:
    """ASGI middleware: reads the body up to the limit, checks it, and passes it on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(MAX_SECONDS):
                body = await _read(receive, _limit(scope["path"]))
            if body is None:
                return
            _check(Request(scope), body)
        except Refused as refused:
            await refused.response(scope, receive, send)
            return
        except TimeoutError:
            text = f"the body did not arrive within {MAX_SECONDS:g} s"
            await problems.respond(408, "BODY_TOO_SLOW", text, headers={"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _limit(path: str) -> int:
    return MAX_BYTES_OF_MANY if path.rstrip("/").endswith("/apply") else MAX_BYTES


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Count the bytes that arrive: a Content-Length may be missing or wrong. None: the client left before the end."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise Refused(problems.respond(413, "BODY_TOO_LARGE", f"the body is larger than {limit // 1024} KB"))
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _check(request: Request, body: bytes) -> None:
    _check_origin(request)
    for name, value in request.query_params.multi_items():
        if "\0" in value:
            reason = "give text without a NUL character, which cannot be stored"
            error = problems.FieldError(field=name[: problems.MAX_FIELD_LENGTH], reason=reason)
            raise Refused(problems.respond(422, "INVALID", f"{error.field}: {reason}", errors=[error]))
    if not body:
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # strict, because a page of another site can make a browser send text or a form to this address, but not JSON
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Refused(
            problems.respond(415, "NOT_JSON", "send the body as JSON, with the header Content-Type: application/json")
        )
    for reason in _violations(_parse(body)):
        raise Refused(problems.respond(422, "INVALID", reason))


def _check_origin(request: Request) -> None:
    """A page of another site can make a browser send a request without a body; the browser adds the origin."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise Refused(
            problems.respond(
                403,
                "OTHER_ORIGIN",
                "a page of another site may not change anything; send the request from the API's own address",
            )
        )


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except UnicodeDecodeError:
        raise Refused(problems.respond(400, "BAD_JSON", "the body is not JSON: it is not UTF-8 text")) from None
    except json.JSONDecodeError as exc:
        where = f"{exc.msg[:1].lower()}{exc.msg[1:]} at line {exc.lineno} column {exc.colno}"
        raise Refused(problems.respond(400, "BAD_JSON", f"the body is not JSON: {where}")) from None
    except RecursionError:
        raise Refused(problems.respond(422, "INVALID", _TOO_DEEP)) from None
    except ValueError:  # NaN and Infinity, and integers of thousands of digits, which Python refuses to parse
        raise Refused(problems.respond(422, "INVALID", _NOT_A_NUMBER)) from None


_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"
_NOT_A_NUMBER = "the body contains a number that cannot be stored (NaN, Infinity, or too large)"
_NOT_TEXT = "the body contains a text that cannot be stored (a NUL character or half of a surrogate pair)"


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; refused if a key occurs twice, because readers of JSON disagree which of them counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            text = f"the key '{key[:60]}' occurs twice in one object of the body; remove one of them"
            raise Refused(problems.respond(422, "INVALID", text))
        found[key] = value
    return found


def _violations(value: Any) -> Iterator[str]:
    """Why a parsed body cannot be stored; without recursion, because it may be nested deeply."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            yield _TOO_DEEP
        elif isinstance(item, dict):
            for key, inner in cast(dict[str, Any], item).items():
                pending += [(key, depth), (inner, depth + 1)]
        elif isinstance(item, list):
            pending += [(inner, depth + 1) for inner in cast(list[Any], item)]
        elif isinstance(item, float) and not math.isfinite(item):
            yield _NOT_A_NUMBER
        elif isinstance(item, str) and not _is_storable(item):
            yield _NOT_TEXT


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
