"""The cause of a late mart, from the facts of the store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import uuid4

import pytest

from vitrine.core.status import PipelineId, Status
from vitrine.explain import LateCause, Runners, why_late
from vitrine.store.lists import LateFacts

NOW = datetime(2025, 1, 1, 12, tzinfo=UTC)
EARLIER, LATER = NOW - timedelta(minutes=5), NOW + timedelta(minutes=5)
IDLE = LateFacts(
    id=PipelineId(uuid4()),
    now=NOW,
    enabled=True,
    status=Status.IDLE,
    status_since=EARLIER,
    source="default",
    last_error_code=None,
    last_error_at=None,
    lease_owner=None,
    lease_expires_at=None,
    next_attempt_at=None,
    next_due_at=LATER,
    postponed=0,
    horizon_blocker=None,
    horizon_lag_seconds=None,
    chained=False,
    missing_upstreams=(),
    halted_by=None,
    halted_at=None,
)
PAUSED = replace(IDLE, status=Status.PAUSED)
FAILED = replace(IDLE, status=Status.FAILED, last_error_code="SCHEMA_CHANGED", last_error_at=EARLIER)
RUNNING = replace(IDLE, status=Status.RUNNING, lease_owner="worker-1", lease_expires_at=LATER)
REQUESTED = replace(IDLE, status=Status.RUN_REQUESTED)
BLOCKED = {"horizon_blocker": "pid 42 of role app", "horizon_lag_seconds": 720.0}
BY_ANNA = {"halted_by": "anna", "halted_at": EARLIER}
TWO, NONE, FULL = Runners(2), Runners(0), Runners(2, {"default"})
AT = "2025-01-01 11:55:00 UTC"
DUE = "2025-01-01 12:05:00 UTC"


@pytest.mark.parametrize(
    ("facts", "runners", "cause", "sentence"),
    [
        (replace(IDLE, enabled=False), TWO, "disabled", "it is disabled; enable it"),
        (replace(RUNNING, enabled=False, **BY_ANNA), TWO, "disabled", f"disabled by anna since {AT}; enable it"),
        (PAUSED, NONE, "paused", f"it is paused since {AT}; resume it"),
        (replace(PAUSED, **BY_ANNA), TWO, "paused", f"it is paused by anna since {AT}; resume it"),
        (replace(RUNNING, status=Status.PAUSE_REQUESTED), TWO, "paused", "it is paused"),
        (FAILED, TWO, "failed", f"the last run failed with SCHEMA_CHANGED at {AT}; correct the cause"),
        (replace(FAILED, last_error_code="TOO_MANY_REJECTS"), TWO, "quarantine_full", "the quarantine is full"),
        (RUNNING, TWO, "running", f"a run is under way since {AT}"),
        (replace(RUNNING, **BLOCKED), TWO, "source_transaction", "(pid 42 of role app, open for 720 s when"),
        (
            replace(RUNNING, lease_expires_at=EARLIER),
            TWO,
            "runner_gone",
            "worker-1 stopped sending heartbeats",
        ),
        (replace(RUNNING, lease_expires_at=EARLIER), NONE, "runner_gone", "stopped sending heartbeats; no runner is"),
        (REQUESTED, NONE, "runner_gone", "no runner is alive; start one with `vitrine runner`"),
        (REQUESTED, TWO, "no_slot", "waits for a free slot of a runner"),
        (REQUESTED, FULL, "no_slot", "source 'default' has as many runs as its limit"),
        (
            replace(REQUESTED, next_attempt_at=LATER, last_error_code="TRANSIENT", last_error_at=EARLIER),
            TWO,
            "retrying",
            f"the last run failed with TRANSIENT at {AT}; the next attempt is at {DUE}",
        ),
        (replace(IDLE, postponed=2, last_error_code="TRANSIENT"), TWO, "retrying", f"the next attempt is at {DUE}"),
        (IDLE, NONE, "runner_gone", "no runner is alive"),
        (replace(IDLE, next_due_at=None, chained=True), NONE, "runner_gone", "no runner is alive"),
        (IDLE, TWO, "not_due", f"the next run is due at {DUE}"),
        (replace(IDLE, **BLOCKED), TWO, "source_transaction", "end that transaction"),
        (replace(IDLE, next_due_at=None), TWO, "not_scheduled", "nothing starts its runs"),
        (
            replace(IDLE, next_due_at=None, chained=True, missing_upstreams=("a", "b")),
            TWO,
            "upstream",
            "it runs after a, b, which",
        ),
        (replace(IDLE, next_due_at=None, chained=True), TWO, "upstream", "a runner starts it"),
    ],
)
def test_the_cause_is_named_in_a_sentence(facts: LateFacts, runners: Runners, cause: str, sentence: str) -> None:
    found = why_late(facts, runners)
    assert found.cause == cause
    assert sentence in found.sentence


def test_every_status_has_a_cause_and_every_cause_is_reached() -> None:
    seen: set[LateCause] = set()
    choices = product(Status, (True, False), (None, LATER), (None, "x"), (0, 1), ((), ("a",)), (TWO, NONE))
    for status, enabled, due, blocker, postponed, missing, runners in choices:
        for code in ("TOO_MANY_REJECTS", "CONFIG"):
            facts = replace(IDLE, status=status, enabled=enabled, next_due_at=due, horizon_blocker=blocker)
            facts = replace(facts, postponed=postponed, missing_upstreams=missing, chained=bool(missing))
            facts = replace(facts, last_error_code=code)
            seen.add(why_late(facts, runners).cause)
    assert seen == set(LateCause)
