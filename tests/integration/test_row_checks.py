"""Checks of a pipeline: rows that break them are not published, and the results are kept with the run."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers.running import run, succeed
from tests.helpers.scores import (
    ACCEPTED,
    COUNT,
    EVERY,
    NOT_NULL,
    RANGE,
    SCORES,
    SQL,
    TARGET,
    UNIQUE,
    add_scores,
    change_score,
    create_scores,
    fill_scores,
    results,
    staging_tables,
    visible,
)
from vitrine import failpoints
from vitrine.core.protocols import Outcome
from vitrine.core.status import Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store import pipelines, state

BROKEN = {
    "not_null": (NOT_NULL, "title", None, "with NULL in 'title'"),
    "unique": (UNIQUE, "title", "title 1", "with the same values in 'title' as another row"),
    "accepted_values": (ACCEPTED, "kind", "song", "with another value in 'kind' than the accepted ones"),
    "range": (RANGE, "score", "10.01", "outside the range of 'score' (min 0, max 10)"),
    "sql": (SQL, "ratio", "6", "returned by its query, which must return none"),
}

both_modes = pytest.mark.parametrize("mode", ["full", "incremental"])
every_check = pytest.mark.parametrize("kind", BROKEN)


def refused(executed: Executed) -> DataError:
    assert isinstance(executed.error, DataError), executed
    assert executed.error.code == "CHECK_FAILED", executed.error
    return executed.error


def status_of(connection: Connection, pipeline: Pipeline) -> Status:
    return pipelines.get(connection, pipeline.id).status


# -- rows that break a check ------------------------------------------------------------------------------------------


@pytest.mark.promise("M1", "M2", "M3")
@both_modes
@every_check
def test_rows_that_break_a_check_stay_invisible_until_they_are_mended(
    connection: Connection, settings: Settings, mode: str, kind: str
) -> None:
    check, column, value, found = BROKEN[kind]
    fill_scores(connection, 250)
    pipeline = create_scores(connection, settings, [check], mode)
    succeed(connection, settings, pipeline)
    before, position = visible(connection), state.load_state(connection, pipeline.id).position
    change_score(connection, [7, 180], column, value)
    error = str(refused(run(connection, settings, pipeline)))
    rows = 3 if kind == "unique" and mode == "full" else 2  # the row that had the value first breaks it as well
    assert f"{rows} rows {found}, for example " in error
    assert "7" in error.partition("for example ")[2]
    assert "180" in error.partition("for example ")[2]
    assert value is None or f"'{value}'" not in error
    assert visible(connection) == before
    assert state.load_state(connection, pipeline.id).position == position
    assert status_of(connection, pipeline) is Status.FAILED
    assert staging_tables(connection) == []
    (result,) = results(connection, pipeline).values()
    assert (result["passed"], result["rows"], result["severity"]) == (False, rows, "fail")
    change_score(connection, [7, 180], "title", None)
    for one in (7, 180):
        change_score(connection, [one], "title", f"title {one}")
    change_score(connection, [7, 180], "kind", "film")
    change_score(connection, [7, 180], "score", "5")
    change_score(connection, [7, 180], "ratio", "0.25")
    succeed(connection, settings, pipeline)
    (result,) = results(connection, pipeline).values()
    assert (result["passed"], result["rows"], result["text"]) == (True, 0, None)
    after = visible(connection)
    assert after is not None
    assert [after[one]["ratio"] for one in (7, 180)] == [0.25, 0.25]


@pytest.mark.promise("M1")
@every_check
def test_a_first_load_that_breaks_a_check_creates_no_mart(
    connection: Connection, settings: Settings, kind: str
) -> None:
    check, column, value, _ = BROKEN[kind]
    fill_scores(connection, 250)
    change_score(connection, [180], column, value)
    pipeline = create_scores(connection, settings, [check], "incremental")
    refused(run(connection, settings, pipeline))
    assert visible(connection) is None
    assert state.load_state(connection, pipeline.id).position.is_start
    change_score(connection, [180], "title", "title 180")
    change_score(connection, [180], "kind", "film")
    change_score(connection, [180], "score", "5")
    change_score(connection, [180], "ratio", "0.5")
    assert succeed(connection, settings, pipeline).counts.written == 250


@pytest.mark.promise("M1")
def test_every_check_that_fails_is_named_and_those_that_pass_are_kept_as_well(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 10)
    change_score(connection, [3], "title", None)
    change_score(connection, [4], "score", "11")
    pipeline = create_scores(connection, settings, EVERY)
    error = str(refused(run(connection, settings, pipeline)))
    assert "break 2 of its checks: check 'not_null (title)': 1 row with NULL in 'title', for example 3; check" in error
    found = results(connection, pipeline)
    assert {name for name, one in found.items() if not one["passed"]} == {"not_null (title)", "range (score)"}
    assert [one["type"] for one in found.values()] == [check["type"] for check in EVERY]


@pytest.mark.promise("M1")
def test_a_load_that_breaks_a_check_is_not_published_by_the_run_that_continues_it(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 250)
    pipeline = create_scores(connection, settings, [RANGE])
    succeed(connection, settings, pipeline)
    before = visible(connection)
    change_score(connection, [9], "score", "11")
    failpoints.install("staging_built=raise@1")
    try:
        executed = run(connection, settings, pipeline)
        assert isinstance(executed.error, VitrineError)
        assert len(staging_tables(connection)) == 1
    finally:
        failpoints.install("")
    error = refused(run(connection, settings, pipeline, resume=True))
    assert "for example 9" in str(error)
    assert visible(connection) == before
    assert staging_tables(connection) == []


@pytest.mark.promise("M1")
def test_a_failed_check_is_not_retried(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 3)
    change_score(connection, [3], "score", "11")
    pipeline = create_scores(connection, settings, [RANGE])
    executed = run(connection, settings, pipeline, waits=(0.0, 0.0), retry=True)
    refused(executed)
    assert executed.counts.read == 3
    assert status_of(connection, pipeline) is Status.FAILED


@pytest.mark.promise("M3")
def test_keys_are_hidden_where_errors_may_not_quote_them(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 20)
    change_score(connection, [17], "score", "11")
    pipeline = create_scores(connection, settings, [RANGE])
    hidden = settings.model_copy(update={"show_keys_in_errors": False})
    assert "17" not in str(refused(run(connection, hidden, pipeline)))
    assert results(connection, pipeline)["range (score)"]["keys"] == []


@pytest.mark.promise("M2")
def test_batches_before_the_one_that_breaks_a_check_stay_written(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 1)
    pipeline = create_scores(connection, settings, [RANGE], "incremental")
    succeed(connection, settings, pipeline)
    add_scores(connection, 2, 300)
    connection.execute("UPDATE ugc.scores SET score = 11 WHERE id = 250")
    refused(run(connection, settings, pipeline))
    shown = visible(connection)
    assert shown is not None
    assert len(shown) == 201
    assert state.load_state(connection, pipeline.id).position.cursor == ("2024-01-01 00:03:21+00", "201")


@pytest.mark.promise("M4")
@both_modes
def test_a_warning_publishes_the_rows_and_is_kept_with_the_run(
    connection: Connection, settings: Settings, mode: str
) -> None:
    fill_scores(connection, 1)
    pipeline = create_scores(connection, settings, [RANGE | {"severity": "warn"}], mode)
    succeed(connection, settings, pipeline)
    add_scores(connection, 2, 300)
    connection.execute("UPDATE ugc.scores SET score = 11 WHERE id IN (50, 150, 250)")
    executed = succeed(connection, settings, pipeline)
    assert [(one.passed, one.rows, one.keys) for one in executed.checks] == [(False, 3, ("50", "150", "250"))]
    (result,) = results(connection, pipeline).values()
    assert result["text"] == "3 rows outside the range of 'score' (min 0, max 10), for example 50, 150, 250"
    shown = visible(connection)
    assert shown is not None
    assert len(shown) == 300
    assert status_of(connection, pipeline) is Status.IDLE


def test_a_run_without_rows_to_check_has_no_results(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 5)
    pipeline = create_scores(connection, settings, [RANGE], "incremental")
    succeed(connection, settings, pipeline)
    assert succeed(connection, settings, pipeline).checks == ()
    assert results(connection, pipeline) == {}


# -- values -----------------------------------------------------------------------------------------------------------


def test_null_is_accepted_and_nan_lies_in_no_range(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 4)
    connection.execute("UPDATE ugc.scores SET kind = NULL, score = NULL, ratio = NULL WHERE id = 1")
    connection.execute("UPDATE ugc.scores SET ratio = 'NaN' WHERE id = 2")
    connection.execute("UPDATE ugc.scores SET ratio = 'Infinity' WHERE id = 3")
    above = {"type": "range", "column": "ratio", "min": 0}
    pipeline = create_scores(connection, settings, [ACCEPTED, RANGE, above | {"severity": "warn"}])
    succeed(connection, settings, pipeline)
    assert results(connection, pipeline)["range (ratio)"]["keys"] == ["2"]


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        ({"type": "accepted_values", "column": "score", "values": [5, "5.50"]}, [3]),
        ({"type": "accepted_values", "column": "day", "values": ["2024-01-01"]}, [4]),
        ({"type": "range", "column": "day", "max": "2024-06-30"}, [4]),
        ({"type": "range", "column": "modified", "min": "2024-01-01T00:00:02Z"}, [1]),
        ({"type": "range", "column": "id", "max": 99999999999999999999}, []),
        ({"type": "range", "column": "id", "min": -5000000000, "max": 3}, [4]),
        ({"type": "accepted_values", "column": "kind", "values": ["Film", "film "]}, [1, 2, 3, 4]),
        ({"type": "unique", "columns": ["kind", "day"]}, [1, 2, 3]),
        ({"type": "sql", "query": "SELECT id AS other FROM mart WHERE id = 2"}, None),
        ({"type": "sql", "query": "WITH a AS (SELECT * FROM mart) SELECT id FROM a JOIN mart USING (id) LIMIT 1"}, [1]),
    ],
)
def test_values_are_compared_in_the_type_of_their_column(
    connection: Connection, settings: Settings, check: dict[str, Any], broken: list[int] | None
) -> None:
    fill_scores(connection, 4)
    connection.execute("UPDATE ugc.scores SET score = 5.5 WHERE id = 2")
    connection.execute("UPDATE ugc.scores SET score = 6 WHERE id = 3")
    connection.execute("UPDATE ugc.scores SET day = '2024-07-01' WHERE id = 4")
    pipeline = create_scores(connection, settings, [check | {"severity": "warn"}])
    succeed(connection, settings, pipeline)
    (result,) = results(connection, pipeline).values()
    assert result["keys"] == [str(one) for one in broken or ()]
    assert result["rows"] == (1 if broken is None else len(broken))


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (NOT_NULL | {"columns": ["titel"]}, "names the column 'titel', which the rows of analytics.scores do not have"),
        ({"type": "range", "column": "title", "min": "a"}, "column 'title' is text, for which range is not defined"),
        ({"type": "range", "column": "score", "min": "low"}, "'low' is no value of column 'score'"),
        (
            {"type": "range", "column": "day", "min": "now"},
            "'now' is no value of column 'day', which is date; write it",
        ),
        ({"type": "accepted_values", "column": "id", "values": [1.5]}, "1.5 is no value of column 'id'"),
        ({"type": "accepted_values", "column": "kind", "values": [1]}, "put it in quotes"),
        ({"type": "sql", "query": "SELECT titel FROM mart"}, 'cannot be carried out: column "titel" does not exist'),
        ({"type": "sql", "query": "SELECT ctid FROM mart"}, 'cannot be carried out: column "ctid" does not exist'),
        (
            {"type": "sql", "query": "SELECT id FROM mart WHERE title > 5"},
            "cannot be carried out: operator does not exist",
        ),
    ],
)
def test_a_check_that_cannot_be_carried_out_is_refused_before_a_row_is_moved(
    connection: Connection, settings: Settings, check: dict[str, Any], reason: str
) -> None:
    fill_scores(connection, 4)
    pipeline = create_scores(connection, settings, [check])
    with pytest.raises(ConfigError) as found:
        validation.validate(pipeline.definition, settings)
    assert reason in str(found.value)
    executed = run(connection, settings, pipeline)
    assert isinstance(executed.error, ConfigError)
    assert executed.counts.read == 0


def test_a_column_without_equality_cannot_be_unique(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 1)
    query = "SELECT id, json_build_object('a', id) AS doc FROM ugc.scores"
    pipeline = create_scores(
        connection, settings, [{"type": "unique", "columns": ["doc"]}], source_query=query, key_columns=["id"]
    )
    with pytest.raises(ConfigError, match="could not identify an equality operator for type json"):
        validation.validate(pipeline.definition, settings)


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_columns_of_any_name_are_checked(connection: Connection, settings: Settings, mode: str) -> None:
    hostile = 'a"; DROP TABLE ugc.scores; --%s'
    fill_scores(connection, 3)
    pipeline = create_scores(
        connection,
        settings,
        [
            {"type": "not_null", "columns": [hostile]},
            {"type": "accepted_values", "column": hostile, "values": ["'; DROP TABLE ugc.scores; --%s", "title 1"]},
            {"type": "unique", "columns": [hostile, "rows with these values"]},
        ],
        mode,
        source_query='SELECT id, title AS "a""; DROP TABLE ugc.scores; --%s", score AS "rows with these values",'
        " modified FROM ugc.scores",
    )
    error = str(refused(run(connection, settings, pipeline)))
    assert "2 rows with another value" in error
    connection.execute("UPDATE ugc.scores SET title = 'title 1', modified = modified + interval '1 d'")
    error = str(refused(run(connection, settings, pipeline)))
    assert "3 rows with the same values" in error


# -- row_count --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ({"min": 11}, "the load has 10 rows, fewer than min 11"),
        ({"max": 9}, "the load has 10 rows, more than max 9"),
        ({"min_ratio": 0.9}, "the load has 10 rows, fewer than min_ratio 0.9 of the 20 rows of the mart"),
        ({"max_ratio": 0.4}, "the load has 10 rows, more than max_ratio 0.4 of the 20 rows of the mart"),
        ({"min": 10, "max": 10, "min_ratio": 0.5, "max_ratio": 0.5}, None),
    ],
)
def test_a_load_is_counted_by_itself_and_against_the_mart(
    connection: Connection, settings: Settings, check: dict[str, Any], reason: str | None
) -> None:
    fill_scores(connection, 20)
    pipeline = create_scores(connection, settings, [])
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.scores WHERE id > 10")
    changes.change(connection, settings, pipeline.id, {"checks": [{"type": "row_count"} | check]})
    executed = run(connection, settings, pipeline)
    if reason is None:
        assert executed.outcome is Outcome.FINISHED, executed.error
    else:
        assert reason in str(refused(executed))
        shown = visible(connection)
        assert shown is not None
        assert len(shown) == 20


def test_changes_of_an_incremental_pipeline_are_not_counted_and_validate_says_so(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 10)
    pipeline = create_scores(connection, settings, [COUNT | {"min": 5}], "incremental")
    succeed(connection, settings, pipeline)
    assert results(connection, pipeline)["row_count"]["rows"] == 10
    add_scores(connection, 11, 11)
    succeed(connection, settings, pipeline)
    found = validation.validate(pipeline.definition, settings).findings
    assert "CHECK_LOADS_ONLY" in [finding.code for finding in found if finding.note]


# -- rows of a batch and those of the mart ----------------------------------------------------------------------------


@pytest.mark.promise("M2")
def test_a_changed_row_is_compared_with_the_rows_that_stay(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 300)
    pipeline = create_scores(connection, settings, [UNIQUE], "incremental")
    succeed(connection, settings, pipeline)
    change_score(connection, [5], "title", "title 200")
    assert "for example 5;" in str(refused(run(connection, settings, pipeline))).replace(". Correct", "; Correct")
    connection.execute("UPDATE ugc.scores SET title = 'title 5', modified = now() - interval '1 h' WHERE id = 200")
    succeed(connection, settings, pipeline)  # both rows have exchanged their titles


@pytest.mark.promise("M2")
def test_a_row_that_is_deleted_in_the_same_batch_does_not_repeat_a_value(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 3)
    query = "SELECT id, title, kind = 'gone' AS gone, modified FROM ugc.scores"
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    pipeline = create_scores(connection, settings, [UNIQUE], "incremental", source_query=query, options=options)
    succeed(connection, settings, pipeline)
    change_score(connection, [1], "kind", "gone")
    change_score(connection, [2], "title", "title 1")
    succeed(connection, settings, pipeline)
    shown = visible(connection)
    assert shown is not None
    assert {one: row["title"] for one, row in shown.items()} == {2: "title 1", 3: "title 3"}


@pytest.mark.promise("M2")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_rows_in_quarantine_are_not_checked_and_the_others_are(
    connection: Connection, settings: Settings, mode: str
) -> None:
    fill_scores(connection, 1)
    connection.execute(
        "CREATE TABLE analytics.scores (id integer PRIMARY KEY, title varchar(10), kind text, score numeric,"
        " ratio double precision, day date, modified timestamptz)"
    )
    pipeline = create_scores(connection, settings, [RANGE], mode, options={"on_reject": "quarantine"})
    succeed(connection, settings, pipeline)
    add_scores(connection, 2, 50)
    change_score(connection, [20], "title", "much too long a title")
    change_score(connection, [20], "score", "11")
    assert succeed(connection, settings, pipeline).counts.rejected == 1
    assert results(connection, pipeline)["range (score)"]["passed"]
    change_score(connection, [30], "score", "11")
    change_score(connection, [21], "title", "another long title")
    error = refused(run(connection, settings, pipeline))
    assert "1 row outside" in str(error)
    assert "for example 30" in str(error)


def test_a_backfill_and_the_catch_up_of_a_full_load_are_checked_as_well(
    connection: Connection, settings: Settings
) -> None:
    from vitrine.core.status import RequestKind, RunOptions

    fill_scores(connection, 10)
    pipeline = create_scores(connection, settings, [RANGE], "incremental")
    succeed(connection, settings, pipeline)
    before = visible(connection)
    connection.execute("UPDATE ugc.scores SET score = 11 WHERE id = 5")  # without a new cursor
    options = RunOptions(backfill_from="2024-01-01 00:00:00+00", backfill_to="2024-01-02 00:00:00+00")
    refused(run(connection, settings, pipeline, kind=RequestKind.BACKFILL, options=options))
    assert visible(connection) == before
    assert status_of(connection, pipeline) is Status.IDLE


# -- checks of type sql -----------------------------------------------------------------------------------------------


@pytest.mark.promise("M5")
def test_a_query_that_takes_too_long_ends_the_run_and_publishes_nothing(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 3000)
    slow = {
        "type": "sql",
        "name": "slow",
        "query": "SELECT 1 FROM mart a, mart b, mart c WHERE a.ratio + b.ratio > c.id + 9",
    }
    pipeline = create_scores(connection, settings, [slow], options={"batch_timeout": "1s"})
    error = str(refused(run(connection, settings, pipeline)))
    assert "check 'slow': takes longer than options.batch_timeout, 1s" in error
    assert visible(connection) is None


@pytest.mark.promise("M5")
def test_a_query_cannot_fill_the_disk_with_temporary_files(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 3000)
    large = {"type": "sql", "name": "large", "query": "SELECT a.title FROM mart a, mart b ORDER BY a.title, b.title"}
    pipeline = create_scores(connection, settings, [large])
    limited = settings.model_copy(update={"connectors": {"postgres": {"temp_file_limit": "1MB"}}})
    error = str(refused(run(connection, limited, pipeline)))
    assert "check 'large': cannot be carried out: temporary file size exceeds" in error
    assert visible(connection) is None


@pytest.mark.promise("M5")
@pytest.mark.parametrize("severity", ["fail", "warn"])
def test_a_query_that_fails_at_a_row_is_a_check_that_has_not_passed(
    connection: Connection, settings: Settings, severity: str
) -> None:
    fill_scores(connection, 3)
    wrong = {
        "type": "sql",
        "name": "wrong",
        "severity": severity,
        "query": "SELECT id FROM mart WHERE title::integer > 1",
    }
    pipeline = create_scores(connection, settings, [wrong])
    executed = run(connection, settings, pipeline)
    result = results(connection, pipeline)["wrong"]
    assert not result["passed"]
    assert result["text"].startswith("cannot be carried out: 22P02 InvalidTextRepresentation")
    assert "title 1" not in result["text"]
    assert (executed.error is None) is (severity == "warn")
    assert (visible(connection) is not None) is (severity == "warn")


@pytest.mark.promise("M5")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id FROM mart; DELETE FROM analytics.scores", "exactly one"),
        ("DELETE FROM mart", "not a SELECT"),
        ("SELECT * FROM etl.etl_tokens", "table 'etl.etl_tokens' cannot be read by a check"),
        ("SELECT id FROM mart WHERE EXISTS (SELECT FROM pg_catalog.pg_authid)", "cannot be read by a check"),
        ("SELECT pg_sleep(100) FROM mart", "function 'pg_sleep' cannot be called by a check"),
        ("SELECT content.f(id) FROM mart", "function 'content.f' cannot be called by a check"),
        ("SELECT id FROM mart WHERE id > $1", "parameter $1 has no value in a check"),
        ("SELECT id INTO TEMP x FROM mart", "INTO creates a table"),
        ("SELECT id FROM mart FOR UPDATE", "locks rows"),
        ("SELECT 1", "does not read mart"),
    ],
)
def test_a_query_may_read_nothing_but_the_rows(
    connection: Connection, settings: Settings, query: str, reason: str
) -> None:
    fill_scores(connection, 1)
    with pytest.raises(ConfigError) as refusal:
        create_scores(connection, settings, [{"type": "sql", "name": "mine", "query": query}])
    assert reason in str(refusal.value)
    assert str(refusal.value).startswith("check 'mine'")


@pytest.mark.promise("M5")
def test_a_check_can_change_nothing_even_if_the_policy_let_it(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrine.connectors.postgres.sink import row_checks
    from vitrine.sql import policy

    class Writes:
        def over(self, rows: str) -> str:
            return f"SELECT nextval('ugc.numbers') FROM ({rows}) AS mart"

    connection.execute("CREATE SEQUENCE ugc.numbers")
    fill_scores(connection, 3)
    pipeline = create_scores(connection, settings, [SQL])

    def let_everything(query: str) -> Writes:
        return Writes()

    monkeypatch.setattr(row_checks, "check_sql", let_everything)
    assert policy.check_sql(SQL["query"])
    executed = run(connection, settings, pipeline)
    assert "ReadOnlySqlTransaction" in str(executed.error)
    row = connection.execute("SELECT is_called FROM ugc.numbers").fetchone()
    assert row == {"is_called": False}


def test_writes_go_on_after_a_check_in_the_same_transaction(connection: Connection, settings: Settings) -> None:
    """The subtransaction of a check is read-only, the one around it is not."""
    fill_scores(connection, 250)
    pipeline = create_scores(connection, settings, EVERY)
    succeed(connection, settings, pipeline)
    change_score(connection, [5], "title", "another")
    assert succeed(connection, settings, pipeline).counts.written == 1


# -- the definition ---------------------------------------------------------------------------------------------------


def test_checks_are_stored_exported_and_changed_without_a_choice_for_the_state(
    connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 3)
    pipeline = create_scores(connection, settings, EVERY, "incremental")
    succeed(connection, settings, pipeline)
    stored = pipelines.get(connection, pipeline.id).definition
    assert stored == pipeline.definition
    assert stored.model_dump(mode="json", exclude_defaults=True)["checks"] == EVERY
    changed = changes.change(connection, settings, pipeline.id, {"checks": [NOT_NULL | {"severity": "warn"}]})
    assert changed.config_version == pipeline.config_version + 1
    assert changed.definition.checks[0].severity == "warn"
    assert state.load_state(connection, pipeline.id).has_checkpoint
    differences = changes.differences(pipeline, changed)
    assert [one.field for one in differences] == ["checks"]


def test_a_run_uses_the_checks_that_it_has_captured(connection: Connection, settings: Settings) -> None:
    fill_scores(connection, 250)
    change_score(connection, [200], "score", "11")
    pipeline = create_scores(connection, settings, [])

    def add_check(counts: object, expected: int | None) -> None:
        changes.change(connection, settings, pipeline.id, {"checks": [RANGE]})

    succeed(connection, settings, pipeline, watch=add_check)
    refused(run(connection, settings, pipeline))


def test_two_checks_of_one_name_are_refused() -> None:
    fields = {"name": "a", "target_table": TARGET, "checks": [RANGE, RANGE | {"max": 11}]}
    with pytest.raises(ValueError, match="two checks have the name 'range \\(score\\)'"):
        Definition.model_validate(fields)


# -- by the API -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("M4")
def test_the_api_creates_changes_and_shows_checks_and_their_results(
    client: TestClient, connection: Connection, settings: Settings
) -> None:
    fill_scores(connection, 3)
    change_score(connection, [2], "score", "11")
    body = {"name": "scores", "source_query": SCORES, "target_table": TARGET, "key_columns": ["id"], "checks": [RANGE]}
    created = client.post("/pipelines", json=body)
    assert created.status_code == 201, created.text
    assert created.json()["checks"][0] | RANGE == created.json()["checks"][0]
    refused_body = client.patch("/pipelines/scores", json={"checks": [{"type": "not_null", "columns": ["nowhere"]}]})
    assert (refused_body.status_code, refused_body.json()["code"]) == (422, "CHECK_COLUMN")
    pipeline = pipelines.get(connection, "scores")
    refused(run(connection, settings, pipeline))
    failed = client.get("/pipelines/scores/status").json()["last_run"]
    assert failed["checks"] == [
        {
            "name": "range (score)",
            "type": "range",
            "severity": "fail",
            "passed": False,
            "rows": 1,
            "keys": ["2"],
            "text": "1 row outside the range of 'score' (min 0, max 10), for example 2",
        }
    ]
    assert client.get(f"/pipelines/scores/runs/{failed['id']}").json()["checks"] == failed["checks"]
    changed = client.patch("/pipelines/scores", json={"checks": [RANGE | {"severity": "warn"}]})
    assert changed.status_code == 200, changed.text
    succeed(connection, settings, pipeline)
    (shown, *_) = client.get("/pipelines/scores/runs").json()["items"]
    assert [(one["severity"], one["passed"]) for one in shown["checks"]] == [("warn", False)]
