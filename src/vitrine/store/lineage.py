"""What pipelines read from and write to; every query reads a limited number of rows."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from decimal import Decimal
from typing import NamedTuple

from vitrine.ids import PipelineId
from vitrine.postgres import Connection
from vitrine.status import Status
from vitrine.store import selecting
from vitrine.store.database import fetch_all, fetch_one


class Ends(NamedTuple):
    """A pipeline without its query: where it reads and writes."""

    id: PipelineId
    name: str
    config_version: int
    created_at: datetime
    source: str
    target_table: str
    enabled: bool


class Unusual(NamedTuple):
    """The state of a pipeline that is not idle, or whose mart is late."""

    name: str
    enabled: bool
    status: Status
    stale: bool


class Reading(NamedTuple):
    """How a pipeline reads: one of them is set, unless the definition is not valid."""

    id: PipelineId
    config_version: int
    query: str | None
    reader: str | None


def get_version(connection: Connection, *, limit: int) -> tuple[int, Decimal | None]:
    """Another one after every change of what `list_ends` or `list_readings` return."""
    row = fetch_one(connection, "get_lineage_version", limit=limit)
    assert row is not None  # noqa: S101  an aggregate has one row
    return row["pipelines"], row["hash"]


def list_ends(connection: Connection, *, limit: int) -> list[Ends]:
    """Pipelines in the order of their names."""
    return [Ends(**row) for row in fetch_all(connection, "list_lineage", limit=limit)]


def list_unusual(connection: Connection, zone: tzinfo, *, limit: int) -> list[Unusual]:
    """All others are idle and in time. `zone`: time zone for cron schedules."""
    crons = selecting.list_stale_crons(connection, zone)
    rows = fetch_all(connection, "list_lineage_states", stale_crons=crons, limit=limit)
    return [Unusual(row["name"], row["enabled"], Status(row["status"]), row["stale"]) for row in rows]


def list_readings(connection: Connection, ids: Sequence[PipelineId]) -> list[Reading]:
    return [
        _reading(row["id"], row["config_version"], row["task_type"], row["body"], row["source_table"])
        if row["task_type"]
        else Reading(
            row["id"], row["config_version"], row["source_query"], None if row["source_query"] else row["python_task"]
        )
        for row in fetch_all(connection, "list_reading_steps", ids=list(ids))
    ]


def _reading(id: PipelineId, version: int, task_type: str, body: str | None, source_table: str | None) -> Reading:
    if task_type == "PYTHON":
        return Reading(id, version, None, body)
    # parsed, never executed
    return Reading(id, version, body or (f"SELECT * FROM {source_table}" if source_table else None), None)  # noqa: S608
