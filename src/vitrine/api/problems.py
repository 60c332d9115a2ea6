"""Error responses: application/problem+json with a stable code and one sentence."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from vitrine import input_errors, token_text
from vitrine.input_errors import InputError
from vitrine.places import Place
from vitrine.service.bodies.pipelines import PlaceBody, printable

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
    return token_text.redact(re.sub(r"//[^@/\s]*@", "//", printable(text)))[:MAX_DETAIL_LENGTH]


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
