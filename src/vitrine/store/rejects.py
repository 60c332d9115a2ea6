"""The quarantine: rows that their target rejected."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import DictRow

from vitrine.flow import keys
from vitrine.flow.rows import Reject
from vitrine.ids import PipelineId
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one


def store_rejects(connection: Connection, claim: Claim, rejects: Sequence[Reject], healed: Sequence[str]) -> None:
    """Store rejected rows, the last one of each key, and close the rejects of keys that are written now."""
    if rejects:
        # one INSERT cannot update a row twice
        last = {reject.key: reject for reject in rejects}.values()
        stored = [
            {
                "key": reject.key,
                "column_name": reject.column,
                "code": reject.code,
                "reason": reject.reason,
                "row": reject.row,
            }
            for reject in last
        ]
        # one text instead of arrays: the driver takes longer to escape them than the server to store the rows
        execute(connection, "upsert_rejects", id=claim.pipeline_id, run_id=claim.run_id, rejects=json.dumps(stored))
    # a key that has both a row that was written and one that does not fit stays in quarantine
    if closed := {*healed}.difference(reject.key for reject in rejects):
        execute(connection, "close_rejects", id=claim.pipeline_id, keys=json.dumps(sorted(closed)))


class OpenReject(NamedTuple):
    """A row in quarantine."""

    id: int
    run_id: int
    key: str  # as a person reads it
    column: str | None  # None: the row as a whole breaks a rule
    code: str
    reason: str
    created_at: datetime
    row: dict[str, Any] | None  # None: it was not asked for


def list_page(
    connection: Connection, pipeline_id: PipelineId, *, after: int = 0, limit: int = 100, with_rows: bool = False
) -> list[OpenReject]:
    """One page of the quarantine, oldest first; the rows themselves only `with_rows`."""
    return [_open_reject(row) for row in _list(connection, pipeline_id, after, limit, with_rows=with_rows)]


def find(connection: Connection, pipeline_id: PipelineId, texts: Sequence[str]) -> OpenReject | None:
    """The reject of a key, which has one of these texts; None if it is not in quarantine."""
    row = fetch_one(connection, "get_reject", id=pipeline_id, keys=list(texts))
    return _open_reject(row) if row else None


def list_open(connection: Connection, pipeline_id: PipelineId, limit: int = 100) -> list[DictRow]:
    """Rows in quarantine, oldest first; keys as a person reads them."""
    rows = _list(connection, pipeline_id, 0, limit, with_rows=True)
    return [row | {"key": keys.readable(row["key"])} for row in rows]


def _list(connection: Connection, pipeline_id: PipelineId, after: int, limit: int, *, with_rows: bool) -> list[DictRow]:
    return fetch_all(connection, "list_rejects", id=pipeline_id, after=after, limit=limit, with_rows=with_rows)


def _open_reject(row: DictRow) -> OpenReject:
    return OpenReject(
        id=row["id"],
        run_id=row["run_id"],
        key=keys.readable(row["key"]),
        column=row["column_name"],
        code=row["code"],
        reason=row["reason"],
        created_at=row["created_at"],
        row=row["row"],
    )


def count_open(connection: Connection, pipeline_id: PipelineId) -> int:
    row = fetch_one(connection, "count_rejects", id=pipeline_id)
    return row["rows"] if row else 0
