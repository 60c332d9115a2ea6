"""The stored state of a pipeline's reads, and its published generations."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.core.rows import START, Cursor, Generation, KeptGeneration, Position, State
from vitrine.core.status import PipelineId, RequestId
from vitrine.definition.pipeline import Claim
from vitrine.errors import CheckpointMoved
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


def load_state(connection: Connection, pipeline_id: PipelineId) -> StoredState:
    row = fetch_one(connection, "get_state", id=pipeline_id)
    return of_row(row) if row else BLANK


def reset_state(connection: Connection, pipeline_id: PipelineId) -> None:
    """The next run reads everything again."""
    execute(connection, "reset_state", id=pipeline_id)


def rewind_state(connection: Connection, pipeline_id: PipelineId, value: str) -> None:
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


GENERATIONS_KEPT = 10
"""Generations that are remembered for a pipeline; a target usually keeps fewer."""


class Restorable(NamedTuple):
    """The live generation, and the one that was live before it; None: it is not known."""

    live: KeptGeneration | None = None
    previous: KeptGeneration | None = None
    restored_by: RequestId | None = None  # the request that made the live one visible again; None: a load did
    fresh_as_of: datetime | None = None  # of the live one when it was published or restored


def load_generation(connection: Connection, pipeline_id: PipelineId) -> Restorable:
    rows = {row["live"]: row for row in fetch_all(connection, "list_restorable", id=pipeline_id)}
    if True not in rows:
        return Restorable()
    live, previous = rows[True], rows.get(False)
    kept = _kept(previous) if previous else None
    return Restorable(_kept(live), kept, live["restored_by"], live["fresh_as_of"])


def record_generation(connection: Connection, claim: Claim, published: Generation, before: State, after: State) -> None:
    """In the transaction that publishes: the generation is live, and what was live keeps its state of before."""
    left = _leave(connection, claim, before)
    execute(
        connection,
        "insert_generation",
        id=claim.pipeline_id,
        generation=published.number,
        replaces=left,
        others=GENERATIONS_KEPT - 1,
        rows=published.rows,
        fingerprint=published.fingerprint,
        **_columns(after),
    )


def restore_generation(connection: Connection, claim: Claim, kept: KeptGeneration, before: State) -> None:
    """In the transaction that saves the rollback: the generation is live again, and as fresh as it was."""
    _leave(connection, claim, before)
    values = {"id": claim.pipeline_id, "generation": kept.number, "request_id": claim.request_id}
    if fetch_one(connection, "restore_generation", **values) is None:
        raise CheckpointMoved("the generation to restore was forgotten while it was restored")


def forget_generations(connection: Connection, pipeline_id: PipelineId) -> None:
    """None of the generations can be restored any more."""
    execute(connection, "forget_generations", id=pipeline_id)


def _leave(connection: Connection, claim: Claim, before: State) -> int | None:
    """The generation that was live; None if none was."""
    row = fetch_one(connection, "leave_generation", id=claim.pipeline_id, **_columns(before))
    return row["generation"] if row else None


def _columns(state: State) -> dict[str, Any]:
    position = state.position
    return {
        "cursor": _array(position.cursor),
        "pending_cursor": _array(position.pending_cursor),
        "pending_since": position.pending_since,
        "cursor_types": state.cursor_types,
        "identity": state.identity,
        "facts": Jsonb(state.facts),
    }


def _kept(row: DictRow) -> KeptGeneration:
    return KeptGeneration(
        number=row["generation"],
        rows=row["rows"],
        fingerprint=row["fingerprint"],
        position=Position(_cursor(row["cursor"]), _cursor(row["pending_cursor"]), row["pending_since"]),
        cursor_types=row["cursor_fingerprint"],
        identity=row["target_identity"],
        facts=row["sink_facts"],
    )


def _array(cursor: Cursor | None) -> list[str] | None:
    return list(cursor) if cursor is not None else None
