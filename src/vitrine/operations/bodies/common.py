"""What several bodies share: examples for the OpenAPI document, objects shown as they are, filters of lists."""

from collections.abc import Callable
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from vitrine.definition.model import Definition

ID = "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e"


REQUEST_ID = "0b9d9b0e-8a53-4c3b-8f0b-2f9f3a1c7d55"


DEFINITION_EXAMPLE: dict[str, Any] = {
    "name": "top_genres",
    "description": "Films per genre",
    "source_query": (
        "SELECT g.id, g.name, count(gf.film_work_id) AS films FROM content.genre g"
        " LEFT JOIN content.genre_film_work gf ON gf.genre_id = g.id GROUP BY g.id, g.name"
    ),
    "target_table": "analytics.top_genres",
    "key_columns": ["id"],
    "schedule_interval": "5m",
}


INCREMENTAL_EXAMPLE: dict[str, Any] = {
    "name": "film_dim",
    "source_query": "SELECT id, title, rating, modified FROM content.film_work",
    "target_table": "analytics.film_dim",
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}


STEPS_EXAMPLE: list[dict[str, Any]] = [
    {"order_index": 10, "task_type": "SQL", "body": "SELECT id, title, rating FROM content.film_work"},
    {
        "order_index": 20,
        "task_type": "PYTHON",
        "body": "map_fields",
        "options": {"trim": ["title"]},
    },
]


CHECK_EXAMPLE: dict[str, Any] = {
    "name": "not_null (name)",
    "type": "not_null",
    "severity": "warn",
    "passed": False,
    "rows": 2,
    "keys": ["5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e"],
    "text": "2 rows with NULL in 'name', for example 5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e",
}


RUN_EXAMPLE: dict[str, Any] = {
    "id": 42,
    "request_id": REQUEST_ID,
    "attempt": 1,
    "trigger": "api",
    "due_at": None,
    "kind": "full",
    "status": "SUCCESS",
    "started_at": "2025-01-01T12:00:00Z",
    "finished_at": "2025-01-01T12:00:01.5Z",
    "seconds": 1.5,
    "rows_read": 26,
    "rows_written": 26,
    "rows_deleted": 0,
    "rows_rejected": 0,
    "rows_repeated": 0,
    "batches": 1,
    "rows_expected": 26,
    "rows_per_second": 17.3,
    "lane": "copy",
    "slowest_batch_seconds": 0.02,
    "error_code": None,
    "error_message": None,
    "result": None,
    "checks": None,
    "runner": "worker-1",
}


NEWEST_RUN_EXAMPLE: dict[str, Any] = {
    name: RUN_EXAMPLE[name] for name in ("id", "kind", "status", "started_at", "finished_at", "seconds", "rows_read")
}


TIMES = {"created_at": "2025-01-01T11:00:00Z", "updated_at": "2025-01-01T12:00:00Z"}


FINDING_EXAMPLE: dict[str, Any] = {
    "code": "DELETES",
    "text": "rows that are deleted at the source stay in the mart: an incremental run reads only rows that exist",
    "column": None,
    "place": None,
    "note": True,
}


MANAGED_BY_EXAMPLE = {"file": "top_genres.yaml", "applied_at": "2025-01-01T11:00:00Z", "differs": False}


@cache
def pipeline_example() -> dict[str, Any]:
    """A function, because validating its definition takes longer than the import of all other examples."""
    return {
        "id": ID,
        "status": "IDLE",
        "config_version": 1,
        "fresh_as_of": "2025-01-01T12:00:00Z",
        "freshness_covers": "everything",
        "stale": False,
        "stale_at": "2025-01-01T12:10:00Z",
        "verified_until": "2025-01-01T11:30:00Z",
        "verdict": "equal",
        "verdict_at": "2025-01-01T11:30:05Z",
        "next_due_at": "2025-01-01T12:05:00Z",
        "postponed": 0,
        "last_error": None,
        "managed_by": MANAGED_BY_EXAMPLE,
        **Definition.model_validate(DEFINITION_EXAMPLE).model_dump(mode="json"),
        **TIMES,
    }


def example(value: dict[str, Any] | Callable[[], dict[str, Any]]) -> ConfigDict:
    """The configuration of a body with this example; a function is called when the OpenAPI document is built.

    The validator of the body is built on first use, because that takes most of an import.
    """
    if not callable(value):
        return ConfigDict(json_schema_extra={"examples": [value]}, defer_build=True)

    def add(schema: dict[str, Any]) -> None:
        schema["examples"] = [value()]

    return ConfigDict(json_schema_extra=add, defer_build=True)


class Mirror(BaseModel):
    """A body whose fields are attributes of what it shows, under the same names; further attributes are left out."""

    @classmethod
    def of(cls, shown: object) -> Self:
        return cls.model_validate(shown, from_attributes=True)
