"""Messages about pipelines: stored with their event, sent at least once, never in the way of a run."""

import subprocess
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.helpers import pipelines as stored
from tests.helpers.chains import finish, start
from tests.helpers.running import create, run, succeed
from tests.helpers.webhooks import receiver
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes, doctor
from vitrine.postgres import Connection, connect
from vitrine.runner import webhook
from vitrine.runner.webhook import DELAYS, Notifier
from vitrine.settings import Settings
from vitrine.store import filters, history, pipelines, queue

EVENTS = ("failure", "recovery", "stale", "quarantine")
AT_ONCE = (timedelta(0),)


def recorded(connection: Connection) -> list[tuple[str, str]]:
    rows = connection.execute("SELECT event, pipeline FROM etl.etl_notifications ORDER BY number")
    return [(row["event"], row["pipeline"]) for row in rows]


def details(connection: Connection) -> dict[str, Any]:
    """Of the newest message."""
    row = connection.execute("SELECT details FROM etl.etl_notifications ORDER BY number DESC LIMIT 1").fetchone()
    assert row is not None
    return row["details"]


def fail(connection: Connection, pipeline: Pipeline, event: Event = Event.FAIL) -> None:
    held = start(connection, pipeline)
    queue.end_run(connection, held, event, RunStatus.FAILED, error_code="CONFIG", error_message="value 'secret'")


def send(connection: Connection, settings: Settings, url: str, delays: Sequence[timedelta] = AT_ONCE) -> None:
    """What a runner's thread does in one round; by default it repeats an attempt at once."""
    with httpx.Client() as client:
        Notifier(settings, url, threading.Event(), delays=delays).work(connection, client)


def note_stale(connection: Connection, settings: Settings) -> int:
    return history.record_stale(connection, filters.list_stale_crons(connection, settings.zone))


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("L7")
def test_a_failure_and_its_recovery_are_one_message_each(connection: Connection) -> None:
    genres = stored.create(connection, "genres")
    finish(connection, genres)
    assert recorded(connection) == []
    fail(connection, genres)
    fail(connection, genres)
    assert recorded(connection) == [("failure", "genres")]
    found = details(connection)
    assert (found["code"], found["status"]) == ("CONFIG", "FAILED")
    finish(connection, genres)
    finish(connection, genres)
    assert recorded(connection) == [("failure", "genres"), ("recovery", "genres")]
    fail(connection, genres)
    assert len(recorded(connection)) == 3


@pytest.mark.parametrize("event", [Event.RETRY, Event.RELEASE, Event.RETURN_FAILED])
def test_an_attempt_that_is_repeated_and_a_request_that_leaves_the_mart_alone_are_no_failure(
    connection: Connection, event: Event
) -> None:
    fail(connection, stored.create(connection, "genres"), event)
    assert recorded(connection) == []


def test_a_postponed_run_is_a_failure_once(connection: Connection) -> None:
    genres = stored.create(connection, "genres", schedule_interval="1h")
    for _ in range(3):
        fail(connection, genres, Event.POSTPONE)
    assert recorded(connection) == [("failure", "genres")]
    assert details(connection)["status"] == "IDLE"


def test_a_crash_loop_is_a_failure_in_its_own_statement(connection: Connection) -> None:
    genres = stored.create(connection, "genres")
    for _ in range(2):
        held = start(connection, genres)
        connection.execute(
            "UPDATE etl.etl_pipelines SET attempt = 3, lease_expires_at = now() - interval '1 s' WHERE id = %s",
            [held.pipeline_id],
        )
        assert [row["status"] for row in queue.expire_leases(connection)] == [Status.FAILED]
    assert recorded(connection) == [("failure", "genres")]
    assert details(connection)["code"] == "CRASH_LOOP"


@pytest.mark.promise("L7")
def test_the_message_belongs_to_the_transaction_of_the_failure(connection: Connection, database_url: str) -> None:
    genres = stored.create(connection, "genres")
    held = start(connection, genres)
    with connect(database_url, name="tests:other") as other:
        with other.transaction(force_rollback=True):
            queue.end_run(other, held, Event.FAIL, RunStatus.FAILED, error_code="CONFIG", error_message="x")
        assert recorded(connection) == []
    assert queue.end_run(connection, held, Event.FINISH, RunStatus.SUCCESS) is Status.IDLE


def test_a_mart_that_becomes_stale_and_fresh_again_is_one_message_each(
    connection: Connection, settings: Settings
) -> None:
    fields: dict[str, Any] = {"source_query": "SELECT id, name FROM content.genre", "key_columns": ["id"]}
    promised = create(
        connection, settings, name="promised", target_table="analytics.promised", options={"freshness": "5m"}, **fields
    )
    create(connection, settings, name="cron", target_table="analytics.cron", schedule_interval="* * * * *", **fields)
    create(connection, settings, name="free", target_table="analytics.free", **fields)
    assert note_stale(connection, settings) == 0
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '6 minutes'")
    assert note_stale(connection, settings) == 2
    assert note_stale(connection, settings) == 0
    assert sorted(recorded(connection)) == [("stale", "cron"), ("stale", "promised")]
    succeed(connection, settings, promised)
    assert note_stale(connection, settings) == 1
    assert recorded(connection)[-1] == ("recovery", "promised")
    assert not pipelines.get(connection, "promised").is_stale(settings.zone)
    assert pipelines.get(connection, "cron").is_stale(settings.zone)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"enabled": False}, "disabled"), ({"options": {"freshness": None}}, "no_promise")],
)
def test_a_stale_mart_that_is_not_checked_any_more_is_not_called_fresh(
    connection: Connection, settings: Settings, change: dict[str, Any], reason: str
) -> None:
    create(
        connection,
        settings,
        name="promised",
        target_table="analytics.promised",
        options={"freshness": "5m"},
        source_query="SELECT id, name FROM content.genre",
        key_columns=["id"],
    )
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '6 minutes'")
    assert note_stale(connection, settings) == 1
    changes.change(connection, settings, "promised", change)
    assert note_stale(connection, settings) == 1
    assert details(connection) == {"of": "stale", "fresh_as_of": None, "reason": reason}
    sent = history.claim_notification(connection, ["recovery"], hidden=timedelta(minutes=1))
    assert sent is not None
    assert "fresh again" not in webhook.message_text(sent)


def test_more_rows_in_quarantine_are_a_message_and_the_same_ones_are_not(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE ugc.notes (id integer PRIMARY KEY, note text)")
    connection.execute("INSERT INTO ugc.notes SELECT n, repeat('x', n) FROM generate_series(1, 4) AS n")
    connection.execute("CREATE TABLE analytics.notes (id integer PRIMARY KEY, note varchar(3))")
    notes = create(
        connection,
        settings,
        name="notes",
        source_query="SELECT id, note FROM ugc.notes",
        target_table="analytics.notes",
        key_columns=["id"],
        options={"on_reject": "quarantine"},
    )
    succeed(connection, settings, notes)
    assert recorded(connection) == [("quarantine", "notes")]
    found = details(connection)
    assert (found["rows"], found["new"]) == (1, 1)
    succeed(connection, settings, notes)
    assert len(recorded(connection)) == 1
    # all are mended, and then another one does not fit
    connection.execute("UPDATE ugc.notes SET note = 'x'")
    succeed(connection, settings, notes)
    connection.execute("UPDATE ugc.notes SET note = 'too long' WHERE id = 1")
    succeed(connection, settings, notes)
    assert recorded(connection) == [("quarantine", "notes")] * 2
    assert "too long" not in str(details(connection))


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("L8")
def test_a_receiver_that_answers_500_twice_gets_the_message_once_it_answers_200(
    connection: Connection, settings: Settings
) -> None:
    fail(connection, stored.create(connection, "genres"))
    with receiver([500, 500]) as hook:
        send(connection, settings, hook.url)
    assert [one.content["event"] for one in hook.requests] == ["failure"] * 3
    assert len({one.headers[webhook.DELIVERY] for one in hook.requests}) == 1
    assert history.notification_backlog(connection, EVENTS).waiting == 0


@pytest.mark.promise("L8")
def test_a_message_that_was_not_confirmed_is_sent_again_with_the_same_id(
    connection: Connection, settings: Settings
) -> None:
    fail(connection, stored.create(connection, "genres"))
    died = history.claim_notification(connection, EVENTS, hidden=timedelta(minutes=1))
    assert died is not None
    assert (
        history.claim_notification(connection, EVENTS, hidden=timedelta(minutes=1)) is None
    )  # for one sender at a time
    connection.execute("UPDATE etl.etl_notifications SET next_attempt_at = now()")
    with receiver() as hook:
        send(connection, settings, hook.url)
    assert [one.headers[webhook.DELIVERY] for one in hook.requests] == [str(died.id)]


def test_two_senders_do_not_take_the_same_message(connection: Connection, database_url: str) -> None:
    for name in ("a", "b"):
        fail(connection, stored.create(connection, name))
    with connect(database_url, name="tests:other") as other, other.transaction():
        first = history.claim_notification(other, EVENTS, hidden=timedelta(minutes=1))
        second = history.claim_notification(connection, EVENTS, hidden=timedelta(minutes=1))
    assert {one.pipeline for one in (first, second) if one} == {"a", "b"}


def test_a_redirect_is_not_followed(connection: Connection, settings: Settings) -> None:
    fail(connection, stored.create(connection, "genres"))
    with receiver([307]) as hook:
        send(connection, settings, hook.url, DELAYS)
        assert len(hook.requests) == 1
    assert history.notification_backlog(connection, EVENTS).last_error == "the receiver answered 307"


def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    fail(connection, stored.create(connection, "genres"))
    pem = tmp_path / "receiver.pem"
    names = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {names} -keyout {pem} -out {pem}.crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    pem.write_text(pem.read_text() + Path(f"{pem}.crt").read_text())
    with receiver(certificate=pem) as hook:
        send(connection, settings, hook.url, DELAYS)
        assert hook.requests == []
    reason = history.notification_backlog(connection, EVENTS).last_error or ""
    assert "certificate of the receiver is not trusted" in reason
    assert hook.url not in reason


def test_only_the_chosen_events_are_sent_and_old_messages_are_not(connection: Connection, settings: Settings) -> None:
    chosen = settings.model_copy(update={"webhook_events": ("recovery",), "webhook_secret": SecretStr("key-of-test")})
    genres = stored.create(connection, "genres")
    fail(connection, genres)
    finish(connection, genres)
    with receiver() as hook:
        send(connection, chosen, hook.url)
        assert [one.content["event"] for one in hook.requests] == ["recovery"]
        assert hook.requests[0].headers[webhook.SIGNATURE].startswith("sha256=")
        connection.execute("UPDATE etl.etl_notifications SET created_at = now() - interval '25 hours'")
        send(connection, settings, hook.url)
    assert len(hook.requests) == 1


def test_a_message_has_no_value_of_a_row_and_no_secret(connection: Connection, settings: Settings) -> None:
    fail(connection, stored.create(connection, "genres"))
    with receiver() as hook:
        send(connection, settings, hook.url)
    assert b"secret" not in hook.requests[0].body


def test_messages_are_deleted_after_a_week_and_beyond_a_number(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        fail(connection, stored.create(connection, name))
    connection.execute("UPDATE etl.etl_notifications SET created_at = now() - interval '8 days' WHERE pipeline = 'b'")
    assert history.prune_notifications(connection, limit=10) == 1
    monkeypatch.setattr(history, "MAX_KEPT", 1)
    assert history.prune_notifications(connection, limit=10) == 1
    assert recorded(connection) == [("failure", "c")]


def test_doctor_checks_the_receiver_and_the_messages(connection: Connection, settings: Settings) -> None:
    fail(connection, stored.create(connection, "genres"))
    with receiver([500]) as hook:
        configured = settings.model_copy(update={"webhook_url": SecretStr(hook.url)})
        send(connection, configured, hook.url, DELAYS)
        hooked = [one for one in doctor.examine(lambda: configured).checks if one.subject.startswith("webhook")]
        assert [(one.level, hook.url in one.text) for one in hooked] == [("ok", False), ("warning", False)]
        assert "the receiver answered 500" in hooked[1].text
    closed = [one for one in doctor.examine(lambda: configured).checks if one.subject == "webhook"]
    assert [one.level for one in closed] == ["error"]


def test_a_failed_run_of_the_command_line_is_reported_as_well(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.gone (id integer PRIMARY KEY)")
    gone = create(
        connection, settings, source_query="SELECT id FROM ugc.gone", target_table="analytics.gone", key_columns=["id"]
    )
    connection.execute("ALTER TABLE ugc.gone RENAME COLUMN id TO other")
    assert run(connection, settings, gone).error is not None
    assert recorded(connection) == [("failure", "under_test")]
