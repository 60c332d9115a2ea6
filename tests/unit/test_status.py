"""The one table of statuses, against a table written out by hand."""

import pytest

from vitrine.core.status import LEASED, NEXT, RETURNS, Event, Status, diagram, next_status, steps

#                IDLE           RUN_REQUESTED  RUNNING          PAUSE_REQUESTED  PAUSED         FAILED
EXPECTED = """
    run          RUN_REQUESTED  RUN_REQUESTED  RUNNING          RUNNING          RUN_REQUESTED  RUN_REQUESTED
    schedule     RUN_REQUESTED  -              -                -                -              -
    chain        RUN_REQUESTED  -              -                -                -              -
    claim        -              RUNNING        -                -                -              -
    pause        PAUSED         PAUSED         PAUSE_REQUESTED  PAUSE_REQUESTED  PAUSED         -
    paused       -              -              -                PAUSED           -              -
    finish       -              -              IDLE             PAUSED           -              -
    finish_paused -             -              PAUSED           PAUSED           -              -
    fail         -              -              FAILED           FAILED           -              -
    postpone     -              -              IDLE             PAUSED           -              -
    retry        -              -              RUN_REQUESTED    PAUSED           -              -
    release      -              -              RUN_REQUESTED    PAUSED           -              -
    expire       -              -              RUN_REQUESTED    PAUSED           -              -
    crash_loop   -              -              FAILED           -                -              -
    return_idle  -              -              IDLE             PAUSED           -              -
    return_paused -             -              PAUSED           PAUSED           -              -
    return_failed -             -              FAILED           FAILED           -              -
"""
COLUMNS = ("IDLE", "RUN_REQUESTED", "RUNNING", "PAUSE_REQUESTED", "PAUSED", "FAILED")
CASES = [
    (Status(status), Event(event), None if new == "-" else Status(new))
    for event, *line in map(str.split, EXPECTED.strip().splitlines())
    for status, new in zip(COLUMNS, line, strict=True)
]


def test_the_table_by_hand_covers_every_status_and_every_event() -> None:
    assert {(status, event) for status, event, _ in CASES} == {(s, e) for s in Status for e in Event}
    assert len(CASES) == len(Status) * len(Event)


@pytest.mark.parametrize(("status", "event", "expected"), CASES)
def test_an_event_leads_where_the_table_says_or_is_refused(
    status: Status, event: Event, expected: Status | None
) -> None:
    assert next_status(status, event) is expected
    assert NEXT.get((status, event)) is expected
    assert steps()[event].get(status, {}).get("false") is expected


@pytest.mark.parametrize(("status", "event", "expected"), CASES)
def test_a_rerun_changes_only_the_events_that_end_the_request_of_a_running_pipeline(
    status: Status, event: Event, expected: Status | None
) -> None:
    again = status is Status.RUNNING and event in (Event.FINISH, Event.POSTPONE, *RETURNS)
    expected = Status.RUN_REQUESTED if again else expected
    assert next_status(status, event, rerun=True) is expected
    assert steps()[event].get(status, {}).get("true") is expected


@pytest.mark.parametrize("event", Event)
def test_every_event_has_a_step(event: Event) -> None:
    assert steps()[event]


def test_only_a_claim_begins_a_lease() -> None:
    begun = {event for (old, event), new in NEXT.items() if old not in LEASED and new in LEASED}
    assert begun == {Event.CLAIM}


def test_every_status_can_be_reached_and_left() -> None:
    moves = {(old, new) for (old, _), new in NEXT.items() if old is not new}
    assert {old for old, _ in moves} == set(Status)
    assert {new for _, new in moves} == set(Status)


@pytest.mark.parametrize("status", Status)
def test_the_diagram_mentions_every_status(status: Status) -> None:
    assert any(status in line.replace(":", " ").split() for line in diagram().splitlines())


def test_the_diagram_shows_every_move_with_its_events() -> None:
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> IDLE"]
    for (old, event), new in NEXT.items():
        arrows = [line for line in lines if line.startswith(f"    {old} --> {new}: ") and event in line]
        assert len(arrows) == (old is not new)
    assert "    RUNNING --> RUN_REQUESTED: retry, release, expire, finish, postpone or return with rerun" in lines
