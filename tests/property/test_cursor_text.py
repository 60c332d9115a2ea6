"""A cursor is stored in PostgreSQL's text format, with microseconds, for every year."""

from collections.abc import Callable
from datetime import date, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.pq import Format

from tests.helpers.examples import round_trips
from tests.helpers.lanes import TASKS
from tests.helpers.running import create, succeed
from tests.property import values
from vitrine.connectors.postgres import cursor_codec
from vitrine.postgres import TEXT_FORMAT, Connection, raw
from vitrine.settings import Settings
from vitrine.store import pipelines, state

VALUES: dict[str, st.SearchStrategy[str]] = {
    "smallint": values.integers(16),
    "integer": values.integers(32),
    "bigint": values.integers(64),
    "timestamp with time zone": values.moments,
    "timestamp without time zone": values.moments,
    "date": values.dates,
    "uuid": values.uuids,
    "text": values.texts,
    "character varying": values.texts,
    "name": values.short_texts(12),
}
OIDS = {
    "smallint": cursor_codec.INT2,
    "integer": cursor_codec.INT4,
    "bigint": cursor_codec.INT8,
    "timestamp with time zone": cursor_codec.TIMESTAMPTZ,
    "timestamp without time zone": cursor_codec.TIMESTAMP,
    "date": cursor_codec.DATE,
    "uuid": cursor_codec.UUID_OID,
    "text": cursor_codec.TEXT,
    "character varying": cursor_codec.VARCHAR,
    "name": cursor_codec.NAME,
}
LAST_DAY, LAST_MOMENT = date(2020, 1, 1), datetime(2020, 1, 1)  # noqa: DTZ001
PROBES = 100  # each is a query to the database


def formats_of(connection: Connection, kind: str) -> Callable[[str], tuple[bytes, str]]:
    """A function that returns a value in PostgreSQL's binary format and in its text format."""
    statement = sql.SQL("SELECT CAST(CAST($1 AS text) AS {0}), CAST(CAST($1 AS text) AS {0})::text").format(raw(kind))
    query = statement.as_string(connection).encode()
    connection.execute("BEGIN;" + TEXT_FORMAT)

    def ask(text: str) -> tuple[bytes, str]:
        results = [
            connection.pgconn.exec_params(query, [text.encode()], [cursor_codec.TEXT], [Format.TEXT], form)
            for form in (Format.BINARY, Format.TEXT)
        ]
        sent, formatted = results[0].get_value(0, 0), results[1].get_value(0, 1)
        assert sent is not None
        assert formatted is not None
        return sent, formatted.decode()

    return ask


@pytest.mark.parametrize("kind", VALUES)
def test_the_text_of_a_cursor_is_that_of_postgresql(kind: str, connection: Connection) -> None:
    ask, formatter = formats_of(connection, kind), cursor_codec.formatter(OIDS[kind])

    @round_trips(PROBES)
    @given(text=VALUES[kind])
    def formats(text: str) -> None:
        sent, formatted = ask(text)
        ours = formatter(sent) if formatter else None
        assert ours is None or ours == formatted  # None: PostgreSQL itself formats the value

    formats()


@pytest.mark.parametrize("kind", ["timestamp with time zone", "timestamp without time zone"])
def test_times_from_year_1_to_9999_are_formatted_without_a_query(kind: str, connection: Connection) -> None:
    ask, formatter = formats_of(connection, kind), cursor_codec.formatter(OIDS[kind])
    assert formatter is not None

    @round_trips(PROBES)
    @given(moment=st.datetimes())
    @example(moment=datetime(1, 1, 1))  # noqa: DTZ001
    @example(moment=datetime(999, 12, 31, 23, 59, 59, 999_990))  # noqa: DTZ001
    @example(moment=datetime(9999, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001
    def formats(moment: datetime) -> None:
        sent, formatted = ask(str(moment))
        assert formatter(sent) == formatted

    formats()


@pytest.mark.parametrize("kind", ["timestamp with time zone", "timestamp without time zone", "date", "bigint"])
def test_the_stored_checkpoint_is_the_text_of_the_last_row(
    kind: str, connection: Connection, settings: Settings
) -> None:
    statement = sql.SQL("CREATE TABLE ugc.dated (id bigint PRIMARY KEY, moment {})").format(raw(kind))
    connection.execute(statement)
    insert = sql.SQL("INSERT INTO ugc.dated VALUES (1, CAST(CAST(%s AS text) AS {}))").format(raw(kind))
    # The checkpoint does not pass the horizon, so only past times are the last row's own
    past = {"bigint": values.integers(64), "date": st.dates(max_value=LAST_DAY).map(str)}

    @round_trips(12)
    @given(
        text=past.get(kind, st.datetimes(max_value=LAST_MOMENT).map(str)),
        task=st.sampled_from((None, TASKS["rows seen"], TASKS["frames"])),
    )
    def stores(text: str, task: str | None) -> None:
        connection.execute("TRUNCATE ugc.dated; DROP TABLE IF EXISTS analytics.dated")
        connection.execute(insert, [text])
        pipeline = create(
            connection,
            settings,
            source_query="SELECT id, moment FROM ugc.dated",
            target_table="analytics.dated",
            mode="incremental",
            incremental_key="moment",
            key_columns=["id"],
            python_task=task,
            options={"cursor_is_monotonic": kind == "bigint"},
        )
        try:
            succeed(connection, settings, pipeline)
            row = connection.execute("SELECT moment::text AS formatted FROM ugc.dated").fetchone()
            assert row is not None
            assert state.load_state(connection, pipeline.id).position.cursor == (row["formatted"], "1")
            assert succeed(connection, settings, pipeline).counts.read == 0
        finally:
            pipelines.delete(connection, pipeline.id)

    stores()
