"""The page at /docs: Swagger UI, served from an installed package and from no other host."""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

router = APIRouter()

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


@router.get("/docs")
def show_page(request: Request) -> Response:
    return _respond(request, PAGE)


@router.get("/docs/{name}")
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
