"""Published generations: which one is live, and the state of the reads that belongs to each."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.errors import CheckpointMoved
from vitrine.flow.rows import Generation, KeptGeneration, Position, State
from vitrine.ids import Cursor, PipelineId, RequestId
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one

KEPT = 10
"""Generations that are remembered for a pipeline; a target usually keeps fewer."""


class Restorable(NamedTuple):
    """The live generation, and the one that was live before it; None: it is not known."""

    live: KeptGeneration | None = None
    previous: KeptGeneration | None = None
    restored_by: RequestId | None = None  # the request that made the live one visible again; None: a load did
    fresh_as_of: datetime | None = None  # of the live one when it was published or restored


def load(connection: Connection, pipeline_id: PipelineId) -> Restorable:
    rows = {row["live"]: row for row in fetch_all(connection, "list_restorable", id=pipeline_id)}
    if True not in rows:
        return Restorable()
    live, previous = rows[True], rows.get(False)
    kept = _kept(previous) if previous else None
    return Restorable(_kept(live), kept, live["restored_by"], live["fresh_as_of"])


def record(connection: Connection, claim: Claim, published: Generation, before: State, after: State) -> None:
    """In the transaction that publishes: the generation is live, and what was live keeps its state of before."""
    left = _leave(connection, claim, before)
    execute(
        connection,
        "insert_generation",
        id=claim.pipeline_id,
        generation=published.number,
        replaces=left,
        others=KEPT - 1,
        rows=published.rows,
        fingerprint=published.fingerprint,
        **_columns(after),
    )


def restore(connection: Connection, claim: Claim, kept: KeptGeneration, before: State) -> None:
    """In the transaction that saves the rollback: the generation is live again, and as fresh as it was."""
    _leave(connection, claim, before)
    values = {"id": claim.pipeline_id, "generation": kept.number, "request_id": claim.request_id}
    if fetch_one(connection, "restore_generation", **values) is None:
        raise CheckpointMoved("the generation to restore was forgotten while it was restored")


def forget(connection: Connection, pipeline_id: PipelineId) -> None:
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


def _cursor(values: Sequence[str] | None) -> Cursor | None:
    return tuple(values) if values is not None else None
