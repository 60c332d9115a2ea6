"""Parameters and headers that several routes share."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Path, Query, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from vitrine.errors import NotFound, TransitionRefused
from vitrine.model import NAME
from vitrine.revisions import StateChoice
from vitrine.service.bodies.pipelines import PipelineBody

PREFIX = "/api/v1"


async def _pipeline_key(
    key: Annotated[str, Path(alias="id", description="The pipeline's name, or its UUID.", examples=["top_genres"])],
) -> str:
    """A name or UUID; NotFound for anything else, so that no odd character reaches the store."""
    if re.fullmatch(NAME, key) or _is_uuid(key):
        return key
    raise NotFound("there is no pipeline of that name; a name has only lower-case letters, digits and _")


def _is_uuid(text: str) -> bool:
    return len(text) <= 36 and re.fullmatch(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}", text) is not None


async def _expected_version(
    if_match: Annotated[
        str | None,
        Header(
            description="ETag of the version you have read: 412 if the pipeline has changed since.", examples=['"1"']
        ),
    ] = None,
) -> int | None:
    """None: any version."""
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip().removeprefix("W/").strip('"')
    if not re.fullmatch(r"[0-9]{1,18}", tag):
        raise TransitionRefused('give If-Match one ETag from a response, such as "3"', code="VERSION_CONFLICT")
    return int(tag)


Key = Annotated[str, Depends(_pipeline_key)]
ExpectedVersion = Annotated[int | None, Depends(_expected_version)]
Validate = Annotated[
    bool,
    Query(
        description="Ask source and target first: 422 if no run could succeed. false: store the definition unasked, for"
        " example before its source table exists."
    ),
]
StateParameter = Annotated[
    StateChoice | None,
    Query(description="If the pipeline has a checkpoint: keep it, or reset it to read everything again."),
]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items on a page.")]


Stored = TypeVar("Stored", bound=PipelineBody)


def with_etag(pipeline: Stored, response: Response) -> Stored:
    response.headers["ETag"] = f'"{pipeline.config_version}"'
    return pipeline


@contextmanager
def body_errors() -> Generator[None]:
    """Report an invalid combination of new and stored fields like an invalid body."""
    try:
        yield
    except ValidationError as exc:
        errors = exc.errors(include_input=False, include_url=False)
        raise RequestValidationError([{**error, "loc": ("body", *error["loc"])} for error in errors]) from exc
