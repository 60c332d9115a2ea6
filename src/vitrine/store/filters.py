"""Selects pipelines by filters, one page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from vitrine.core import schedule
from vitrine.core.status import PipelineId, RunId, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.store import pipelines
from vitrine.store.database import fetch_all
from vitrine.store.pipelines import Invalid


@dataclass(frozen=True)
class Selection:
    """Conditions that all must hold; None or empty: any."""

    statuses: Sequence[Status] = ()
    target: str | None = None  # with * at the end: targets that begin with the text before it
    enabled: bool | None = None
    stale: bool | None = None
    failed: bool | None = None
    error: str | None = None
    tag: str | None = None
    owner: str | None = None
    search: str | None = None  # in the name, the target, the description or the owner


EVERY = Selection()


@dataclass(frozen=True)
class NewestRun:
    """What a list shows of the newest run of a pipeline."""

    id: RunId
    kind: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None  # None: it is active
    rows_read: int


@dataclass(frozen=True)
class Listed:
    pipeline: Pipeline
    newest_run: NewestRun | None

    @property
    def name(self) -> str:
        return self.pipeline.name


def list_pipelines(
    connection: Connection, zone: tzinfo, selection: Selection = EVERY, *, after: str = "", limit: int = 200
) -> list[Listed | Invalid]:
    """Selected pipelines in the order of their names, after the given name. `zone`: time zone for cron schedules."""
    values = _values(connection, zone, selection)
    return [_listed(row) for row in fetch_all(connection, "list_selected", **values, after=after, limit=limit)]


def list_pipeline_names(
    connection: Connection, zone: tzinfo, selection: Selection, *, after: str = "", limit: int
) -> list[tuple[PipelineId, str]]:
    """The ids and names of selected pipelines in the order of their names, after the given name."""
    values = _values(connection, zone, selection)
    rows = fetch_all(connection, "select_pipelines", **values, after=after, limit=limit)
    return [(PipelineId(row["id"]), row["name"]) for row in rows]


def _values(connection: Connection, zone: tzinfo, selection: Selection) -> dict[str, Any]:
    prefix = selection.target[:-1] if selection.target and selection.target.endswith("*") else None
    return {
        "statuses": list(selection.statuses) or None,
        "target": selection.target if prefix is None else None,
        "target_prefix": prefix,
        "enabled": selection.enabled,
        "stale": selection.stale,
        "stale_crons": [] if selection.stale is None else list_stale_crons(connection, zone),
        "failed": selection.failed,
        "error": selection.error,
        "tag": selection.tag,
        "owner": selection.owner,
        "search": selection.search.lower() if selection.search else None,
    }


def list_stale_crons(connection: Connection, zone: tzinfo) -> list[UUID]:
    """The pipelines whose mart is older than their cron line allows."""
    return [row["id"] for row in fetch_all(connection, "list_crons") if _is_stale(row, zone)]


def _is_stale(row: DictRow, zone: tzinfo) -> bool:
    try:
        return row["now"] > schedule.parse(row["schedule_interval"]).stale_at(row["fresh_as_of"], zone=zone)
    except ValueError:
        return False  # written to the table without validation: it is never due


def _listed(row: DictRow) -> Listed | Invalid:
    pipeline = pipelines.read_row(row)
    if isinstance(pipeline, Invalid):
        return pipeline
    newest = (
        NewestRun(
            RunId(row["run_id"]),
            row["run_kind"],
            RunStatus(row["run_status"]),
            row["run_started_at"],
            row["run_finished_at"],
            row["run_rows_read"],
        )
        if row["run_id"] is not None
        else None
    )
    return Listed(pipeline, newest)
