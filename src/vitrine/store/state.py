"""The stored state of a pipeline's reads."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from psycopg.rows import DictRow

from vitrine.flow.rows import START, Position
from vitrine.ids import Cursor, PipelineId
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one


class StoredState(NamedTuple):
    """One row of etl_state."""

    position: Position
    cursor_types: str | None  # of the position; None before the first checkpoint
    generation: int  # number of the latest load
    generation_open: bool  # a load is under construction
    generation_cursor: Cursor | None
    generation_position: Cursor | None
    generation_rows: int
    generation_fingerprint: str | None
    generation_bound: str | None  # where the catch-up of a full load starts; None: no catch-up
    batch_seq: int
    identity: str | None  # of the target
    facts: dict[str, Any]  # of the sink
    horizon_lag_seconds: float | None  # None: the checkpoint does not wait for transactions
    horizon_blocker: str | None
    updated_at: datetime | None

    @property
    def has_checkpoint(self) -> bool:
        return not self.position.is_start


BLANK = StoredState(START, None, 0, False, None, None, 0, None, None, 0, None, {}, None, None, None)


def load(connection: Connection, pipeline_id: PipelineId) -> StoredState:
    row = fetch_one(connection, "get_state", id=pipeline_id)
    return of_row(row) if row else BLANK


def reset(connection: Connection, pipeline_id: PipelineId) -> None:
    """The next run reads everything again."""
    execute(connection, "reset_state", id=pipeline_id)


def rewind(connection: Connection, pipeline_id: PipelineId, value: str) -> None:
    """The next run reads again from this value of the cursor column on."""
    execute(connection, "rewind_state", id=pipeline_id, cursor=[value])


class CursorValue(NamedTuple):
    text: str  # as a source reads it
    is_earlier: bool  # than the present checkpoint, or equal to it


def parse_cursor(connection: Connection, type_name: str, value: str, current: str) -> CursorValue | None:
    """A value of a cursor column beside the present one; None for a type that is not known here.

    DataError if it is not a value of the type. The transaction continues with times in UTC.
    """
    execute(connection, "use_utc")
    row = fetch_one(connection, "parse_cursor", type=type_name, value=value, current=current)
    return CursorValue(row["text"], row["is_earlier"]) if row and row["text"] is not None else None


def note_watermark(connection: Connection, claim: Claim, lag: timedelta | None, blocker: str | None) -> None:
    """Record what holds the checkpoint back in this run, for status and metrics."""
    seconds = None if lag is None else lag.total_seconds()
    execute(connection, "note_horizon", id=claim.pipeline_id, token=claim.token, lag=seconds, blocker=blocker)


def are_deletes_due(connection: Connection, pipeline_id: PipelineId, interval: timedelta) -> bool:
    """Whether the last comparison of keys is older than the interval, or there was none."""
    row = fetch_one(connection, "are_deletes_due", id=pipeline_id, interval=interval)
    return row is None or row["due"]  # without a row, no run has begun yet


def note_deletes_checked(connection: Connection, claim: Claim) -> None:
    """Record that the keys of both sides were compared now."""
    execute(connection, "note_deletes_checked", id=claim.pipeline_id, token=claim.token)


def known_generations(connection: Connection) -> frozenset[tuple[PipelineId, int]]:
    """Every load under construction, and every generation that a rollback can restore."""
    rows = fetch_all(connection, "list_known_generations")
    return frozenset((PipelineId(row["pipeline_id"]), row["generation"]) for row in rows)


def of_row(row: DictRow) -> StoredState:
    return StoredState(
        position=Position(_cursor(row["cursor"]), _cursor(row["pending_cursor"]), row["pending_since"]),
        cursor_types=row["cursor_fingerprint"],
        generation=row["generation"],
        generation_open=row["generation_open"],
        generation_cursor=_cursor(row["generation_cursor"]),
        generation_position=_cursor(row["generation_position"]),
        generation_rows=row["generation_rows"],
        generation_fingerprint=row["generation_fingerprint"],
        generation_bound=row["generation_horizon"],
        batch_seq=row["batch_seq"],
        identity=row["target_identity"],
        facts=row["sink_facts"],
        horizon_lag_seconds=row["horizon_lag_seconds"],
        horizon_blocker=row["horizon_blocker"],
        updated_at=row["updated_at"],
    )


def _cursor(values: Sequence[str] | None) -> Cursor | None:
    return tuple(values) if values is not None else None
