"""What the store remembers of a pipeline's reads."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.rows import DictRow

from vitrine.errors import CheckpointMoved, LeaseLost
from vitrine.flow import Position
from vitrine.model import Claim, Cursor, PipelineId
from vitrine.postgres import Connection
from vitrine.store import staging
from vitrine.store.database import execute, fetch_one, transaction


@dataclass(frozen=True)
class State:
    """What is remembered of a pipeline's reads."""

    position: Position
    cursor_fingerprint: str | None  # types of cursor and key; None before the first checkpoint
    generation: int
    generation_open: bool  # a full load is half built
    generation_cursor: Cursor | None
    generation_rows: int
    generation_fingerprint: str | None
    generation_horizon: str | None  # where a full load catches up from; None where it cannot
    batch_seq: int
    horizon_lag_seconds: float | None  # None: the checkpoint does not wait for transactions
    horizon_blocker: str | None
    updated_at: datetime | None

    @property
    def has_checkpoint(self) -> bool:
        return self.position.cursor is not None or self.position.pending_cursor is not None


BLANK = State(Position(), None, 0, False, None, 0, None, None, 0, None, None, None)


def load(connection: Connection, pipeline_id: PipelineId) -> State:
    row = fetch_one(connection, "get_state", id=pipeline_id)
    return _state(row) if row else BLANK


def reset(connection: Connection, pipeline_id: PipelineId) -> None:
    """The next run reads everything again."""
    execute(connection, "reset_state", id=pipeline_id)
    staging.drop_all(connection, pipeline_id)


def open_state(connection: Connection, claim: Claim) -> State:
    """The state a run starts from. LeaseLost if the pipeline is no longer ours."""
    with transaction(connection):
        return _state(_take_over(connection, claim, timedelta(0)))


def open_generation(
    connection: Connection,
    claim: Claim,
    fingerprint: str,
    max_staging_age: timedelta,
    horizon: str | None = None,
) -> State:
    """The full load to go on with: the half-built one while its query is the same and its staging young, or a new."""
    with transaction(connection):
        row = _take_over(connection, claim, max_staging_age)
        same = row["generation_open"] and row["generation_fingerprint"] == fingerprint and not row["generation_is_old"]
        if same and (row["generation_cursor"] is None or staging.exists(connection, claim, row["generation"])):
            return _state(row)
        staging.drop_all(connection, claim.pipeline_id)
        new = fetch_one(
            connection,
            "open_generation",
            id=claim.pipeline_id,
            fingerprint=fingerprint,
            horizon=horizon,
            batch_seq=row["batch_seq"],
        )
        if new is None:
            raise CheckpointMoved("the state was changed while the full load began")
        return _state(new)


def note_horizon(connection: Connection, claim: Claim, lag: timedelta | None, blocker: str | None) -> None:
    """Remember what held the checkpoint back in this run, for whoever watches."""
    seconds = None if lag is None else lag.total_seconds()
    execute(connection, "note_horizon", id=claim.pipeline_id, token=claim.token, lag=seconds, blocker=blocker)


def _take_over(connection: Connection, claim: Claim, max_staging_age: timedelta) -> DictRow:
    _hold(connection, claim)
    row = fetch_one(connection, "open_state", id=claim.pipeline_id, token=claim.token, max_staging_age=max_staging_age)
    if row is None:
        raise CheckpointMoved("the state vanished while the run began")
    return row


def _hold(connection: Connection, claim: Claim) -> None:
    if fetch_one(connection, "hold_lease", id=claim.pipeline_id, token=claim.token) is None:
        raise lost(claim)


def lost(claim: Claim) -> LeaseLost:
    return LeaseLost(f"pipeline '{claim.definition.name}' has been taken over; this run writes nothing more")


def _cursor(values: list[str] | None) -> Cursor | None:
    return tuple(values) if values is not None else None


def _state(row: DictRow) -> State:
    return State(
        position=Position(_cursor(row["cursor"]), _cursor(row["pending_cursor"]), row["pending_since"]),
        cursor_fingerprint=row["cursor_fingerprint"],
        generation=row["generation"],
        generation_open=row["generation_open"],
        generation_cursor=_cursor(row["generation_cursor"]),
        generation_rows=row["generation_rows"],
        generation_fingerprint=row["generation_fingerprint"],
        generation_horizon=row["generation_horizon"],
        batch_seq=row["batch_seq"],
        horizon_lag_seconds=row["horizon_lag_seconds"],
        horizon_blocker=row["horizon_blocker"],
        updated_at=row["updated_at"],
    )
