"""Routes for what pipelines can be made of: tables of a source, and registered Python tasks."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from vitrine.api.connections import Service
from vitrine.api.parameters import Limit
from vitrine.api.problems import documented
from vitrine.service import sources
from vitrine.service.bodies.sources import TablePage, TransformList

router = APIRouter(tags=["sources"])

NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f]*$"
"""PostgreSQL has no names with a zero character, and refuses the text."""


@router.get(
    "/sources/{name}/tables",
    summary="List the tables of a source",
    responses=documented(404, 422),
    response_model_by_alias=True,
)
def list_tables(
    service: Service,
    name: Annotated[str, Path(max_length=63, description="Name of a configured source.", examples=["default"])],
    limit: Limit = 100,
    after: Annotated[
        str,
        Query(
            max_length=127,
            pattern=NO_CONTROL_CHARACTERS,
            description="Start after this table: `next` of the previous page.",
        ),
    ] = "",
    schema: Annotated[
        str | None,
        Query(min_length=1, max_length=63, pattern=NO_CONTROL_CHARACTERS, description="Only tables of this schema."),
    ] = None,
    table: Annotated[
        str | None,
        Query(min_length=1, max_length=63, pattern=NO_CONTROL_CHARACTERS, description="Only tables of this name."),
    ] = None,
) -> TablePage:
    """Tables and views of the allowed schemas that the reader's account may read, with row estimate, key and columns
    that may serve as incremental_key."""
    return sources.tables(service, name, schema=schema, table=table, after=after, limit=limit)


@router.get("/transforms", summary="List the registered Python tasks", responses=documented())
def list_transforms(service: Service) -> TransformList:
    """Transforms of rows and of frames, and readers, with their options."""
    return sources.transforms(service)
