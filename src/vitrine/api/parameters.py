"""What several routes share: parameters, headers, links, and the body of a change."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

from fastapi import Depends, Header, Path, Query, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from vitrine.definition import connectors
from vitrine.definition.model import NAME, Definition, Options, StateChoice
from vitrine.errors import NotFound, TransitionRefused
from vitrine.operations.bodies.pipelines import PipelineBody


class _PartialDefinition(BaseModel):
    """Some fields of a pipeline; the others stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"batch_size": 10_000, "schedule_interval": "1h"}]}
    )

    state: StateChoice | None = Field(
        default=None,
        description="Keep or reset the checkpoint when the query, cursor, key or target changes.",
    )


def _optional(field: FieldInfo) -> Any:
    optional = copy(field)
    optional.default = None
    return (Optional[field.annotation], optional)  # noqa: UP045 – the annotation is a value here, not a type


if TYPE_CHECKING:

    class Change(_PartialDefinition): ...

else:
    # generated from Definition, so that a new field there is optional here
    Change = create_model(
        "Change",
        __base__=_PartialDefinition,
        __doc__=_PartialDefinition.__doc__,
        **{name: _optional(field) for name, field in Definition.model_fields.items() if name != "options"},
        # which of them belong to the pipeline is checked with the stored definition
        options=(Optional[connectors.every_option(Options)], None),  # noqa: UP045
    )


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


Responses = dict[int | str, dict[str, Any]]


def to_request(status: int = 202) -> Responses:
    """The request that a response names can be read."""
    return _links(status, get_request={"request_id": "$response.body#/request_id"})


def to_pipeline(status: int = 201) -> Responses:
    """What can be done next with a pipeline that was created."""
    operations = ("get_pipeline", "change_pipeline", "run_pipeline", "pause_pipeline", "get_status", "delete_pipeline")
    return _links(status, **{name: {"id": "$response.body#/id"} for name in operations})


def to_run(status: int = 200) -> Responses:
    """The newest run of a list can be read alone."""
    return _links(status, get_run={"id": "$request.path.id", "run_id": "$response.body#/items/0/id"})


def _links(status: int, **operations: dict[str, str]) -> Responses:
    links = {name: {"operationId": name, "parameters": parameters} for name, parameters in operations.items()}
    return {status: {"links": links}}
