"""The quarantine: rows that did not fit their mart."""

from collections.abc import Sequence
from dataclasses import asdict

from psycopg.rows import DictRow

from vitrine.flow import Reject
from vitrine.model import Claim, PipelineId
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all


def put_aside(connection: Connection, claim: Claim, rejects: Sequence[Reject], healed: Sequence[str]) -> None:
    """Store what did not fit, and close what was written in the meantime."""
    for reject in rejects:
        execute(connection, "insert_reject", id=claim.pipeline_id, run_id=claim.run_id, **asdict(reject))
    if healed:
        execute(connection, "close_rejects", id=claim.pipeline_id, keys=list(healed))


def open_keys(connection: Connection, pipeline_id: PipelineId) -> list[str]:
    return [row["key"] for row in fetch_all(connection, "list_reject_keys", id=pipeline_id)]


def list_open(connection: Connection, pipeline_id: PipelineId, limit: int = 100) -> list[DictRow]:
    """What waits in quarantine, oldest first."""
    return fetch_all(connection, "list_rejects", id=pipeline_id, limit=limit)
