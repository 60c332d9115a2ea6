"""The sentence of why a pipeline waits."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from vitrine.core.status import LEASED, PipelineId, RequestId, RunRequest, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import LastError, Pipeline, Verification
from vitrine.explain import Surroundings, why_it_waits

NOW = datetime(2025, 1, 1, 12, tzinfo=UTC)
ERROR = LastError("TRANSIENT", "the source does not respond", NOW - timedelta(minutes=1))
BUSY = Surroundings(runners=2, source_is_full=False)
FULL = Surroundings(runners=2, source_is_full=True)
ALONE = Surroundings(runners=0, source_is_full=False)


def pipeline(status: Status, *, enabled: bool = True, **fields: Any) -> Pipeline:
    definition = Definition(name="genres", source_query="SELECT 1", target_table="analytics.genres", enabled=enabled)
    leased = status in LEASED
    defaults: dict[str, Any] = {
        "request": RunRequest(RequestId(uuid4())),
        "rerun": None,
        "rerun_held": False,
        "requested_at": NOW,
        "attempt": 1,
        "next_attempt_at": None,
        "next_due_at": None,
        "postponed": 0,
        "last_error": None,
        "fresh_as_of": None,
        "verification": Verification(),
        "lease_owner": "worker-1" if leased else None,
        "lease_expires_at": NOW + timedelta(seconds=30) if leased else None,
        "created_at": NOW,
        "updated_at": NOW,
        "status_since": NOW - timedelta(hours=1),
        "read_at": NOW,
    }
    return Pipeline(PipelineId(uuid4()), definition, status, 1, **defaults | fields)


DISABLED = "the pipeline is disabled; enable it, and it can run again"
LATER = NOW + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("one", "around", "sentence"),
    [
        (pipeline(Status.RUNNING), BUSY, None),
        (pipeline(Status.IDLE), BUSY, None),
        (pipeline(Status.IDLE), ALONE, None),
        (pipeline(Status.IDLE, next_due_at=LATER), BUSY, "the next run is due at 2025-01-01 12:01:30 UTC"),
        (pipeline(Status.IDLE, next_due_at=LATER), ALONE, "no runner is alive; start one with `vitrine runner`"),
        (
            pipeline(Status.IDLE, next_due_at=LATER, postponed=2, last_error=ERROR),
            BUSY,
            "the last run failed with TRANSIENT at 2025-01-01 11:59:00 UTC and was postponed; the next attempt is at"
            " 2025-01-01 12:01:30 UTC",
        ),
        (pipeline(Status.RUN_REQUESTED), BUSY, "the run waits for a free runner"),
        (pipeline(Status.RUN_REQUESTED), ALONE, "no runner is alive; start one with `vitrine runner`"),
        (
            pipeline(Status.RUN_REQUESTED),
            FULL,
            "source 'default' has as many runs as its limit of connections allows; the run starts when one of them has"
            " ended",
        ),
        (
            pipeline(Status.RUN_REQUESTED, next_attempt_at=LATER, last_error=ERROR),
            FULL,
            "the last run failed with TRANSIENT at 2025-01-01 11:59:00 UTC; the next attempt is at 2025-01-01 12:01:30"
            " UTC",
        ),
        (
            pipeline(Status.RUN_REQUESTED, next_attempt_at=NOW - timedelta(seconds=1), last_error=ERROR),
            BUSY,
            "the run waits for a free runner",
        ),
        (
            pipeline(Status.RUN_REQUESTED, enabled=False),
            BUSY,
            "the pipeline is disabled; enable it, and it can run again",
        ),
        (pipeline(Status.PAUSED, enabled=False), BUSY, "the pipeline is disabled; enable it, and it can run again"),
        (
            pipeline(Status.PAUSED),
            ALONE,
            "the pipeline is paused since 2025-01-01 11:00:00 UTC; resume it to continue",
        ),
        (pipeline(Status.PAUSED, status_since=None), BUSY, "the pipeline is paused; resume it to continue"),
        (
            pipeline(Status.FAILED, last_error=ERROR),
            BUSY,
            "the last run failed with TRANSIENT at 2025-01-01 11:59:00 UTC; correct the cause, then run it again",
        ),
        (pipeline(Status.FAILED), BUSY, "the last run failed; correct the cause, then run it again"),
        (
            pipeline(Status.PAUSE_REQUESTED, enabled=False),
            BUSY,
            "the run stops after its current batch, as a pause was requested",
        ),
        (
            pipeline(Status.RUNNING, lease_expires_at=NOW - timedelta(seconds=1)),
            BUSY,
            "runner worker-1 stopped sending heartbeats; another runner takes over",
        ),
        (
            pipeline(Status.PAUSE_REQUESTED, lease_expires_at=NOW - timedelta(seconds=1)),
            ALONE,
            "runner worker-1 stopped sending heartbeats, and no runner is alive; start one with `vitrine runner`",
        ),
    ],
)
def test_the_first_reason_that_holds_is_the_sentence(one: Pipeline, around: Surroundings, sentence: str | None) -> None:
    assert why_it_waits(one, around) == sentence


@pytest.mark.parametrize("status", Status)
def test_every_status_has_an_answer(status: Status) -> None:
    for around in (BUSY, FULL, ALONE):
        why_it_waits(pipeline(status), around)
