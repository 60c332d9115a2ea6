"""The application: routes under both prefixes, and the table from errors to HTTP statuses."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from typing import Any, NamedTuple, cast

import psycopg
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from psycopg_pool import PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrine.api import access, checks, monitoring, pipelines, runs
from vitrine.api.access import Guard, TokenReader
from vitrine.api.connections import RequestWaiting, make_context, make_pool
from vitrine.api.parameters import PREFIX
from vitrine.api.permissions import PERMISSIONS
from vitrine.api.problems import (
    MEDIA_TYPE,
    FieldError,
    RequestLimits,
    documented_access,
    respond,
    respond_invalid,
    respond_to_status,
)
from vitrine.errors import (
    ConfigError,
    DataError,
    Forbidden,
    NotFound,
    TransientError,
    TransitionRefused,
    VitrineError,
    WorkRefused,
)
from vitrine.operations import history
from vitrine.operations.checks import CHECK_TIMEOUT
from vitrine.operations.context import TOO_MANY_CHECKS, Caller, Role
from vitrine.settings import Settings

log = logging.getLogger(__name__)


class TrailingSlash:
    """ASGI middleware: removes it before the route is chosen."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.endswith("/") and path != "/":
            scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)


docs_router = APIRouter()

PAGE = "docs.html"

_SWAGGER_UI = "fastapi_swagger.resources"
_OURS = "vitrine.api"
# Only these files are served. Their media types are given here, because `mimetypes` answers differently on each host.
_FILES = {
    PAGE: (_OURS, "text/html"),
    "docs.js": (_OURS, "text/javascript"),
    "swagger-ui-bundle.js": (_SWAGGER_UI, "text/javascript"),
    "swagger-ui.css": (_SWAGGER_UI, "text/css"),
    "favicon-32x32.png": (_SWAGGER_UI, "image/png"),
}

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        # Swagger UI sets inline styles through the DOM, which the policy permits; it needs no 'unsafe-inline'
        "style-src 'self'",
        # the icons in the stylesheet of Swagger UI are data: URLs
        "img-src 'self' data:",
        # the OpenAPI document, and the requests of "Try it out"
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        # another site could otherwise show the page in a frame and lead a click to "Execute"
        "frame-ancestors 'none'",
    )
)


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


@docs_router.get("/docs")
def show_page(request: Request) -> Response:
    return _respond(request, PAGE)


@docs_router.get("/docs/{name}")
def get_file(request: Request, name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404)
    return _respond(request, name)


def _respond(request: Request, name: str) -> Response:
    file = _read(name)
    headers = {
        # the browser caches the file but revalidates it each time, so that an upgrade takes effect at once
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _POLICY,
        "ETag": file.etag,
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


@cache
def _read(name: str) -> _File:
    package, media_type = _FILES[name]
    content = files(package).joinpath(name).read_bytes()
    return _File(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')


DESCRIPTION = """Configuration-driven ETL for analytical marts. A pipeline defines what to read and where to write. The
API stores pipelines and requests; a runner executes the runs.

Errors are `application/problem+json` with a stable `code` and a `detail`. Every route is also available without the
prefix `/api/v1`."""
TAGS = [
    {"name": "pipelines", "description": "Definition, control and state of pipelines"},
    {"name": "checks", "description": "Validation, preview, comparison with the source, traces, and rejects"},
    {"name": "runs", "description": "History of runs, and the requests that caused them"},
    {"name": "sources", "description": "What pipelines can be made of: tables and registered Python tasks"},
    {"name": "access", "description": "Access tokens, and the audit log"},
    {"name": "health", "description": "Checks for load balancers and process supervisors"},
]
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An access token. While there is none, the API serves this machine only, and needs none.",
    }
}

ROUTERS = (
    pipelines.router,
    runs.state_router,
    checks.file_router,
    checks.router,
    checks.trace_router,
    checks.plan_router,
    runs.router,
    checks.source_router,
    access.router,
    monitoring.health_router,
)
"""The groups of routes that answer under the prefix and without it."""

RETRY = {"Retry-After": "2"}

# The only table from errors to HTTP statuses. The code takes precedence over the group.
STATUS_OF_CODE = {
    "NAME_TAKEN": 409,
    "TARGET_TAKEN": 409,
    "ID_TAKEN": 409,
    "DEFINITION_INVALID": 409,
    "VERSION_CONFLICT": 412,
    TOO_MANY_CHECKS: 429,
    CHECK_TIMEOUT: 504,
}
STATUS_OF_GROUP: dict[type[VitrineError], int] = {
    ConfigError: 422,
    DataError: 422,  # in the API this is always a value of the request that the store cannot hold
    Forbidden: 403,
    NotFound: 404,
    TransitionRefused: 409,
    TransientError: 503,
}
UNEXPECTED = "an unexpected error happened; see the log of the API"


class Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with our problem responses instead of its own, and with the security scheme."""
        if not self.openapi_schema:
            schema = super().openapi()
            for operation in _operations(schema):
                _document_problems(operation["responses"])
                for parameter in operation.get("parameters", ()):
                    _document_absence(parameter["schema"])
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            schema["components"]["securitySchemes"] = SECURITY_SCHEMES
            _document_access(schema)
        return super().openapi() | {"security": self._security()}

    def _security(self) -> list[dict[str, list[str]]]:
        """The empty requirement makes the token optional: while none has been created."""
        required: list[dict[str, list[str]]] = [{name: [] for name in SECURITY_SCHEMES}]
        known = cast(TokenReader, self.state.tokens).last
        return required if known and known.exist else [{}, *required]


def _operations(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in schema["paths"].values() for operation in path.values()]


def _document_absence(parameter: dict[str, Any]) -> None:
    """Outside a body there is no null: a parameter is absent, or it has a value."""
    present = [one for one in parameter.get("anyOf", ()) if one.get("type") != "null"]
    if len(present) == 1:
        del parameter["anyOf"]
        parameter.update(present[0])


def _document_access(schema: dict[str, Any]) -> None:
    """The role of each operation, and the refusals of those that need one."""
    for permission in PERMISSIONS:
        operation = schema["paths"].get(permission.path, {}).get(permission.method.lower())
        if operation is None:
            continue
        if permission.role is None:
            operation["security"] = []
            continue
        operation["description"] = f"{operation['description']}\n\nRole: {permission.role}."
        operation["responses"] = dict(sorted((operation["responses"] | documented_access()).items()))


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
    tokens = TokenReader(pool)
    itself = make_context(settings, pool, Caller("api", "vitrine", Role.VIEWER))
    waiting = RequestWaiting(partial(history.open_requests, itself))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        pool.open(wait=False)
        tokens.prepare()
        try:
            yield
        finally:
            waiting.close()
            pool.end()

    app = Api(
        title="Vitrine",
        version=_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        routes=list(_routes()),
        redirect_slashes=False,  # a client would lose its body, or its method
    )
    app.state.settings = settings
    app.state.pool = pool
    app.state.tokens = tokens
    app.state.waiting = waiting
    app.add_middleware(RequestLimits)
    # the last one that is added is the first that a request passes
    app.add_middleware(Guard, settings=settings, tokens=tokens, on_error=_respond_to_error)
    app.add_middleware(TrailingSlash)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """The same for every application of a process: with its first request FastAPI analyses each route again."""
    router = APIRouter(generate_unique_id_function=lambda route: route.name)
    for part in ROUTERS:
        router.include_router(part, prefix=PREFIX)
        router.include_router(part, include_in_schema=False)
    router.add_api_route("/", _to_docs, include_in_schema=False)
    router.include_router(docs_router, include_in_schema=False)
    router.include_router(monitoring.metrics_router)
    return tuple(router.routes)


def _to_docs() -> RedirectResponse:
    return RedirectResponse("/docs")


def _version() -> str:
    try:
        return metadata.version("vitrine-etl")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"


def _respond_to_error(exc: Exception) -> Response:
    return _refuse(exc) if isinstance(exc, VitrineError) else _database_down(exc)


async def _on_vitrine_error(_: Request, exc: VitrineError) -> Response:
    return _refuse(exc)


def _refuse(exc: VitrineError) -> Response:
    status = _status_of(exc)
    if status == 500:
        return _unexpected(exc)
    remedy = ". To store it anyway, add ?validate=false" if isinstance(exc, WorkRefused) else ""
    headers = RETRY if status in (429, 503) else None
    errors = [FieldError(field=field, reason=text) for field, text in getattr(exc, "reasons", ())]
    return respond(status, exc.code, f"{exc}{remedy}", errors=errors, place=exc.place, headers=headers)


def _status_of(exc: VitrineError) -> int:
    if exc.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[exc.code]
    # the store is not migrated or the account lacks a privilege: no change of the request helps
    if isinstance(exc, ConfigError) and isinstance(exc.__cause__, psycopg.Error):
        return 503
    return next((status for group, status in STATUS_OF_GROUP.items() if isinstance(exc, group)), 500)


async def _on_database_down(_: Request, exc: psycopg.OperationalError) -> Response:
    return _database_down(exc)


def _database_down(exc: Exception) -> Response:
    if isinstance(exc, PoolTimeout):
        return respond(503, "DATABASE_BUSY", "the database does not respond in time; try again", headers=RETRY)
    return respond(503, "DATABASE_DOWN", "the database does not respond; try again", headers=RETRY)


async def _on_invalid_request(request: Request, exc: RequestValidationError) -> Response:
    body = getattr(request.scope.get("route"), "body_field", None)
    return respond_invalid(exc.errors(), None if body is None else body.field_info.annotation)


async def _on_http_error(_: Request, exc: HTTPException) -> Response:
    return respond_to_status(exc.status_code, str(exc.detail), headers=exc.headers)


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
