"""Reports of deep reconciles."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from vitrine.ids import PipelineId
from vitrine.pipeline import Claim, Verdict
from vitrine.postgres import Connection
from vitrine.store.checkpoints import lease_lost
from vitrine.store.database import execute, fetch_all, fetch_one

KEPT = 50
"""Reports of a pipeline that are kept, the newest."""

NEWEST = 2**63 - 1


@dataclass(frozen=True)
class StoredReport:
    """A report, with what it says about its pipeline."""

    id: int
    run_id: int | None  # None: the run was deleted from the history
    started_at: datetime
    finished_at: datetime
    verdict: Verdict
    verified_until: datetime | None  # the mart equals its source as of this time; None: it does not
    report: dict[str, Any]


def record(connection: Connection, claim: Claim, figures: dict[str, Any]) -> None:
    """Store the figures of a `Reconciliation`; its pipeline shows the verdict. LeaseLost if another runner has it."""
    repaired = figures["repaired"]
    row = fetch_one(
        connection,
        "insert_reconciliation",
        id=claim.pipeline_id,
        token=claim.token,
        run_id=claim.run_id,
        verdict="equal" if figures["equal"] else "different",
        missing=figures["missing"]["count"],
        extra=figures["extra"]["count"],
        different=figures["different"]["count"],
        waiting=figures["waiting"],
        repaired=None if repaired is None else sum(found["count"] for found in repaired.values()),
        report=Jsonb(figures),
        others=KEPT - 1,
    )
    if row is None:
        raise lease_lost(claim)


def forget_verdict(connection: Connection, pipeline_id: PipelineId) -> None:
    """What was proven concerns another definition; the reports stay."""
    execute(connection, "forget_verdict", id=pipeline_id)


def list_page(
    connection: Connection, pipeline_id: PipelineId, *, before: int = NEWEST, limit: int = 20
) -> list[StoredReport]:
    """One page of the reports of a pipeline, newest first."""
    rows = fetch_all(connection, "list_reconciliations", id=pipeline_id, before=before, limit=limit)
    return [StoredReport(**row) for row in rows]
