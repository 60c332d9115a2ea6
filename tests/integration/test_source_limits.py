"""Limits of what a source query may cost: time to plan, time to the first row, files, bytes; and whose limit wins."""

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import sql

from tests.helpers.planning import BOMB, create_bomb, planning, silent
from tests.helpers.running import create, differences, run, succeed
from tests.helpers.waiting import wait_until
from vitrine.core.protocols import Outcome
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine.plan import validation
from vitrine.postgres import Connection, RoleLimits, connect
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines

PROMISED_SECONDS = 3.0
"""A stop, a pause or a delete during a plan: one second by design, with a reserve for a loaded machine."""

ROLE = "limited_reader"


def limited(settings: Settings, *relations: str, **limits: Any) -> Settings:
    """The settings with limits of sources; these relations are read with everything behind them."""
    return settings.model_copy(update={"connectors": {"postgres": {"allowed_relations": relations, **limits}}})


def bomb(connection: Connection, settings: Settings, **limits: Any) -> tuple[Settings, Pipeline]:
    """A pipeline whose query takes PostgreSQL many seconds to plan."""
    create_bomb(connection)
    settings = limited(settings, BOMB, **limits)
    return settings, films(connection, settings, f"SELECT id, n FROM {BOMB}")


def films(connection: Connection, settings: Settings, query: str, **fields: Any) -> Pipeline:
    return create(
        connection, settings, source_query=query, target_table="analytics.films", key_columns=["id"], **fields
    )


def error_of(executed: Executed) -> VitrineError:
    assert executed.error is not None
    return executed.error


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


@pytest.fixture
def role(connection: Connection) -> Generator[str]:
    """A reader with SELECT on the films."""
    name = sql.Identifier(ROLE)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
    connection.execute(
        sql.SQL("GRANT USAGE ON SCHEMA content TO {0}; GRANT SELECT ON ALL TABLES IN SCHEMA content TO {0}").format(
            name
        )
    )
    yield ROLE
    connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))


def as_role(settings: Settings, **limits: Any) -> Settings:
    url = settings.store_url.replace("://postgres@", f"://{ROLE}@")
    return limited(Settings.model_validate({**settings.model_dump(), "sources": {"default": url}}), **limits)


def set_for(connection: Connection, role: str, **values: str) -> None:
    for name, value in values.items():
        statement = sql.SQL("ALTER ROLE {} SET {} = {}")
        connection.execute(statement.format(sql.Identifier(role), sql.Identifier(name), sql.Literal(value)))


# -- time to plan -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("K4")
def test_a_plan_ends_at_its_limit(connection: Connection, settings: Settings) -> None:
    settings, pipeline = bomb(connection, settings, plan_timeout="200ms")
    started = time.monotonic()
    error = error_of(run(connection, settings, pipeline))
    assert (error.code, "VITRINE_PLAN_TIMEOUT" in str(error)) == ("PLAN_TIMEOUT", True)
    assert time.monotonic() - started < 2 + PROMISED_SECONDS
    with pytest.raises(ConfigError) as refused:
        validation.validate(pipeline.definition, settings)
    assert refused.value.code == "PLAN_TIMEOUT"
    wait_until(lambda: not planning(connection), 60, "the sessions that were left behind end")


@pytest.mark.promise("K4")
@pytest.mark.parametrize("by", ["stop", "pause", "delete"])
def test_a_run_that_should_end_does_not_wait_for_a_server_that_does_not_answer(
    by: str, connection: Connection, settings: Settings, threads: ThreadPoolExecutor
) -> None:
    settings, pipeline = bomb(connection, settings)
    stop = threading.Event()

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, pipeline, stop=stop)

    running = threads.submit(run_there)
    wait_until(lambda: planning(connection), what="a plan that takes long")
    with silent(planning(connection)):
        started = time.monotonic()
        match by:
            case "stop":
                stop.set()
            case "pause":
                pipelines.request_pause(connection, pipeline.id)
            case _:
                pipelines.delete(connection, pipeline.id, force=True)
        executed = running.result(60)
        # a pause and a delete are noticed by the heartbeat, which polls every 300 ms here
        assert time.monotonic() - started < PROMISED_SECONDS + 1
    expected = {"stop": Outcome.RELEASED, "pause": Outcome.PAUSED, "delete": None}
    assert executed.outcome is expected[by]
    wait_until(lambda: not planning(connection), 60, "the session that was left behind ends")


# -- time to the first row --------------------------------------------------------------------------------------------


@pytest.mark.promise("K4", "B8")
def test_a_query_without_a_first_row_in_time_names_the_limit(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE VIEW content.slow AS SELECT id, pg_sleep(60) IS NULL AS slept FROM content.film_work")
    settings = limited(settings, "content.slow", first_row_timeout="200ms")
    error = error_of(run(connection, settings, films(connection, settings, "SELECT id, slept FROM content.slow")))
    assert (error.code, "VITRINE_FIRST_ROW_TIMEOUT" in str(error)) == ("FIRST_ROW_TIMEOUT", True)


@pytest.mark.promise("B8")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_read_that_is_consumed_slowly_is_not_ended_by_our_limits(
    mode: str, connection: Connection, settings: Settings
) -> None:
    connection.execute(
        "CREATE VIEW content.slow AS SELECT id, modified, pg_sleep(0.02) IS NULL AS slept FROM content.film_work"
        " ORDER BY id LIMIT 20"
    )
    settings = limited(settings, "content.slow", first_row_timeout="1s", plan_timeout="1s")
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    options = {"pause_between_batches": "80ms"}
    pipeline = films(
        connection,
        settings,
        "SELECT id, modified, slept FROM content.slow",
        mode=mode,
        batch_size=1,
        options=options,
        **cursor,
    )
    assert succeed(connection, settings, pipeline).counts.read >= 20


# -- files and bytes --------------------------------------------------------------------------------------------------


@pytest.mark.promise("K4", "G18")
def test_temporary_files_are_limited(connection: Connection, settings: Settings) -> None:
    settings = limited(settings, temp_file_limit="1MB")
    query = "SELECT a.id || '/' || b.id AS id, a.title || b.title AS t FROM content.film_work a, content.film_work b"
    connection.execute(
        "INSERT INTO content.film_work (id, title, type) SELECT gen_random_uuid(), 'many', 'movie'"
        " FROM generate_series(1, 300)"
    )
    error = error_of(run(connection, settings, films(connection, settings, query)))
    assert (error.code, "VITRINE_TEMP_FILE_LIMIT" in str(error)) == ("TEMP_FILE_LIMIT", True)


@pytest.mark.promise("K4", "G18")
def test_the_bytes_that_a_run_reads_are_limited(connection: Connection, settings: Settings) -> None:
    settings = limited(settings, max_result_bytes="1MB")
    query = "SELECT n AS id, lpad('x', 1000) AS t FROM generate_series(1, 5000) AS n"
    error = error_of(run(connection, settings, films(connection, settings, query)))
    assert (error.code, "VITRINE_MAX_RESULT_BYTES" in str(error)) == ("RESULT_TOO_LARGE", True)


@pytest.mark.promise("G18")
def test_validate_warns_about_a_query_that_is_very_expensive(connection: Connection, settings: Settings) -> None:
    joined = ", ".join(f"ugc.ratings r{n}" for n in range(5))
    bomb = films(connection, settings, f"SELECT r0.id FROM {joined}")
    codes = {finding.code for finding in validation.validate(bomb.definition, settings).findings}
    assert {"EXPENSIVE_QUERY", "RESULT_TOO_LARGE"} <= codes


# -- rows that are too large ------------------------------------------------------------------------------------------

WIDE = "SELECT id, title, body, modified FROM content.wide"
OTHER_ROWS = "SELECT id, title, body, modified FROM content.wide WHERE length(body) < 100"
QUARANTINE = {"on_reject": "quarantine"}


def wide(
    connection: Connection, settings: Settings, *large: int, mode: str = "full", query: str = WIDE, **fields: Any
) -> Pipeline:
    """Nine rows, of which these have five megabytes; a row may have one."""
    connection.execute(
        "CREATE TABLE content.wide (id integer PRIMARY KEY, title text, body text, modified timestamptz);"
        "INSERT INTO content.wide SELECT n, 'a', 'x', now() - interval '1 h' + n * interval '1 s'"
        "  FROM generate_series(1, 9) AS n"
    )
    enlarge(connection, *large)
    return films(connection, settings, query, mode=mode, batch_size=2, **CURSOR[mode], **fields)


CURSOR: dict[str, dict[str, str]] = {"full": {}, "incremental": {"incremental_key": "modified"}}


def enlarge(connection: Connection, *ids: int) -> None:
    """Before the first run; the order of the rows stays."""
    connection.execute("UPDATE content.wide SET body = repeat('x', 5000000) WHERE id = ANY(%s)", [list(ids)])


def change(connection: Connection, number: int, size: int) -> None:
    statement = "UPDATE content.wide SET body = repeat('y', %s), modified = clock_timestamp() WHERE id = %s"
    connection.execute(statement, [size, number])


@pytest.mark.promise("K14")
@pytest.mark.parametrize("task", [None, "map_fields"], ids=["copy", "text"])
def test_a_row_that_is_too_large_fails_the_run_with_its_key_and_its_column(
    task: str | None, connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 7, python_task=task)
    error = error_of(run(connection, settings, pipeline))
    assert isinstance(error, DataError)
    assert (error.code, str(error).split(";")[0]) == (
        "ROW_TOO_LARGE",
        "source query: row 7 has more than 1MB (VITRINE_MAX_ROW_BYTES), most of it in column 'body'",
    )
    assert ("on_reject: quarantine" in str(error)) is (task is None)
    quiet = settings.model_copy(update={"show_keys_in_errors": False})
    assert "source query: a row has more than 1MB" in str(error_of(run(connection, quiet, pipeline)))


@pytest.mark.promise("K14", "E12")
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("large", [[1], [7], [9], [2, 3], [4, 6], [*range(1, 10)]], ids=str)
def test_a_row_that_is_too_large_is_quarantined_without_its_values(
    mode: str, large: list[int], connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, *large, mode=mode, options=QUARANTINE)
    counts = succeed(connection, settings, pipeline).counts
    assert (counts.read, counts.rejected) == (9, len(large))
    assert differences(connection, OTHER_ROWS, "analytics.films", "id") == []
    found = checkpoint.list_page(connection, pipeline.id, with_rows=True)
    assert [(one.key, one.column, one.code, one.row) for one in found] == [
        (str(number), "body", "ROW_TOO_LARGE", {}) for number in large
    ]
    assert found[0].reason == ("the row has 4.8MB, more than 1MB (VITRINE_MAX_ROW_BYTES), most of it in column 'body'")
    change(connection, large[0], 1)
    succeed(connection, settings, pipeline)
    assert [one.key for one in checkpoint.list_page(connection, pipeline.id)] == [str(number) for number in large[1:]]
    assert differences(connection, OTHER_ROWS, "analytics.films", "id") == []


@pytest.mark.promise("K14", "J18")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_the_mart_keeps_the_last_version_that_was_not_too_large(
    mode: str, connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, mode=mode, options=QUARANTINE)
    succeed(connection, settings, pipeline)
    before = connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall()
    change(connection, 3, 5_000_000)
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert connection.execute("SELECT * FROM analytics.films ORDER BY id").fetchall() == before


@pytest.mark.promise("K14", "J5")
def test_a_row_that_is_too_large_and_has_no_cursor_fails_the_run_as_any_row_without_one(
    connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 5, mode="incremental", options=QUARANTINE)
    connection.execute("UPDATE content.wide SET modified = NULL WHERE id = 5")
    assert error_of(run(connection, settings, pipeline)).code == "NULL_CURSOR"


@pytest.mark.promise("K14", "J23")
def test_a_row_that_is_too_large_is_found_whatever_its_columns_are_named(
    connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    query = 'SELECT id, title AS q, body AS r, 1 AS size, 2 AS key, 3 AS formats, 4 AS "cursor" FROM content.wide'
    pipeline = wide(connection, settings, 5, query=query, options=QUARANTINE)
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert [one.column for one in checkpoint.list_page(connection, pipeline.id)] == ["r"]


@pytest.mark.promise("K14", "E2")
def test_more_rows_that_are_too_large_than_the_quarantine_may_hold_fail_the_run(
    connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 2, 5, 8, options={**QUARANTINE, "max_rejects": 2})
    assert error_of(run(connection, settings, pipeline)).code == "TOO_MANY_REJECTS"


@pytest.mark.promise("K14")
@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"python_task": "map_fields"}, {}, "only the transforms know the key"),
        ({}, {"on_duplicate_key": "last"}, "one of several rows with its key"),
    ],
)
def test_where_a_row_that_is_too_large_cannot_be_quarantined_validate_gives_the_reason(
    fields: dict[str, Any], options: dict[str, Any], reason: str, connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 7, options={**QUARANTINE, **options}, **fields)
    assert error_of(run(connection, settings, pipeline)).code == "ROW_TOO_LARGE"
    found = {one.code: one for one in validation.validate(pipeline.definition, settings).findings}
    assert (reason in found["ROW_TOO_LARGE"].text, found["ROW_TOO_LARGE"].note) == (True, True)
    plain = pipeline.definition.model_copy(
        update={"options": pipeline.definition.options.model_copy(update={"on_reject": "fail"})}
    )
    assert "ROW_TOO_LARGE" not in {one.code for one in validation.validate(plain, settings).findings}


@pytest.mark.promise("K14")
def test_a_key_that_is_another_text_in_the_target_is_not_quarantined(
    connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 7, options=QUARANTINE)
    connection.execute(
        "CREATE TABLE analytics.films (id numeric PRIMARY KEY, title text, body text, modified timestamptz)"
    )
    error = error_of(run(connection, settings, pipeline))
    assert (error.code, "key column 'id' is of type integer in the query and numeric in" in str(error)) == (
        "ROW_TOO_LARGE",
        True,
    )


@pytest.mark.promise("K14")
@pytest.mark.parametrize("body", ["jsonb_build_object('b', body)", "string_to_array(body, 'x')", "body::bytea"])
def test_the_size_of_a_row_is_that_of_its_values_whatever_their_types(
    body: str, connection: Connection, settings: Settings
) -> None:
    settings = limited(settings, max_row_bytes="1MB")
    pipeline = wide(connection, settings, 4, query=f"SELECT id, {body} AS body FROM content.wide", options=QUARANTINE)
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert connection.execute("SELECT count(*) AS n FROM analytics.films").fetchone() == {"n": 8}


# -- the limits of the role -------------------------------------------------------------------------------------------


@pytest.mark.promise("K5")
def test_the_stricter_of_two_limits_applies() -> None:
    row = {
        "role": "reader",
        "statement_timeout": "1s",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "1h",
        "transaction_timeout": None,
        "temp_file_limit": "2GB",
        "may_limit_files": True,
        "chosen": "{Work_Mem=64kB}",
    }
    limits = RoleLimits.of(row)
    assert [limits.stricter("statement_timeout", ours) for ours in (0, 500, 30_000)] == [1000, 500, 1000]
    assert [limits.stricter("lock_timeout", ours) for ours in (0, 500)] == [0, 500]
    assert limits.stricter("idle_in_transaction_session_timeout", 10_000) == 10_000
    assert [limits.file_limit(kb) for kb in (1024, 10 * 1024**2)] == [1024, None]
    assert limits.chose("work_mem")
    kept = limits.kept({"statement_timeout": 5000, "lock_timeout": 10}, ("work_mem", "maintenance_work_mem"))
    assert kept.as_string() == '; SET LOCAL "statement_timeout" = 1000; SET LOCAL "work_mem" TO DEFAULT'


@pytest.mark.promise("K5")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_the_limits_of_the_role_apply_to_every_statement(
    mode: str, role: str, connection: Connection, settings: Settings
) -> None:
    """The view returns the settings that it is read under."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "work_mem", "temp_file_limit")
    shown = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    connection.execute(
        sql.SQL("CREATE VIEW content.shown AS SELECT id, modified, {} FROM content.film_work").format(sql.SQL(shown))  # pyright: ignore[reportArgumentType]
    )
    connection.execute(sql.SQL("GRANT SELECT ON content.shown TO {}").format(sql.Identifier(role)))
    own = {
        "statement_timeout": "20s",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "40s",
        "work_mem": "128kB",
        "temp_file_limit": "3MB",
    }
    set_for(connection, role, **own)
    settings = as_role(settings, allowed_relations=("content.shown",))
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    pipeline = films(
        connection, settings, "SELECT * FROM content.shown", mode=mode, options={"lookback": "1m"}, **cursor
    )
    succeed(connection, settings, pipeline)
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    seen = connection.execute(sql.SQL("SELECT DISTINCT {} FROM analytics.films").format(columns)).fetchall()
    assert seen == [own]


@pytest.mark.promise("K5", "J25")
def test_a_limit_of_the_role_that_ends_a_query_is_named(role: str, connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE VIEW content.slow AS SELECT id, pg_sleep(0.2) IS NULL AS slept FROM content.film_work")
    connection.execute(sql.SQL("GRANT SELECT ON content.slow TO {}").format(sql.Identifier(role)))
    set_for(connection, role, statement_timeout="1s")
    settings = as_role(settings, allowed_relations=("content.slow",))
    error = error_of(run(connection, settings, films(connection, settings, "SELECT id, slept FROM content.slow")))
    assert error.code == "QUERY_CANCELED"
    assert f"statement_timeout = 1s, which applies to role {role}" in str(error)
    assert f"ALTER ROLE {role} SET statement_timeout" in str(error)


@pytest.mark.promise("K5")
def test_the_target_keeps_the_stricter_limits_of_its_account(connection: Connection, settings: Settings) -> None:
    name = "limited_writer"
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(sql.Identifier(name)))
    try:
        set_for(connection, name, lock_timeout="123ms", work_mem="256kB")
        url = settings.store_url.replace("://postgres@", f"://{name}@")
        writer = Settings.model_validate({**settings.model_dump(), "database_url": url})
        connection.execute(
            """
            CREATE TABLE analytics.films (id uuid PRIMARY KEY, seen text);
            CREATE FUNCTION analytics.note() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN NEW.seen := current_setting('lock_timeout') || ' ' || current_setting('work_mem');
                   RETURN NEW; END $$;
            CREATE TRIGGER note BEFORE INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION analytics.note();
            """
        )
        pipeline = films(
            connection,
            writer,
            "SELECT id, NULL::text AS seen FROM content.film_work",
            options={"on_target_trigger": "warn"},
        )
        succeed(connection, writer, pipeline)
        seen = connection.execute("SELECT DISTINCT seen FROM analytics.films").fetchall()
        assert seen == [{"seen": "123ms 256kB"}]
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))
