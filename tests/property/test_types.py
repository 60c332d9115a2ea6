"""Every value of every type arrives in the mart unchanged, in every lane."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from tests.helpers.examples import EXAMPLES, round_trips
from tests.helpers.lanes import TASKS, Lane
from tests.helpers.running import create, run
from tests.property import values
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import pipelines

TARGET = "analytics.typed"

# -- columns ----------------------------------------------------------------------------------------------------------

MOODS = st.sampled_from(("fine", "so, so", 'quo"ted', "back\\slash", "NULL", ""))
PAIRS = values.pairs(values.integers(32), values.texts)

Columns = dict[str, tuple[str, st.SearchStrategy[str]]]

GROUPS: dict[str, Columns] = {
    "numbers": {
        "small": ("smallint", values.integers(16)),
        "usual": ("integer", values.integers(32)),
        "big": ("bigint", values.integers(64)),
        "exact": ("numeric", values.numerics),
        "scaled": ("numeric(12,4)", st.one_of(values.scaled, st.just("NaN"))),
        "single": ("real", values.floats(32)),
        "double": ("double precision", values.floats(64)),
        "object": ("oid", st.integers(0, 2**32 - 1).map(str)),
        "cash": ("money", st.integers(-(10**6), 10**6).map(lambda cents: f"{cents / 100:.2f}")),
        "truth": ("boolean", values.booleans),
    },
    "texts": {
        "plain": ("text", values.texts),
        "short": ("character varying(60)", values.short_texts(60)),
        "padded": ("character(12)", values.short_texts(12)),
        "named": ("name", values.short_texts(12)),
        "octets": ("bytea", values.octets),
        "unique": ("uuid", values.uuids),
    },
    "times": {
        "local": ("timestamp without time zone", values.moments),
        "rounded": ("timestamp(3) with time zone", values.usual_moments),
        "day": ("date", values.dates),
        "hour": ("time without time zone", values.times),
        "span": ("interval", values.intervals),
    },
    # no column of a type that makes a frame travel as text
    "plain times": {
        "local": ("timestamp without time zone", values.moments),
        "day": ("date", values.dates),
        "document": ("jsonb", values.jsons),
        "unique": ("uuid", values.uuids),
        "text": ("text", values.texts),
        "truth": ("boolean", values.booleans),
    },
    "documents": {
        "json": ("json", values.jsons),
        "jsonb": ("jsonb", values.jsons),
        "search": ("tsvector", st.sampled_from(("", "'a':1 'b\\\\c':2A"))),
    },
    "arrays": {
        "texts": ("text[]", values.arrays(values.texts)),
        "numbers": ("numeric[]", values.arrays(values.numerics)),
        "bounded": ("integer[]", values.bounded),
        "octets": ("bytea[]", values.arrays(values.octets)),
        "moments": ("timestamp with time zone[]", values.arrays(values.moments)),
        "spans": ("interval[]", values.arrays(values.intervals)),
        "documents": ("jsonb[]", values.arrays(values.jsons)),
        "truths": ("boolean[]", values.arrays(values.booleans)),
        "uuids": ("uuid[]", values.arrays(values.uuids)),
        "floats": ("double precision[]", values.arrays(values.floats(64))),
    },
    "own": {
        "mood": ("content.mood", MOODS),
        "moods": ("content.mood[]", values.arrays(MOODS)),
        "title": ("content.title", values.short_texts(20)),
        "price": ("content.price", values.scaled),
        "temper": ("content.temper", MOODS),
        "titles": ("content.title[]", values.arrays(values.short_texts(20))),
        "pair": ("content.pair", PAIRS),
        "pairs": ("content.pair[]", values.arrays(PAIRS)),
    },
    "places": {
        "host": ("inet", st.one_of(st.ip_addresses().map(str), st.sampled_from(("10.1.2.3/8", "::1/64", "0.0.0.0/0")))),
        "network": ("cidr", st.sampled_from(("10.0.0.0/8", "192.168.1.0/24", "2001:db8::/32"))),
        "card": ("macaddr", st.sampled_from(("08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"))),
        "bits": ("bit(5)", st.text("01", min_size=5, max_size=5)),
        "many_bits": ("bit varying", st.text("01", max_size=9)),
        "point": ("point", values.phrase("({},{})", values.floats(64), values.floats(64))),
        "box": ("box", st.just("(3,4),(1,2)")),
        "boxes": ("box[]", st.sampled_from(("{(3,4),(1,2)}", "{(3,4),(1,2);(5,6),(5,5)}", "{}"))),
        "span": ("int4range", st.sampled_from(("empty", "[1,5)", "(,)", "[3,)", "(,7]"))),
        "exact": ("numrange", st.sampled_from(("empty", "[1.0,1.00]", "(,2.50)", "[0.1,)"))),
        "period": ("tstzrange", st.sampled_from(('["2024-01-01 00:00:00.000001",infinity]', '["0044-03-15 BC",)'))),
        "spans": ("int4multirange", st.sampled_from(("{}", "{[1,3),[5,8)}"))),
        "log": ("pg_lsn", st.just("16/B374D848")),
    },
}


def joined(*groups: str) -> Columns:
    """One table with the columns of several groups."""
    return {f"{group} {name}": column for group in groups for name, column in GROUPS[group].items()}


# A frame travels as text if one of its columns does. In every other lane a column does not depend on the others, and
# one run carries many.
WIDE: dict[str, Columns] = {
    "numbers, texts and times": joined("numbers", "texts", "times", "plain times"),
    "documents and places": joined("documents", "places"),
    "arrays and own types": joined("arrays", "own"),
}
WIDE_EXAMPLES = EXAMPLES + 2
"""Each draws once for all of its groups whether the mart exists, and the mode."""

CARRIERS = {
    "content.mood": "text",
    "content.mood[]": "text[]",
    "content.title": "text",
    "content.price": "numeric(14,4)",
    "content.temper": "text",
    "content.title[]": "text[]",
    "content.pair": "jsonb",
    "content.pair[]": "jsonb",
}
"""How the types of the source's owner arrive."""

_TYPES = """
    CREATE TYPE content.mood AS ENUM ('fine', 'so, so', 'quo"ted', 'back\\slash', 'NULL', '');
    CREATE DOMAIN content.title AS text CHECK (length(VALUE) <= 20);
    CREATE DOMAIN content.price AS numeric(14, 4);
    CREATE DOMAIN content.temper AS content.mood;
    CREATE TYPE content.pair AS (number integer, label text);
"""


# -- the round trip ---------------------------------------------------------------------------------------------------


class Journey:
    """A source table with the columns of a group, and the pipelines that load it."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        lane: Lane,
        types: Mapping[str, str],
        *,
        in_mart: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._lane: Lane = lane
        self._types = types
        self._types_in_mart = in_mart or types  # if the mart exists before the run
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), raw(kind)) for name, kind in types.items()]
        connection.execute("DROP TABLE IF EXISTS ugc.typed")
        connection.execute(
            sql.SQL("CREATE TABLE ugc.typed (id bigint PRIMARY KEY, {})").format(sql.SQL(", ").join(columns))
        )
        names = sql.SQL(", ").join(map(sql.Identifier, types))
        self.query = sql.SQL("SELECT id, {} FROM ugc.typed").format(names).as_string(connection)

    def carry(self, rows: Sequence[Mapping[str, str | None]], *, exists: bool, mode: str) -> list[str]:
        """Write the rows to the source and run; returns the differences in the mart."""
        connection, settings = self._connection, self._settings
        connection.execute("TRUNCATE ugc.typed; DROP TABLE IF EXISTS analytics.typed")
        self._fill(rows)
        if exists:
            self._create_target()
        pipeline = create(
            connection,
            settings,
            source_query=self.query,
            target_table=TARGET,
            mode=mode,
            incremental_key="id" if mode == "incremental" else None,
            key_columns=["id"],
            python_task=TASKS[self._lane],
            batch_size=3,
        )
        try:
            first = run(connection, settings, pipeline)
            if first.error is not None:
                return [str(first.error)]
            again = run(connection, settings, pipeline)
            written = [f"{again.counts.written} rows were written again"] if again.error or again.counts.written else []
            return self._differences() + written
        finally:
            pipelines.delete(connection, pipeline.id)

    def _fill(self, rows: Sequence[Mapping[str, str | None]]) -> None:
        casts = [sql.SQL("CAST(CAST(%s AS text) AS {})").format(raw(kind)) for kind in self._types.values()]
        statement = sql.SQL("INSERT INTO ugc.typed VALUES (%s, {})").format(sql.SQL(", ").join(casts))
        with self._connection.cursor() as cursor:
            cursor.executemany(
                statement, [[number, *(row[name] for name in self._types)] for number, row in enumerate(rows)]
            )

    def _create_target(self) -> None:
        """A mart with another column order, an identity key, a generated column and a column of another application."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), raw(kind)) for name, kind in self._types_in_mart.items()
        ]
        self._connection.execute(
            sql.SQL(
                "CREATE TABLE analytics.typed ({}, noted timestamptz DEFAULT now(),"
                " twice bigint GENERATED ALWAYS AS (id * 2) STORED, id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"
            ).format(sql.SQL(", ").join(reversed(columns)))
        )

    def _differences(self) -> list[str]:
        names = ("id", *self._types)
        in_mart = self._columns_of_mart()
        odd: list[str] = []
        # one statement for all columns, and only if it finds something one for each
        if self._different(names, in_mart):
            for name in names:
                found = self._different([name], in_mart)
                odd += [f"{name}: {row['sent']} became {row['arrived']}" for row in found]
            assert odd
        return odd

    def _different(self, names: Sequence[str], in_mart: Mapping[str, str]) -> list[dict[str, Any]]:
        """The rows that differ in one of the columns."""
        statement = sql.SQL(
            "SELECT ROW({0})::text AS sent, ROW({1})::text AS arrived"
            "  FROM ugc.typed s FULL JOIN analytics.typed t USING (id)"
            " WHERE ROW({0})::record OPERATOR(pg_catalog.*<>) ROW({1})::record"
        ).format(
            sql.SQL(", ").join(self._carried(name, in_mart[name]) for name in names),
            sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
        )
        return self._connection.execute(statement).fetchall()

    def _carried(self, name: str, kind: str) -> sql.Composed:
        """The source's value in the type of the mart: a new one has the base type of a domain."""
        value = sql.Identifier("s", name)
        if kind == "jsonb" and self._types.get(name, "").startswith("content.pair"):
            return sql.SQL("to_jsonb({})").format(value)
        return sql.SQL("CAST({} AS {})").format(value, raw(kind))

    def _columns_of_mart(self) -> dict[str, str]:
        rows = self._connection.execute(
            "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
            " WHERE attrelid = 'analytics.typed'::regclass AND attnum > 0"
        )
        return {row["name"]: row["type"] for row in rows}


@pytest.fixture
def typed(connection: Connection) -> Connection:
    connection.execute(_TYPES)
    return connection


def some_rows(columns: Columns) -> st.SearchStrategy[list[dict[str, str | None]]]:
    """Four to nine rows with a value or NULL in each column."""
    return st.lists(
        st.fixed_dictionaries({name: st.one_of(odd, odd, odd, st.none()) for name, (_, odd) in columns.items()}),
        min_size=4,
        max_size=9,
    )


@pytest.mark.parametrize(
    ("lane", "columns"),
    [
        pytest.param(lane, columns, id=f"{lane}-{name}")
        for lane in TASKS
        for name, columns in (GROUPS if lane == "frames" else WIDE).items()
    ],
)
def test_every_value_arrives_unchanged(lane: Lane, columns: Columns, typed: Connection, settings: Settings) -> None:
    types = {name: kind for name, (kind, _) in columns.items()}
    in_mart = {name: CARRIERS.get(kind, kind) for name, kind in types.items()}
    journey = Journey(typed, settings, lane, types, in_mart=in_mart)

    @round_trips(EXAMPLES if lane == "frames" else WIDE_EXAMPLES)
    @given(rows=some_rows(columns), exists=st.booleans(), mode=st.sampled_from(("full", "incremental")))
    def carry(rows: list[dict[str, str | None]], exists: bool, mode: str) -> None:
        assert journey.carry(rows, exists=exists, mode=mode) == []

    carry()


# column: type in the source, type in the mart, values that the assignment cast keeps
CASTS: dict[str, tuple[str, str, st.SearchStrategy[str]]] = {
    "widened": ("integer", "bigint", values.integers(32)),
    "narrowed": ("bigint", "integer", values.integers(32)),
    "scaled": ("numeric", "numeric(14,2)", st.integers(-(10**9), 10**9).map(lambda cents: f"{cents / 100:.2f}")),
    "floating": ("numeric", "double precision", values.scaled),
    "to_text": ("integer", "text", values.integers(32)),
    "shortened": ("timestamp without time zone", "date", st.dates().map(str)),
    "parsed": ("json", "jsonb", values.jsons),
    "text": ("character varying(60)", "text", values.short_texts(60)),
    "padded": ("text", "character(60)", values.short_texts(60).map(lambda text: text.rstrip(" "))),
    "address": ("cidr", "inet", st.just("10.0.0.0/8")),
    "label": ("content.mood", "text", MOODS),
    "labels": ("content.mood[]", "text[]", values.arrays(MOODS)),
    "spoken": ("boolean", "text", values.booleans),
    "unpadded": ("character(5)", "text", values.short_texts(5)),
    "host": ("inet", "text", st.just("10.0.0.1")),
    "doubled": ("real", "double precision", values.floats(32)),
    "cash": ("money", "numeric", st.integers(-(10**6), 10**6).map(lambda cents: f"{cents / 100:.2f}")),
}


@pytest.mark.parametrize("lane", TASKS)
def test_values_are_cast_to_the_types_of_an_existing_mart(lane: Lane, typed: Connection, settings: Settings) -> None:
    journey = Journey(
        typed,
        settings,
        lane,
        {name: kind for name, (kind, _, _) in CASTS.items()},
        in_mart={name: kind for name, (_, kind, _) in CASTS.items()},
    )

    @round_trips()
    @given(
        rows=some_rows({name: (kind, odd) for name, (kind, _, odd) in CASTS.items()}),
        mode=st.sampled_from(("full", "incremental")),
    )
    def carry(rows: list[dict[str, str | None]], mode: str) -> None:
        assert journey.carry(rows, exists=True, mode=mode) == []

    carry()


@pytest.mark.parametrize("lane", TASKS)
@pytest.mark.parametrize(
    ("sent", "kind", "kind_in_mart"), [("1.2345678", "real", "numeric"), ("1.5", "numeric", "integer")]
)
def test_a_value_that_the_cast_would_change_is_refused_in_every_lane(
    lane: Lane, sent: str, kind: str, kind_in_mart: str, typed: Connection, settings: Settings
) -> None:
    journey = Journey(typed, settings, lane, {"it": kind}, in_mart={"it": kind_in_mart})
    (found,) = journey.carry([{"it": sent}], exists=True, mode="full")
    assert f"column 'it' would be changed by the cast from {kind} to {kind_in_mart}" in found


@pytest.mark.parametrize("lane", TASKS)
def test_only_frames_refuse_a_time_beyond_their_range(lane: Lane, typed: Connection, settings: Settings) -> None:
    journey = Journey(typed, settings, lane, {"zoned": "timestamp with time zone"})
    found = journey.carry([{"zoned": "294276-12-31 23:59:59.999999"}], exists=False, mode="full")
    if lane == "frames":
        assert found == [
            "column 'zoned' has a time that a frame cannot hold; cast it in the query, for example to text"
        ]
    else:
        assert found == []
