"""Links of the OpenAPI document: which operation continues with what a response contains."""

from typing import Any

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
