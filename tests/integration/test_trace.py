"""Trace: why one row of a mart is wrong, in a sentence with the remedy; and the resend of a single key."""

from collections.abc import Iterator, Sequence

import polars as pl
import pytest
from pydantic import SecretStr

from tests.helpers.events import create_events, create_filled, events_are_right, fill_events
from tests.helpers.reconciling import keys, last_result, report
from tests.helpers.running import create, run, run_one_batch, succeed
from tests.helpers.tasks import register
from tests.helpers.tracing import differing, resend, trace
from vitrine.core.rows import Cursor, Row
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.errors import ConfigError, TransientError
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, state

FILMS = """
    CREATE TABLE content.films (id integer PRIMARY KEY, title text, rating numeric, modified timestamptz NOT NULL);
    INSERT INTO content.films SELECT n, 'film ' || n, n, '2024-01-01'::timestamptz + n * interval '1 s'
      FROM generate_series(1, 20) n;
    CREATE TABLE analytics.films (id integer PRIMARY KEY, title text, rating numeric(3, 1), modified timestamptz);
"""


def without_bad_films(rows: Sequence[Row]) -> Sequence[Row]:
    return [row for row in rows if row["rating"] > 2]


def with_numbers(rows: Sequence[Row]) -> Sequence[Row]:
    return [row | {"amount": int(row["amount"])} if row["amount"].isdigit() else row for row in rows]


def shouting(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(note=pl.col("note").str.to_uppercase())


def newest_first(after: Cursor | None) -> Iterator[Row]:
    """In the order of its cursor, not of its key."""
    for number in range(1, 8):
        if after is None or number > int(after[0]):
            yield {"n": 10 - number, "word": f"word {number}", "moved": number}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (("n", "integer"), ("word", "text"), ("moved", "integer"))
    register(monkeypatch, Task("without_bad_films", Kind.ROW, without_bad_films, None))
    register(monkeypatch, Task("with_numbers", Kind.ROW, with_numbers, None))
    register(monkeypatch, Task("shouting", Kind.FRAME, shouting, None))
    register(monkeypatch, Task("newest_first", Kind.READER, newest_first, None, columns))


@pytest.fixture
def films(connection: Connection, settings: Settings) -> Pipeline:
    connection.execute(FILMS)
    pipeline = create(
        connection,
        settings,
        name="films",
        target_table="analytics.films",
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        key_columns=["id"],
        options={"on_reject": "quarantine"},
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, title, rating, modified FROM content.films"},
            {"order_index": 2, "task_type": "PYTHON", "body": "without_bad_films"},
        ],
    )
    connection.execute("UPDATE content.films SET rating = 1000 WHERE id = 9")
    succeed(connection, settings, pipeline)
    return pipeline


WRONG_FILMS = [
    # changed, and the next run reads it
    ("UPDATE content.films SET title = 'x', modified = now() WHERE id = 3", 3, "waiting", "its cursor is after the"),
    # the rating does not fit the target
    ("SELECT 1", 9, "quarantined", "is in quarantine: "),
    ("UPDATE content.films SET title = 'x' WHERE id = 4", 4, "cursor_not_moved", "the checkpoint has passed its"),
    ("UPDATE analytics.films SET title = 'x' WHERE id = 5", 5, "cursor_not_moved", "differs from analytics.films in t"),
    ("DELETE FROM content.films WHERE id = 6", 6, "deleted_at_source", "delete_mode is none, so no run removes it"),
    ("DELETE FROM analytics.films WHERE id = 7", 7, "missing", "it was deleted from the target, or became visible"),
    ("SELECT 1", 2, "filtered", "transform 'without_bad_films' returns no row for this key"),
    ("SELECT 1", 8, "equal", "the row of analytics.films equals the source"),
    ("SELECT 1", 99, "not_found", "neither the source nor analytics.films has a row with this key"),
]


@pytest.mark.promise("R9")
@pytest.mark.parametrize("paused", [False, True])
def test_each_wrong_film_has_its_own_reason(
    connection: Connection, settings: Settings, films: Pipeline, paused: bool
) -> None:
    for damage, *_ in WRONG_FILMS:
        connection.execute(damage)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if paused:
        pipelines.request_pause(connection, films.id)
    for _, key, standing, sentence in WRONG_FILMS:
        found = trace(settings, films, str(key))
        if paused and standing == "waiting":
            standing, sentence = "blocked", "but no run starts: the pipeline is paused since"
        assert (found.standing, sentence in found.sentence) == (standing, True), found.sentence
        assert (found.remedy is None) == (standing == "equal")
        assert found.status is (Status.PAUSED if paused else Status.IDLE)
    assert state.load_state(connection, films.id).batch_seq == 1  # nothing was written


@pytest.mark.promise("R9")
def test_a_trace_shows_the_row_on_its_way_column_by_column(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    connection.execute("UPDATE analytics.films SET title = 'by hand', rating = NULL WHERE id = 5")
    found = trace(settings, films, "5")
    assert [row["title"] for row in (*found.source, *found.steps[0].rows, *found.target_rows)] == [
        "film 5",
        "film 5",
        "by hand",
    ]
    assert [step.transform for step in found.steps] == ["without_bad_films"]
    assert found.target_rows[0]["rating"] is None
    assert differing(found) == ["title", "rating"]
    assert found.cursor == ["2024-01-01 00:00:05+00", "5"]
    assert found.checkpoint == ["2024-01-01 00:00:20+00", "20"]
    assert trace(settings, films, "9").reject is not None


@pytest.mark.promise("R9")
def test_a_trace_and_a_deep_reconcile_agree_about_every_key(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 30)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.events SET note = note || ' ' WHERE id % 5 = 0")
    connection.execute("DELETE FROM analytics.events WHERE id % 7 = 0")
    connection.execute("DELETE FROM ugc.events WHERE id % 11 = 0")
    named = {"missing": "missing", "extra": "deleted_at_source", "different": "cursor_not_moved"}
    wrong = {key: named[kind] for kind, some in keys(report(connection, settings, pipeline)).items() for key in some}
    for number in range(1, 31):
        found = trace(settings, pipeline, str(number))
        assert found.standing == wrong.get(str(number), "equal"), number


@pytest.mark.promise("R10")
def test_a_resend_writes_just_this_key_and_the_checkpoint_stays(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 30)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.events SET note = 'by hand' WHERE id IN (4, 5)")
    before = state.load_state(connection, pipeline.id)
    executed = resend(connection, settings, pipeline, "4")
    assert (executed.error, executed.counts.read, executed.counts.written) == (None, 1, 1)
    assert last_result(connection, pipeline) == {
        "resent": 1,
        "deleted": 0,
        "standing": "equal",
        "sentence": "the row of analytics.events equals the source",
    }
    assert (trace(settings, pipeline, "4").standing, trace(settings, pipeline, "5").standing) == (
        "equal",
        "cursor_not_moved",
    )
    assert state.load_state(connection, pipeline.id).position == before.position
    assert pipelines.get(connection, pipeline.id).status is Status.IDLE


@pytest.mark.promise("R10")
def test_a_key_that_only_the_target_has_is_deleted_only_if_that_is_asked_for(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "incremental", 10)
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.events WHERE id = 4")
    assert resend(connection, settings, pipeline, "4").error is None
    assert last_result(connection, pipeline)["standing"] == "deleted_at_source"
    # a key that the source has is never deleted
    assert resend(connection, settings, pipeline, "5", delete=True).error is None
    assert last_result(connection, pipeline)["deleted"] == 0
    assert resend(connection, settings, pipeline, "4", delete=True).error is None
    assert last_result(connection, pipeline) == {
        "resent": 0,
        "deleted": 1,
        "standing": "not_found",
        "sentence": "neither the source nor analytics.events has a row with this key",
    }
    assert events_are_right(connection)


def test_a_paused_pipeline_stays_paused_after_a_resend(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 10)
    succeed(connection, settings, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    connection.execute("DELETE FROM analytics.events WHERE id = 4")
    assert resend(connection, settings, pipeline, "4").error is None
    assert pipelines.get(connection, pipeline.id).status is Status.PAUSED
    assert events_are_right(connection)


def test_a_resend_of_a_row_that_does_not_fit_leaves_it_in_quarantine(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    assert resend(connection, settings, films, "9").error is None
    assert last_result(connection, films)["standing"] == "quarantined"
    connection.execute("UPDATE content.films SET rating = 7 WHERE id = 9")
    assert resend(connection, settings, films, "9").error is None
    assert (last_result(connection, films)["standing"], checkpoint.count_open(connection, films.id)) == ("equal", 0)


def test_a_resend_into_a_missing_target_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    pipeline = create_events(connection, settings, "full")
    error = resend(connection, settings, pipeline, "1").error
    assert error is not None
    assert error.code == "TARGET_MISSING"


def test_a_mart_that_was_dropped_is_named_with_what_builds_it_again(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 10)
    succeed(connection, settings, pipeline)
    connection.execute("DROP TABLE analytics.events")
    found = trace(settings, pipeline, "7")
    assert (found.standing, found.sentence.partition(":")[0]) == (
        "missing",
        "analytics.events does not exist, although the pipeline has a checkpoint",
    )
    assert found.remedy == f"ask for a full run with `vitrine run {pipeline.name} --full`, or reset the state"
    assert run(connection, settings, pipeline, full=True).error is None
    assert trace(settings, pipeline, "7").standing == "equal"


def test_a_resend_beside_a_load_that_is_not_published_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 300)
    pipeline = create_events(connection, settings, "full")
    succeed(connection, settings, pipeline)
    run_one_batch(connection, settings, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    error = resend(connection, settings, pipeline, "1").error
    assert error is not None
    assert error.code == "LOAD_OPEN"


# -- other pipelines --------------------------------------------------------------------------------------------------


def test_a_pipeline_without_a_run_waits_for_its_first_one(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    pipeline = create_events(connection, settings, "incremental")
    found = trace(settings, pipeline, "2")
    assert (found.standing, "analytics.events, which does not exist yet" in found.sentence) == ("waiting", True)
    assert (found.target_rows, found.checkpoint) == ([], None)


def test_a_full_mart_is_corrected_by_its_next_load(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 10)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.events SET note = 'x' WHERE id = 1")
    connection.execute("DELETE FROM ugc.events WHERE id = 2")
    assert "the next run loads every row again" in trace(settings, pipeline, "1").sentence
    found = trace(settings, pipeline, "2")
    assert (found.standing, "the next load removes it" in found.sentence) == ("deleted_at_source", True)


@pytest.mark.parametrize("mode", ["soft_column", "reconcile_keys"])
def test_the_sentence_names_what_delete_mode_does(connection: Connection, settings: Settings, mode: str) -> None:
    fill_events(connection, 10)
    connection.execute("ALTER TABLE ugc.events ADD gone boolean")
    column = {"delete_column": "gone"} if mode == "soft_column" else {}
    pipeline = create_events(
        connection,
        settings,
        "incremental",
        source_query="SELECT id, note, modified, gone FROM ugc.events",
        options={"delete_mode": mode, **column},
    )
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.events WHERE id = 2")
    connection.execute("UPDATE ugc.events SET gone = true WHERE id = 3")
    connection.execute("UPDATE ugc.events SET gone = true, modified = now() WHERE id = 4")
    found = trace(settings, pipeline, "2")
    expected = "follows marks only" if mode == "soft_column" else "in the next run that compares the keys"
    assert (found.standing, expected in found.sentence) == ("deleted_at_source", True)
    marked = trace(settings, pipeline, "3")
    assert marked.standing == "cursor_not_moved"
    assert trace(settings, pipeline, "4").standing == "waiting"
    if mode == "soft_column":
        assert "marked as deleted at the source and still in the target" in marked.sentence
        assert resend(connection, settings, pipeline, "3").error is None
        found = trace(settings, pipeline, "3")
        assert (found.standing, "the source marks the row as deleted" in found.sentence) == ("equal", True)


def test_a_row_without_a_cursor_is_explained(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 5)
    connection.execute("ALTER TABLE ugc.events ALTER modified DROP NOT NULL")
    pipeline = create_events(connection, settings, "incremental", options={"on_null_cursor": "ignore"})
    succeed(connection, settings, pipeline)
    connection.execute("INSERT INTO ugc.events VALUES (77, 'x', NULL)")
    found = trace(settings, pipeline, "77")
    assert (found.standing, found.cursor) == ("null_cursor", [None, "77"])


def test_a_repeated_key_is_named(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.twice (id integer, note text)")
    connection.execute("INSERT INTO ugc.twice VALUES (1, 'a'), (1, 'b'), (2, 'c')")
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, note FROM ugc.twice",
        target_table="analytics.twice",
        key_columns=["id"],
    )
    found = trace(settings, pipeline, "1")
    assert (found.standing, "the source returns 2 rows for this key" in found.sentence) == ("repeated", True)
    assert sorted(str(row["note"]) for row in found.source) == ["a", "b"]


def test_a_transform_that_fails_on_the_row_is_named(
    connection: Connection, settings: Settings, films: Pipeline
) -> None:
    connection.execute("UPDATE content.films SET rating = NULL WHERE id = 5")
    found = trace(settings, films, "5")
    assert found.standing == "transform_fails"
    assert "transform 'without_bad_films' raised TypeError" in found.sentence
    assert found.steps[0].error is not None


def test_a_frame_transform_is_followed(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3, note="'note ' || n")
    pipeline = create(
        connection,
        settings,
        target_table="analytics.loud",
        key_columns=["id"],
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, note, modified FROM ugc.events"},
            {"order_index": 2, "task_type": "PYTHON", "body": "shouting"},
        ],
    )
    succeed(connection, settings, pipeline)
    found = trace(settings, pipeline, "2")
    assert (found.standing, found.source[0]["note"], found.steps[0].rows[0]["note"]) == ("equal", "note 2", "NOTE 2")
    connection.execute("UPDATE analytics.loud SET note = 'note 2' WHERE id = 2")
    assert differing(trace(settings, pipeline, "2")) == ["note"]


def test_a_row_of_a_reader_is_traced_and_resent_though_it_comes_in_the_order_of_its_cursor(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create(
        connection,
        settings,
        python_task="newest_first",
        target_table="analytics.words",
        mode="incremental",
        incremental_key="moved",
        incremental_id_key="n",
        key_columns=["n"],
    )
    succeed(connection, settings, pipeline)
    assert trace(settings, pipeline, "5").standing == "equal"
    connection.execute("UPDATE analytics.words SET word = 'by hand' WHERE n = 5")
    found = trace(settings, pipeline, " 5")
    assert (found.standing, found.cursor, differing(found)) == ("cursor_not_moved", ["5", "5"], ["word"])
    assert resend(connection, settings, pipeline, "5").error is None
    assert trace(settings, pipeline, "5").standing == "equal"


def test_the_key_of_a_transform_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    pipeline = create(
        connection,
        settings,
        target_table="analytics.renamed",
        key_columns=["number"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, note, modified FROM ugc.events"},
            {"order_index": 2, "task_type": "PYTHON", "body": "map_fields", "options": {"rename": {"id": "number"}}},
        ],
    )
    succeed(connection, settings, pipeline)
    with pytest.raises(ConfigError, match="`vitrine reconcile --deep`") as refused:
        trace(settings, pipeline, "1")
    assert refused.value.code == "KEY_OF_TRANSFORM"


# -- keys -------------------------------------------------------------------------------------------------------------

KEYS = [
    ("text", "a/b c?&=#%", ["a/b c?&=#%"]),
    ("text", "Ünïcödé 映画 🎬", ["Ünïcödé 映画 🎬"]),
    ("text", "", [""]),
    ("text", "NULL", ["NULL"]),
    ("text", "tab\tline\nback\\slash'quote\"", ["tab\tline\nback\\slash'quote\""]),
    ("numeric", "1.50", ["1.5", "1.50", "1.500", "15e-1"]),
    ("uuid", "3d825f60-9fff-4dfe-b294-1a45fa1e115d", ["3D825F60-9FFF-4DFE-B294-1A45FA1E115D"]),
    ("bigint", "-9223372036854775808", ["-9223372036854775808"]),
    ("timestamptz", "2024-01-01 00:00:00.000001+00", ["2024-01-01T01:00:00.000001+01:00"]),
    ("date", "2024-02-29", ["2024-02-29"]),
    ("boolean", "t", ["true", "t"]),
    ("bytea", "\\x00ff", ["\\x00FF"]),
]


@pytest.mark.parametrize(("kind", "stored", "given"), KEYS)
def test_keys_of_every_kind_are_found_as_a_person_writes_them(
    connection: Connection, settings: Settings, kind: str, stored: str, given: list[str]
) -> None:
    connection.execute(f"CREATE TABLE ugc.keyed (id {kind} PRIMARY KEY, note text)")  # pyright: ignore[reportArgumentType, reportCallIssue]
    connection.execute(f"INSERT INTO ugc.keyed VALUES (%s::{kind}, 'x')", [stored])  # pyright: ignore[reportArgumentType, reportCallIssue]
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, note FROM ugc.keyed",
        target_table="analytics.keyed",
        key_columns=["id"],
    )
    succeed(connection, settings, pipeline)
    for text in given:
        found = trace(settings, pipeline, text)
        assert (found.standing, found.key) == ("equal", [stored])
    connection.execute("DELETE FROM ugc.keyed")
    for text in given:
        assert trace(settings, pipeline, text).standing == "deleted_at_source"


def test_a_padded_key_is_found_in_a_text_of_the_target(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.keyed (id character(5) PRIMARY KEY, note text)")
    connection.execute("INSERT INTO ugc.keyed VALUES ('a', 'x'), ('b', 'x')")
    connection.execute("CREATE TABLE analytics.keyed (id text PRIMARY KEY, note text)")
    query = "SELECT id, note FROM ugc.keyed"
    pipeline = create(connection, settings, source_query=query, target_table="analytics.keyed", key_columns=["id"])
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.keyed SET note = 'y' WHERE id = 'b'")
    found = trace(settings, pipeline, "a"), trace(settings, pipeline, "b")
    assert [(one.standing, differing(one)) for one in found] == [("equal", []), ("waiting", ["note"])]
    connection.execute("DELETE FROM ugc.keyed")
    assert trace(settings, pipeline, "a    ").standing == "deleted_at_source"


def test_a_key_of_several_columns_has_a_value_for_each(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.pairs (a integer, b text, note text, PRIMARY KEY (a, b))")
    connection.execute("INSERT INTO ugc.pairs VALUES (1, 'x|y', 'n'), (1, 'x', 'm')")
    pipeline = create(
        connection,
        settings,
        source_query="SELECT a, b, note FROM ugc.pairs",
        target_table="analytics.pairs",
        key_columns=["a", "b"],
    )
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.pairs SET note = 'z' WHERE b = 'x'")
    assert trace(settings, pipeline, "1", "x|y").standing == "equal"
    assert differing(trace(settings, pipeline, "1", "x")) == ["note"]
    assert resend(connection, settings, pipeline, "1", "x").error is None
    assert trace(settings, pipeline, "1", "x").standing == "equal"
    with pytest.raises(ConfigError, match=r"has the column\(s\) a, b, and 1 value\(s\) were given") as refused:
        trace(settings, pipeline, "1")
    assert refused.value.code == "KEY_WIDTH"


@pytest.mark.parametrize("key", ["abc", "", "1; DROP TABLE ugc.events", "1e99", "a\0b", "99999999999"])
def test_what_is_no_value_of_the_key_is_refused(connection: Connection, settings: Settings, key: str) -> None:
    pipeline = create_filled(connection, settings, "incremental", 3)
    with pytest.raises(ConfigError) as refused:
        trace(settings, pipeline, key)
    assert refused.value.code == "KEY_VALUE"


def test_a_source_that_is_down_is_a_transient_error(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 3)
    down = settings.model_copy(update={"sources": {"default": SecretStr("postgresql://x@127.0.0.1:1/none")}})
    with pytest.raises(TransientError, match="source"):
        trace(down, pipeline, "2")


def test_a_value_that_the_type_of_the_target_cannot_hold_is_compared_by_its_text(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE ugc.texts (id integer PRIMARY KEY, amount text)")
    connection.execute("INSERT INTO ugc.texts VALUES (1, '5'), (2, '6')")
    connection.execute("CREATE TABLE analytics.texts (id integer PRIMARY KEY, amount integer)")
    pipeline = create(
        connection,
        settings,
        target_table="analytics.texts",
        key_columns=["id"],
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, amount FROM ugc.texts"},
            {"order_index": 2, "task_type": "PYTHON", "body": "with_numbers"},
        ],
        options={"on_reject": "quarantine"},
    )
    succeed(connection, settings, pipeline)
    assert trace(settings, pipeline, "1").standing == "equal"
    connection.execute("UPDATE ugc.texts SET amount = 'many' WHERE id = 1")
    found = trace(settings, pipeline, "1")
    assert (found.standing, differing(found)) == ("waiting", ["amount"])
    assert found.not_compared is not None
    assert "many" not in found.not_compared


def test_long_values_are_shortened(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "full", 3)
    connection.execute("UPDATE ugc.events SET note = repeat('x', 2000000) WHERE id = 2")
    found = trace(settings, pipeline, "2")
    assert (len(found.source[0]["note"] or ""), found.shortened) == (10_001, ["note"])
