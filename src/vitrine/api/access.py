"""Routes for access: who the caller is, tokens, the audit log."""

from datetime import UTC, datetime
from typing import Annotated, cast

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from vitrine.api.connections import Service
from vitrine.api.parameters import Limit
from vitrine.api.problems import documented
from vitrine.api.tokens import TokenReader
from vitrine.service import access, audit
from vitrine.service.bodies.access import TOKEN_NAME, CreatedToken, NewToken, TokenPage, WhoAmI
from vitrine.service.bodies.audit import AuditPage
from vitrine.store.audit import NEWEST, AuditFilters

router = APIRouter(tags=["access"])

MAX_TEXT = 200


@router.get("/whoami", summary="Show the caller")
def who_am_i(service: Service) -> WhoAmI:
    """The name and the role of the token that the request was sent with, and the address that the API sees."""
    return access.who_am_i(service)


@router.get("/tokens", summary="List the access tokens", responses=documented(422))
def list_tokens(
    service: Service,
    limit: Limit = 50,
    after: Annotated[
        str,
        Query(pattern="^[a-z0-9_.-]*$", max_length=63, description="Start after this name: `next` of the last page."),
    ] = "",
) -> TokenPage:
    """Tokens that are not revoked, sorted by name. Their texts are not stored; the audit log has the revoked ones."""
    return access.list_tokens(service, after=after, limit=limit)


@router.post(
    "/tokens", status_code=201, summary="Create an access token", responses=documented(400, 409, 413, 415, 422)
)
def create_token(service: Service, request: Request, response: Response, new: NewToken) -> CreatedToken:
    """The answer shows the token once. From the first token on, every request needs one."""
    created = access.create_token(service, new)
    _read_again(request)
    response.headers["Cache-Control"] = "no-store"
    return created


@router.delete("/tokens/{name}", status_code=204, summary="Revoke an access token", responses=documented(404, 422))
def revoke_token(
    service: Service, request: Request, name: Annotated[str, Path(pattern=TOKEN_NAME, examples=["airflow"])]
) -> None:
    """The token loses its rights within five seconds, at every API process."""
    access.revoke_token(service, name)
    _read_again(request)


@router.get("/audit", summary="Read the audit log", responses=documented(422))
def list_audit(
    service: Service,
    limit: Limit = 50,
    before: Annotated[
        int | None, Query(ge=1, le=NEWEST, description="Only entries older than this id: `next` of the last page.")
    ] = None,
    pipeline: Annotated[str | None, Query(max_length=MAX_TEXT, description="Only changes of this pipeline.")] = None,
    actor: Annotated[str | None, Query(max_length=MAX_TEXT, description="Only changes by this token or user.")] = None,
    operation: Annotated[
        str | None, Query(max_length=MAX_TEXT, description="Only this operation, for example pipelines.change.")
    ] = None,
    since: Annotated[
        datetime | None, Query(description="Only changes since this time; without an offset it is UTC.")
    ] = None,
) -> AuditPage:
    """Every change, newest first: who asked for it, from where, and what it was before and after."""
    start = since.replace(tzinfo=UTC) if since and since.tzinfo is None else since
    filters = AuditFilters(pipeline=pipeline, actor=actor, operation=operation, since=start)
    return audit.list_page(service, filters, before=before, limit=limit)


def _read_again(request: Request) -> None:
    cast(TokenReader, request.app.state.tokens).forget()
