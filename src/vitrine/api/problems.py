"""Problems: limits that a request must meet, and errors as application/problem+json with a stable code."""

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn, cast
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrine import input_errors
from vitrine.errors import Place
from vitrine.input_errors import InputError
from vitrine.operations.bodies.pipelines import PlaceBody, printable
from vitrine.text import redact

MEDIA_TYPE = "application/problem+json"

MAX_FIELDS = 50  # a body may have thousands of wrong fields
MAX_SENTENCES = 5
MAX_FIELD_LENGTH = 100
MAX_DETAIL_LENGTH = 4000


class FieldError(BaseModel):
    field: str
    reason: str


class Problem(BaseModel):
    """What went wrong, for a machine (`code`) and for a person (`detail`)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "code": "NOT_FOUND",
                    "detail": "there is no pipeline 'top_genre'",
                }
            ]
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] | None = Field(default=None, description="Validation errors: every field with its reason.")
    place: PlaceBody | None = Field(default=None, description="Errors about the query: the place in it.")


def respond(
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[FieldError] | None = None,
    place: Place | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=_safe(detail),
        errors=[FieldError(field=error.field, reason=_safe(error.reason)) for error in errors] if errors else None,
        place=None if place is None else PlaceBody.of(place),
    )
    return JSONResponse(problem.model_dump(exclude_none=True), status, headers, MEDIA_TYPE)


class Refused(Exception):
    """The request is refused with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


SENTENCES = {
    404: ("NO_ROUTE", "there is no route at this address; /docs lists all routes"),
    405: ("METHOD_NOT_ALLOWED", "this address does not support this method; /docs lists all routes"),
}


def respond_to_status(status: int, detail: str = "", *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to an error of HTTP itself."""
    code, sentence = SENTENCES.get(status, ("HTTP_ERROR", detail))
    return respond(status, code, sentence, headers=headers)


def respond_invalid(errors: Sequence[Mapping[str, Any]], body: Any) -> JSONResponse:
    """422 from FastAPI's errors; `body` is the type of the route's body, or None."""
    mistakes = _explain(errors[:MAX_FIELDS], body)
    sentences = [mistake.sentence for mistake in mistakes[:MAX_SENTENCES]]
    more = f"; and {len(errors) - MAX_SENTENCES} more" if len(errors) > MAX_SENTENCES else ""
    fields = [FieldError(field=mistake.field[:MAX_FIELD_LENGTH], reason=mistake.reason) for mistake in mistakes]
    return respond(422, "INVALID", "; ".join(sentences) + more, errors=fields)


def _explain(errors: Sequence[Mapping[str, Any]], body: Any) -> list[InputError]:
    """FastAPI puts the part of the request (body, query, path or header) in front of every location."""
    parts = [(error["loc"][0], {**error, "loc": error["loc"][1:]}) for error in errors]
    if any(part == "body" and not error["loc"] and error["type"] == "missing" for part, error in parts):
        return [InputError((), "a JSON body is required")]
    return [
        *input_errors.explain(error for part, error in parts if part != "body"),
        *input_errors.explain((error for part, error in parts if part == "body"), body),
    ]


def _safe(text: str) -> str:
    """Remove the user:password part of URLs, and access tokens."""
    return redact(re.sub(r"//[^@/\s]*@", "//", printable(text)))[:MAX_DETAIL_LENGTH]


class _Kind(NamedTuple):
    description: str
    code: str
    detail: str


_KINDS = {
    400: _Kind("The body is not JSON", "BAD_JSON", "the body is not JSON: expecting ',' delimiter at line 3 column 5"),
    401: _Kind(
        "The token is missing, not valid, expired or revoked",
        "UNAUTHENTICATED",
        "give a valid access token in the header Authorization: Bearer",
    ),
    403: _Kind(
        "The role of the token does not allow it",
        "FORBIDDEN",
        "this needs the role operator, and your token has viewer",
    ),
    404: _Kind(
        "There is no pipeline, run, request or token of that name", "NOT_FOUND", "there is no pipeline 'top_genre'"
    ),
    409: _Kind(
        "The status does not allow it, or the name or target is in use",
        "RUNNING",
        "pipeline 'top_genres' is RUNNING; pause it before you change source_query",
    ),
    412: _Kind(
        "The pipeline has been changed since it was read",
        "VERSION_CONFLICT",
        "pipeline 'top_genres' is at version 4, not 3; read it again",
    ),
    413: _Kind("The body is larger than 256 KB", "BODY_TOO_LARGE", "the body is larger than 256 KB"),
    415: _Kind(
        "The body is not sent as JSON",
        "NOT_JSON",
        "send the body as JSON, with the header Content-Type: application/json",
    ),
    422: _Kind(
        "The values are not valid; the reasons are in the response",
        "INVALID",
        "limit: give at most 200",
    ),
    429: _Kind(
        "Too many definitions are being checked; try again after the time in Retry-After",
        "TOO_MANY_CHECKS",
        "4 definitions are being checked already; try again in a moment",
    ),
    504: _Kind(
        "Source or target did not answer in time",
        "CHECK_TIMEOUT",
        "pipeline 'top_genres': source or target did not answer within 10 s",
    ),
    503: _Kind("The database is unavailable; try again", "DATABASE_DOWN", "the database does not respond; try again"),
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route, for its OpenAPI entry."""
    return {status: _documented(status, _KINDS[status]) for status in sorted({*statuses, 503})}


def documented_access() -> dict[str, Any]:
    """The refusals of every route that needs a token, as the OpenAPI document has them."""
    return {str(status): _problem_response(status) for status in (401, 403)}


def _problem_response(status: int) -> dict[str, Any]:
    example = _documented(status, _KINDS[status])
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {MEDIA_TYPE: {"schema": schema, **example["content"]["application/json"]}}
    return {"description": example["description"], "content": content}


def _documented(status: int, kind: _Kind) -> dict[str, Any]:
    title = HTTPStatus(status).phrase
    example = Problem(title=title, status=status, code=kind.code, detail=kind.detail).model_dump(exclude_none=True)
    return {"model": Problem, "description": kind.description, "content": {"application/json": {"example": example}}}


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
            await respond(408, "BODY_TOO_SLOW", text, headers={"Connection": "close"})(scope, receive, send)
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
            raise Refused(respond(413, "BODY_TOO_LARGE", f"the body is larger than {limit // 1024} KB"))
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
            error = FieldError(field=name[:MAX_FIELD_LENGTH], reason=reason)
            raise Refused(respond(422, "INVALID", f"{error.field}: {reason}", errors=[error]))
    if not body:
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # strict, because a page of another site can make a browser send text or a form to this address, but not JSON
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Refused(respond(415, "NOT_JSON", "send the body as JSON, with the header Content-Type: application/json"))
    for reason in _violations(_parse(body)):
        raise Refused(respond(422, "INVALID", reason))


def _check_origin(request: Request) -> None:
    """A page of another site can make a browser send a request without a body; the browser adds the origin."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise Refused(
            respond(
                403,
                "OTHER_ORIGIN",
                "a page of another site may not change anything; send the request from the API's own address",
            )
        )


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except UnicodeDecodeError:
        raise Refused(respond(400, "BAD_JSON", "the body is not JSON: it is not UTF-8 text")) from None
    except json.JSONDecodeError as exc:
        where = f"{exc.msg[:1].lower()}{exc.msg[1:]} at line {exc.lineno} column {exc.colno}"
        raise Refused(respond(400, "BAD_JSON", f"the body is not JSON: {where}")) from None
    except RecursionError:
        raise Refused(respond(422, "INVALID", _TOO_DEEP)) from None
    except ValueError:  # NaN and Infinity, and integers of thousands of digits, which Python refuses to parse
        raise Refused(respond(422, "INVALID", _NOT_A_NUMBER)) from None


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
            raise Refused(respond(422, "INVALID", text))
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
