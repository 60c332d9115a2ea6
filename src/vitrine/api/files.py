"""The route that applies pipelines from documents."""

from fastapi import APIRouter

from vitrine.api.connections import Service
from vitrine.api.problems import documented
from vitrine.service import files
from vitrine.service.bodies.files import AppliedBody, ApplyBody

router = APIRouter(tags=["pipelines"])


@router.post("/apply", summary="Apply many definitions", responses=documented(400, 413, 415, 422))
def apply_documents(service: Service, body: ApplyBody) -> AppliedBody:
    """Creates and changes the pipelines of the documents and deletes the named ones in one transaction: all of them, or
    none. One refusal (422, NOT_APPLIED) lists every mistake of every document with its place. `vitrine apply` uses
    it."""
    return files.apply(service, body)
