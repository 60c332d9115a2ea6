"""Claims of requested pipelines, within the limits of their sources."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.errors import ConfigError, NotFound
from vitrine.ids import PipelineId, RunId
from vitrine.model import Definition
from vitrine.pipeline import Claim, suspended_clock
from vitrine.postgres import Connection
from vitrine.requests import RETURNING, RequestKind, RunOptions
from vitrine.status import STEPS, Event, RunStatus, Status
from vitrine.store import leases, notifications
from vitrine.store.database import fetch_all, fetch_one, transaction
from vitrine.store.pipeline_rows import of_row

SCHEDULE = "schedule"
"""The trigger of a request that a due time has made."""

PROMISING = frozenset({None, RequestKind.RUN, RequestKind.FULL})
"""The kinds after which every change that was committed before the request is in the mart; None is an ordinary run."""

NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def claim_next(
    connection: Connection,
    *,
    runner: str,
    ttl: timedelta,
    only: PipelineId | None = None,
    runs_per_source: Mapping[str, int] = NO_LIMITS,
) -> Claim | None:
    """Claim one requested pipeline under a new token and insert its run; None if no pipeline is claimable.

    A pipeline whose source has as many runs as `runs_per_source` allows stays in the queue. A pipeline that was
    written to the table without validation, and is not valid, ends FAILED here, and the next one is claimed.
    """
    while True:
        before = suspended_clock()
        with transaction(connection):
            full_sources = _list_full_sources(connection, runs_per_source) if runs_per_source else []
            row = fetch_one(
                connection,
                "claim_next",
                runner=runner,
                ttl=ttl,
                only=only,
                full_sources=full_sources,
                steps=STEPS,
            )
            if row is None:
                return None
            try:
                return _open_run(connection, row, runner, before)
            except ConfigError as exc:
                _fail_invalid(connection, row, runner, str(exc))


def _list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources at their limit; other claims wait until the transaction ends before they count."""
    fetch_one(connection, "lock_source_limits")
    return list_full_sources(connection, runs_per_source)


def list_full_sources(connection: Connection, runs_per_source: Mapping[str, int]) -> list[str]:
    """Sources whose runs have all the connections that are allowed."""
    allowed = {"sources": list(runs_per_source), "runs": list(runs_per_source.values())}
    return [row["source"] for row in fetch_all(connection, "list_full_sources", **allowed)]


def is_source_full(connection: Connection, source: str, runs_per_source: Mapping[str, int]) -> bool:
    """Whether a run of this source would have to wait, because others have all the connections that are allowed."""
    if source not in runs_per_source:
        return False
    return bool(list_full_sources(connection, {source: runs_per_source[source]}))


def _open_run(connection: Connection, row: DictRow, runner: str, taken_at: float) -> Claim:
    pipeline = of_row(row)
    _refuse_unguarded_target(row, pipeline.definition)
    kind, options = _known_request(row)
    run_id, taken_over = _insert_run(connection, row, runner, pipeline.definition.model_dump(mode="json"))
    return Claim(
        pipeline_id=pipeline.id,
        definition=pipeline.definition,
        run_id=run_id,
        token=row["lease_token"],
        taken_at=taken_at,
        attempt=pipeline.attempt,
        options=options,
        config_version=pipeline.config_version,
        taken_over=taken_over,
        tag=row["tag"],
        kind=kind,
        request_id=row["request_id"],
        scheduled=row["requested_trigger"] == SCHEDULE and not _is_joined(row),
        postponed=row["postponed"],
    )


def _refuse_unguarded_target(row: DictRow, definition: Definition) -> None:
    """ConfigError if the row names another target than its last step: the index on targets does not know that one."""
    if row["target_table"] != definition.target_table:
        raise ConfigError(
            f"the stored target_table '{row['target_table']}' is not that of the last step,"
            f" '{definition.target_table}'; correct it through the API or `vitrine apply`"
        )


def _is_joined(row: DictRow) -> bool:
    """Whether a person has asked for the same while the request was waiting."""
    return row["promised_at"] is not None and row["promised_at"] >= row["requested_at"]


def _known_request(row: DictRow) -> tuple[RequestKind, RunOptions]:
    """What the claimed request asks for; ConfigError if only a newer release knows it."""
    kind, options = row["requested_kind"] or RequestKind.RUN, row["requested_options"]
    try:
        return RequestKind(kind), RunOptions(**options)
    except (ValueError, TypeError) as exc:
        named = " and ".join([f"kind '{kind}'", *(f"option '{name}'" for name in options)])
        raise ConfigError(f"this runner does not know a request of {named}; upgrade it, then request again") from exc


def _insert_run(connection: Connection, row: DictRow, runner: str, config: dict[str, Any]) -> tuple[RunId, bool]:
    """The id of the new run, and whether the run before it lost its lease."""
    inserted = fetch_one(
        connection,
        "insert_run",
        pipeline_id=row["id"],
        request_id=row["request_id"],
        promised_at=row["promise"] if row["requested_kind"] in PROMISING else None,
        attempt=row["attempt"],
        trigger=row["requested_trigger"] or "api",
        due_at=row["requested_due_at"],
        kind=row["mode"] if row["requested_kind"] in (None, RequestKind.RUN) else row["requested_kind"],
        config=Jsonb(config),
        runner=runner,
        token=row["lease_token"],
    )
    if inserted is None:
        raise NotFound("the store returned no id for the new run")
    return RunId(inserted["id"]), inserted["taken_over"]


def _fail_invalid(connection: Connection, row: DictRow, runner: str, text: str) -> None:
    run_id, _ = _insert_run(connection, row, runner, {})
    event = Event.RETURN_IDLE if row["requested_kind"] in RETURNING else Event.FAIL
    error = ("CONFIG", text) if event in leases.FAILURES else None
    leases.end_lease(connection, row["id"], row["lease_token"], event, error=error)
    leases.record_run_end(connection, run_id, RunStatus.FAILED, "CONFIG", text)
    if event is Event.FAIL:
        notifications.record_failure(connection, row["id"], code="CONFIG", run_id=run_id, status=Status.FAILED)
