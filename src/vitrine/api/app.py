"""The application: routes under both prefixes, and the table from errors to HTTP statuses."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from psycopg_pool import PoolTimeout
from starlette.exceptions import HTTPException

from vitrine.api import docs, health, metrics, pipelines, runs
from vitrine.api.connections import make_pool
from vitrine.api.problems import MEDIA_TYPE, respond, respond_invalid
from vitrine.api.request_limits import RequestLimits
from vitrine.errors import ConfigError, DataError, NotFound, TransientError, TransitionRefused, VitrineError
from vitrine.settings import Settings

log = logging.getLogger(__name__)

DESCRIPTION = """Configuration-driven ETL for analytical marts. A pipeline defines what to read and where to write. The
API stores pipelines and requests; a runner executes the runs.

Errors are `application/problem+json` with a stable `code` and a `detail`. Every route is also available without the
prefix `/api/v1`."""
TAGS = [
    {"name": "pipelines", "description": "Definition, control and state of pipelines"},
    {"name": "runs", "description": "History of runs, and the requests that caused them"},
    {"name": "health", "description": "Checks for load balancers and process supervisors"},
]
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "Tokens are not required yet: the API ignores the token and listens on a loopback address only.",
    }
}

RETRY = {"Retry-After": "2"}

# The only table from errors to HTTP statuses. The code takes precedence over the group.
STATUS_OF_CODE = {"NAME_TAKEN": 409, "TARGET_TAKEN": 409, "ID_TAKEN": 409, "VERSION_CONFLICT": 412}
STATUS_OF_GROUP: dict[type[VitrineError], int] = {
    ConfigError: 422,
    DataError: 422,  # in the API this is always a value of the request that the store cannot hold
    NotFound: 404,
    TransitionRefused: 409,
    TransientError: 503,
}
SENTENCES = {
    404: ("NO_ROUTE", "there is no route at this address; /docs lists all routes"),
    405: ("METHOD_NOT_ALLOWED", "this address does not support this method; /docs lists all routes"),
}
UNEXPECTED = "an unexpected error happened; see the log of the API"


class Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with our problem responses instead of its own, and with the security scheme."""
        if not self.openapi_schema:
            schema = super().openapi()
            for responses in _responses(schema):
                _document_problems(responses)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            schema["components"]["securitySchemes"] = SECURITY_SCHEMES
            # the empty requirement makes the token optional
            schema["security"] = [{}, {name: [] for name in SECURITY_SCHEMES}]
        return super().openapi()


def _responses(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation["responses"] for path in schema["paths"].values() for operation in path.values()]


def _document_problems(responses: dict[str, Any]) -> None:
    for status, response in list(responses.items()):
        content = response.get("content", {})
        model = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        if model.endswith("/Problem"):
            content[MEDIA_TYPE] = content.pop("application/json")
        elif model.endswith("/HTTPValidationError"):  # added to every route with a parameter; ours give 404 for any id
            del responses[status]


def create_app(settings: Settings) -> FastAPI:
    """The API on the configured store; it starts without the database, and /health then reports 503."""
    pool = make_pool(settings.store_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        pool.open(wait=False)
        try:
            yield
        finally:
            pool.close()

    app = Api(
        title="Vitrine",
        version=_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.pool = pool
    app.add_middleware(RequestLimits)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    for part in (pipelines, runs, health):
        app.include_router(part.router, prefix=pipelines.PREFIX)
        app.include_router(part.router, include_in_schema=False)
    app.add_api_route("/", _to_docs, include_in_schema=False)
    app.include_router(docs.router, include_in_schema=False)
    app.include_router(metrics.router)
    return app


def _to_docs() -> RedirectResponse:
    return RedirectResponse("/docs")


def _version() -> str:
    try:
        return metadata.version("vitrine-etl")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"


async def _on_vitrine_error(_: Request, exc: VitrineError) -> Response:
    status = _status_of(exc)
    if status == 500:
        return _unexpected(exc)
    return respond(status, exc.code, str(exc), place=exc.place, headers=RETRY if status == 503 else None)


def _status_of(exc: VitrineError) -> int:
    if exc.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[exc.code]
    # the store is not migrated or the account lacks a privilege: no change of the request helps
    if isinstance(exc, ConfigError) and isinstance(exc.__cause__, psycopg.Error):
        return 503
    return next((status for group, status in STATUS_OF_GROUP.items() if isinstance(exc, group)), 500)


async def _on_database_down(_: Request, exc: psycopg.OperationalError) -> Response:
    if isinstance(exc, PoolTimeout):
        return respond(503, "DATABASE_BUSY", "the database does not respond in time; try again", headers=RETRY)
    return respond(503, "DATABASE_DOWN", "the database does not respond; try again", headers=RETRY)


async def _on_invalid_request(request: Request, exc: RequestValidationError) -> Response:
    body = getattr(request.scope.get("route"), "body_field", None)
    return respond_invalid(exc.errors(), None if body is None else body.field_info.annotation)


async def _on_http_error(_: Request, exc: HTTPException) -> Response:
    code, detail = SENTENCES.get(exc.status_code, ("HTTP_ERROR", str(exc.detail)))
    return respond(exc.status_code, code, detail, headers=exc.headers)


async def _on_anything_else(_: Request, exc: Exception) -> Response:
    return _unexpected(exc)


def _unexpected(exc: Exception) -> Response:
    log.error("request failed", exc_info=exc, extra={"action": "request_failed"})
    return respond(500, "UNEXPECTED", UNEXPECTED)


_HANDLERS: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
    VitrineError: _on_vitrine_error,
    psycopg.OperationalError: _on_database_down,
    RequestValidationError: _on_invalid_request,
    HTTPException: _on_http_error,
    Exception: _on_anything_else,
}
