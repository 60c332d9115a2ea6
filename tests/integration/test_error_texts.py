"""Row values appear in no error, log line, history or reject, whatever PostgreSQL writes into its messages."""

import logging
from typing import Any

import pytest

from tests.helpers.running import create, run
from vitrine import postgres
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import history

CANARY = "S3CR3TVALUE"


@pytest.fixture(autouse=True)
def _canary(connection: Connection) -> None:
    connection.execute(
        raw(
            f"CREATE TABLE content.leaky (id text PRIMARY KEY, title text NOT NULL);"
            f"INSERT INTO content.leaky VALUES ('1', '{CANARY} & & x'), ('2', '{CANARY}')"
        )
    )


def leaky(connection: Connection, settings: Settings, query: str, **fields: Any) -> Pipeline:
    defaults = {"target_table": "analytics.leaky", "key_columns": ["id"]}
    return create(connection, settings, source_query=query, **defaults | fields)


def texts(connection: Connection, settings: Settings, pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> str:
    """Everything that a failed run shows."""
    caplog.set_level(logging.DEBUG, logger="vitrine")
    executed = run(connection, settings, pipeline)
    newest = history.list_runs(connection, pipeline.id, limit=1)[0]
    rejects = connection.execute("SELECT column_name, code, reason FROM etl.etl_rejects").fetchall()
    return "\n".join([str(executed.error), str(newest.error_message), str(rejects), caplog.text])


@pytest.mark.promise("K6", "H4")
@pytest.mark.parametrize(
    ("expression", "state"),
    [("title::tsquery", "42601"), ("title::jsonpath", "42601"), ("title::integer", "22P02"), ("title::xid8", "22P02")],
)
def test_a_cast_of_the_source_that_fails_does_not_show_the_value(
    expression: str, state: str, connection: Connection, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = leaky(connection, settings, f"SELECT id, ({expression})::text AS t FROM content.leaky")
    shown = texts(connection, settings, pipeline, caplog)
    assert CANARY not in shown
    assert state in shown


TRIGGERS = {
    "P0001": "RAISE EXCEPTION 'bad row %', NEW.title",
    "42501": "RAISE EXCEPTION 'not allowed: %', NEW.title USING ERRCODE = '42501'",
    "57014": "RAISE EXCEPTION 'too slow for %', NEW.title USING ERRCODE = '57014'",
    "XX000": "RAISE EXCEPTION '%', NEW.title USING ERRCODE = 'XX000'",
    "42P01": "PERFORM NEW.title::regclass",
    "42704": "PERFORM NEW.title::regtype",
    "3F000": "PERFORM NEW.title::regnamespace",
    "22023": "RAISE EXCEPTION '%', NEW.title USING ERRCODE = '22023'",
}


@pytest.mark.promise("K6")
@pytest.mark.parametrize("state", TRIGGERS)
@pytest.mark.parametrize("on_reject", ["fail", "quarantine"])
def test_a_trigger_of_the_target_that_fails_does_not_show_the_value(
    on_reject: str, state: str, connection: Connection, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    connection.execute(
        raw(
            f"""
            CREATE TABLE analytics.leaky (id text PRIMARY KEY, title text);
            CREATE FUNCTION analytics.fails() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN {TRIGGERS[state]}; RETURN NEW; END $$;
            CREATE TRIGGER fails BEFORE INSERT ON analytics.leaky FOR EACH ROW EXECUTE FUNCTION analytics.fails();
            """
        )
    )
    query = f"SELECT id, '{CANARY}'::text || id AS title FROM content.leaky"
    pipeline = leaky(connection, settings, query, options={"on_reject": on_reject, "on_target_trigger": "warn"})
    shown = texts(connection, settings, pipeline, caplog)
    assert CANARY not in shown
    assert state in shown


@pytest.mark.promise("K6")
def test_keys_are_shown_unless_the_settings_forbid_it(
    connection: Connection, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    twice = leaky(
        connection,
        settings,
        "SELECT title AS id, 1 AS n FROM content.leaky UNION ALL SELECT title, 2 FROM content.leaky",
        batch_size=1,
    )
    assert CANARY in str(run(connection, settings, twice).error)
    quiet = settings.model_copy(update={"show_keys_in_errors": False})
    caplog.clear()
    shown = texts(connection, quiet, twice, caplog)
    assert CANARY not in shown
    assert "two rows of the source have the same key" in shown


@pytest.mark.promise("K6")
def test_the_key_of_a_row_that_does_not_fit_is_shown_unless_the_settings_forbid_it(
    connection: Connection, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    connection.execute("CREATE TABLE analytics.leaky (id text PRIMARY KEY, n smallint)")
    misfits = leaky(connection, settings, "SELECT title AS id, 100000 AS n FROM content.leaky")
    assert CANARY in str(run(connection, settings, misfits).error)
    caplog.clear()
    quiet = settings.model_copy(update={"show_keys_in_errors": False})
    shown = texts(connection, quiet, misfits, caplog)
    assert CANARY not in shown
    assert "a row of analytics.leaky: column 'n' does not fit" in shown


@pytest.mark.promise("K6")
@pytest.mark.parametrize(
    ("state", "message", "known", "is_shown"),
    [
        ("57014", "canceling statement due to statement timeout", "", True),
        ("57014", "too slow for S3CR3T", "", False),
        ("42P01", 'relation "content.films" does not exist', "SELECT * FROM content.films", True),
        ("42P01", 'relation "content.films" does not exist', None, True),
        ("42P01", 'relation "s3cr3t" does not exist', "SELECT * FROM content.films", False),
        ("42703", "column f.nope does not exist", None, True),
        ("42601", 'syntax error at or near "s3cr3t"', "SELECT 1", False),
        ("42601", 'syntax error in tsquery: "s3cr3t"', None, False),
        ("42501", "permission denied for table film_work", "", True),
        ("53100", 'could not extend file "base/5/16384": No space left on device', "", True),
        ("P0001", "S3CR3T", None, False),
        ("57014", "canceling statement due to statement timeout S3CR3T", "", False),
    ],
)
def test_only_messages_that_cannot_quote_a_row_are_shown(
    state: str, message: str, known: str | None, is_shown: bool
) -> None:
    assert (postgres.shown(state, message, known) is not None) is is_shown
