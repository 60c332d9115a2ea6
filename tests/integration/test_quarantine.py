"""Rows that do not fit are found together, whatever their number; every other row arrives unchanged."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from psycopg import sql

from tests.helpers.running import create, differences, run, succeed
from vitrine.connectors.postgres.sink import numbering, rejects
from vitrine.core.rows import Row
from vitrine.definition import registry
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, state

TARGET = "analytics.sorted"

both_modes = pytest.mark.parametrize("mode", ["full", "incremental"])


def create_pipeline(connection: Connection, settings: Settings, mode: str, query: str, **fields: Any) -> Pipeline:
    options = {"on_reject": "quarantine", "max_rejects": 100_000} | fields.pop("options", {})
    cursor = {"incremental_key": "id"} if mode == "incremental" else {}
    defaults: dict[str, Any] = {"target_table": TARGET, "mode": mode, "key_columns": ["id"], "batch_size": 500}
    return create(connection, settings, source_query=query, options=options, **defaults | cursor | fields)


def add_transform(monkeypatch: pytest.MonkeyPatch, kind: Kind, function: Any) -> None:
    monkeypatch.setitem(vars(registry.transforms)["_tasks"], "change", Task("change", kind, function, None))


def stored(connection: Connection, columns: str = "*") -> list[dict[str, Any]]:
    return connection.execute(sql.SQL("SELECT {} FROM analytics.sorted ORDER BY id").format(raw(columns))).fetchall()


def quarantined(connection: Connection, pipeline: Pipeline) -> dict[str, str]:
    return {one["key"]: one["code"] for one in checkpoint.list_open(connection, pipeline.id, limit=100_000)}


# -- casts ------------------------------------------------------------------------------------------------------------

# type in the source, type in the target, a value that the cast keeps, one that it would change
CHANGES = [
    ("numeric", "integer", "1.0", "1.5"),
    ("timestamp with time zone", "date", "2024-01-01 00:00", "2024-01-01 12:03"),
    ("text", "character varying(3)", "abc", "abc  "),
    ("text", "character(5)", "abc", "abc "),
    ("double precision", "real", "0.5", "0.1"),
    ("numeric(10,4)", "numeric(10,2)", "1.2300", "1.2345"),
    ("timestamp with time zone", "timestamp(0) with time zone", "2024-01-01 12:03:04", "2024-01-01 12:03:04.5"),
    ("numeric[]", "integer[]", "{1,2.0}", "{1,2.5}"),
    ("bigint", "double precision", "5", "9007199254740993"),
    ("interval", "interval year to month", "1 year 2 mons", "1 mon 5 days"),
    ("interval[]", "interval hour[]", "{1 day 02:00:00}", "{02:30:00}"),
]


@pytest.mark.promise("J31")
@both_modes
@pytest.mark.parametrize(("kind", "narrower", "kept", "changed"), CHANGES, ids=[f"{c[0]} {c[1]}" for c in CHANGES])
def test_a_value_that_the_cast_to_the_target_would_change_is_a_reject(
    connection: Connection, settings: Settings, mode: str, kind: str, narrower: str, kept: str, changed: str
) -> None:
    connection.execute(sql.SQL("CREATE TABLE ugc.it (id integer PRIMARY KEY, it {})").format(raw(kind)))
    connection.execute(sql.SQL("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it {})").format(raw(narrower)))
    for number, value in ((1, kept), (2, changed), (3, None)):
        connection.execute(
            sql.SQL("INSERT INTO ugc.it VALUES (%s, CAST(%s::text AS {}))").format(raw(kind)), [number, value]
        )
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it FROM ugc.it")
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.written, executed.counts.rejected) == (2, 1)
    (reject,) = checkpoint.list_open(connection, pipeline.id)
    assert (reject["key"], reject["column_name"], reject["code"]) == ("2", "it", "VALUE_CHANGED")
    assert f"would be changed by the cast from {kind} to {narrower}" in reject["reason"]
    assert [row["id"] for row in stored(connection)] == [1, 3]


@pytest.mark.promise("J31")
def test_a_document_that_jsonb_does_not_hold_is_a_reject(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.it (id integer PRIMARY KEY, it json)")
    connection.execute("INSERT INTO ugc.it VALUES (1, '{}'), (2, %s)", [r'{"a": "\u0000"}'])
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it jsonb)")
    pipeline = create_pipeline(connection, settings, "full", "SELECT id, it FROM ugc.it")
    succeed(connection, settings, pipeline)
    assert quarantined(connection, pipeline) == {"2": "22P05"}
    assert [row["id"] for row in stored(connection)] == [1]


NARROW = (
    "id integer PRIMARY KEY, small smallint, exact numeric(2,1), tens numeric(2,-1), short varchar(3), padded char(3)"
)
WIDE_ROWS = """
    (1, 1, 1, 10, 'abc', 'ab'), (2, 40000, 1, 10, 'abc', 'ab'), (3, 1, 10, 10, 'abc', 'ab'),
    (4, 1, 1, 1000, 'abc', 'ab'), (5, 1, 1, 11, 'abc', 'ab'), (6, 1, 1, 10, 'abcd', 'ab'),
    (7, 1, 1, 10, 'abc  ', 'ab'), (8, 1, 1, 10, 'abc', 'abcd'), (9, 40000, 1, 10, 'abcd', 'ab'),
    (10, 1, 1, 11, 'abc', 'abcd'), (11, NULL, NULL, NULL, NULL, NULL), (12, -40000, 1, 11, NULL, ''),
    (3000000000, 1, 1, 10, 'abc', 'ab'), (3000000001, 40000, 1, 10, 'abcd', 'ab')
"""


@pytest.mark.promise("J16", "J31")
@both_modes
def test_rows_that_are_judged_together_get_the_verdicts_of_rows_that_are_judged_alone(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(
        "CREATE TABLE ugc.wide (id bigint PRIMARY KEY, small bigint, exact integer, tens integer, short text, padded"
        " varchar(9))"
    )
    connection.execute(sql.SQL("INSERT INTO ugc.wide VALUES {}").format(raw(WIDE_ROWS)))
    found: list[list[tuple[Any, ...]]] = []
    for name in ("together", "alone"):
        target = sql.Identifier("analytics", name)
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(target, raw(NARROW)))
        pipeline = create_pipeline(
            connection,
            settings,
            mode,
            "SELECT id, small, exact, tens, short, padded FROM ugc.wide",
            name=name,
            target_table=f"analytics.{name}",
            options={"cursor_is_monotonic": True} if mode == "incremental" else {},
        )
        succeed(connection, settings, pipeline)
        described = checkpoint.list_open(connection, pipeline.id, limit=100)
        kept = connection.execute(sql.SQL("SELECT * FROM {} ORDER BY id").format(target)).fetchall()
        facts = [(one["key"], one["column_name"], one["code"], one["reason"], one["row"]) for one in described]
        found.append([*sorted(facts, key=str), *(tuple(row.values()) for row in kept)])
        # only the block, which a server before 16 uses for every row
        monkeypatch.setattr(numbering, "_HAS_INPUT_IS_VALID", 10**9)
    together, alone = found
    assert together == alone
    assert len(together) == 14


def test_rows_of_which_one_value_does_not_fit_need_no_block_of_their_own(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> sql.Composed:
        raise AssertionError("a row was judged alone")

    monkeypatch.setattr(numbering, "_conversion", refuse)
    connection.execute("CREATE TABLE ugc.wide AS SELECT n AS id, n % 12 AS it FROM generate_series(1, 300) n")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it numeric(1))")
    pipeline = create_pipeline(connection, settings, "full", "SELECT id, it FROM ugc.wide")
    assert succeed(connection, settings, pipeline).counts.rejected == 50


@pytest.mark.promise("J31")
@both_modes
def test_a_changed_value_fails_the_run_by_key_and_column_unless_it_is_quarantined(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it integer)")
    query = "SELECT n AS id, n / 2.0 AS it FROM generate_series(2, 8, 2) n UNION ALL SELECT 9, 1.5"
    connection.execute(sql.SQL("CREATE VIEW ugc.halves AS {}").format(raw(query)))
    pipeline = create_pipeline(
        connection, settings, mode, "SELECT id, it FROM ugc.halves", options={"on_reject": "fail"}
    )
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert "row 9 of analytics.sorted: column 'it' would be changed by the cast from numeric to integer" in str(failed)
    assert stored(connection) == []


@pytest.mark.promise("J31")
@pytest.mark.parametrize("kind", [Kind.ROW, Kind.FRAME])
@both_modes
def test_a_column_that_passes_a_transform_unchanged_obeys_the_same_rule(
    connection: Connection, settings: Settings, mode: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_transform(monkeypatch, kind, lambda given: given)  # pyright: ignore[reportUnknownLambdaType]
    connection.execute(
        "CREATE TABLE ugc.it AS SELECT n AS id, n + 0.5 * (n % 2) AS it, n + 0.1 AS note FROM generate_series(1, 4) n"
    )
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it integer, note text)")
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it, note FROM ugc.it", python_task="change")
    succeed(connection, settings, pipeline)
    assert quarantined(connection, pipeline) == {"1": "VALUE_CHANGED", "3": "VALUE_CHANGED"}
    assert stored(connection) == [{"id": 2, "it": 2, "note": "2.1"}, {"id": 4, "it": 4, "note": "4.1"}]


@pytest.mark.promise("J31")
def test_a_value_that_a_transform_made_of_another_type_is_read_by_the_target(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(rows: Sequence[Row]) -> Sequence[Row]:
        return [row | {"it": row["it"] / 3 if row["id"] != 2 else 1e9} for row in rows]

    add_transform(monkeypatch, Kind.ROW, change)
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id, n AS it FROM generate_series(1, 3) n")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it numeric(5,2))")
    pipeline = create_pipeline(connection, settings, "full", "SELECT id, it FROM ugc.it", python_task="change")
    succeed(connection, settings, pipeline)
    assert [(row["id"], str(row["it"])) for row in stored(connection)] == [(1, "0.33"), (3, "1.00")]
    assert quarantined(connection, pipeline) == {"2": "22003"}


@pytest.mark.promise("J31")
@pytest.mark.parametrize("task", [None, "change"])
def test_a_type_without_an_assignment_cast_is_refused_before_any_row_moves(
    connection: Connection, settings: Settings, task: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_transform(monkeypatch, Kind.ROW, lambda given: given)  # pyright: ignore[reportUnknownLambdaType]
    connection.execute("CREATE TABLE ugc.it AS SELECT 1 AS id, '17' AS it")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it integer)")
    pipeline = create_pipeline(connection, settings, "full", "SELECT id, it FROM ugc.it", python_task=task)
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "SCHEMA_CHANGED"
    assert "'it'" in str(failed)
    assert checkpoint.list_open(connection, pipeline.id) == []


# -- every other row arrives unchanged --------------------------------------------------------------------------------

TYPES = {
    "padded": ("character(5)", "'ab'"),
    "bits": ("bit(5)", "B'10110'"),
    "many_bits": ("bit varying(9)", "B'101'"),
    "letter": ('"char"', "'x'"),
    "short": ("character varying(4)", "'ab  '"),
    "paddeds": ("character(3)[]", "'{ab,c}'"),
    "bit_list": ("bit(3)[]", "'{101,010}'"),
    "varbits": ("bit varying[]", "'{1,01}'"),
    "coded": ("analytics.code", "'abc'"),
    "coded_bits": ("analytics.bits", "B'1011'"),
    "codes": ("analytics.code[]", "'{abc,d}'"),
    "rounded": ("timestamp(3) with time zone", "'2024-01-01 12:03:04.567'"),
    "span": ("interval day to second(2)", "'1 02:03:04.56'"),
}


@pytest.mark.promise("J9")
@both_modes
@pytest.mark.parametrize("kind", [None, Kind.ROW, Kind.FRAME], ids=["copy", "rows", "frames"])
def test_every_type_with_a_length_arrives_unchanged_beside_a_rejected_row(
    connection: Connection, settings: Settings, mode: str, kind: Kind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is not None:
        add_transform(monkeypatch, kind, lambda given: given)  # pyright: ignore[reportUnknownLambdaType]
    connection.execute("CREATE DOMAIN analytics.code AS character(4); CREATE DOMAIN analytics.bits AS bit(4)")
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), raw(type_name)) for name, (type_name, _) in TYPES.items()
    )
    for table in ("ugc.it", "analytics.sorted"):
        connection.execute(
            sql.SQL("CREATE TABLE {} (id integer PRIMARY KEY, amount {}, {})").format(
                raw(table), raw("numeric" if table == "ugc.it" else "numeric(3)"), columns
            )
        )
    values = sql.SQL(", ").join(raw(value) for _, value in TYPES.values())
    connection.execute(sql.SQL("INSERT INTO ugc.it SELECT n, n * 400, {} FROM generate_series(1, 3) n").format(values))
    query = f"SELECT id, amount, {', '.join(TYPES)} FROM ugc.it"
    task = "change" if kind else None
    pipeline = create_pipeline(connection, settings, mode, query, python_task=task)
    succeed(connection, settings, pipeline)
    assert quarantined(connection, pipeline) == {"3": "22003"}
    assert (
        stored(connection, f"id, {', '.join(f'{name}::text' for name in TYPES)}")
        == connection.execute(
            sql.SQL("SELECT id, {} FROM ugc.it WHERE id < 3 ORDER BY id").format(
                sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in TYPES)
            )
        ).fetchall()
    )


# -- numbers that a transform narrows ---------------------------------------------------------------------------------


def narrow_rows(rows: Sequence[Row]) -> Sequence[Row]:
    single = {1: 1e300, 2: 1e-300, 3: 0.25, 4: None, 5: -1e39}
    whole = {1: 1, 2: 2, 3: 2**40, 4: -(2**31), 5: 5}
    return [{"id": row["id"], "single": single[row["id"]], "whole": whole[row["id"]]} for row in rows]


def narrow_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(narrow_rows(frame.to_dicts()), schema={"id": pl.Int32, "single": pl.Float64, "whole": pl.Int64})


@pytest.mark.promise("J16")
@both_modes
@pytest.mark.parametrize(("kind", "function"), [(Kind.ROW, narrow_rows), (Kind.FRAME, narrow_frame)])
def test_a_number_out_of_the_target_s_range_is_a_reject_in_every_lane(
    connection: Connection, settings: Settings, mode: str, kind: Kind, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_transform(monkeypatch, kind, function)
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id FROM generate_series(1, 5) n")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, single real, whole integer)")
    # one row a batch: one number out of range makes the frame of its whole batch travel as text
    pipeline = create_pipeline(connection, settings, mode, "SELECT id FROM ugc.it", python_task="change", batch_size=1)
    succeed(connection, settings, pipeline)
    assert quarantined(connection, pipeline) == {"1": "22003", "2": "22003", "3": "22003", "5": "22003"}
    assert stored(connection) == [{"id": 4, "single": None, "whole": -(2**31)}]


# -- many rejects -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("E1")
@both_modes
@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("ALTER TABLE analytics.sorted ALTER it TYPE numeric(4)", "22003"),
        ("ALTER TABLE analytics.sorted ADD CHECK (it < 10000)", "23514"),
        ("ALTER TABLE analytics.sorted ALTER note SET NOT NULL", "23502"),
        ("ALTER TABLE analytics.sorted ADD FOREIGN KEY (it) REFERENCES analytics.known", "23503"),
        ("ALTER TABLE analytics.sorted ADD UNIQUE (other)", "23505"),
    ],
    ids=["value", "check", "not null", "foreign key", "unique"],
)
def test_many_rows_that_break_one_rule_are_found_without_halving(
    connection: Connection, settings: Settings, mode: str, rule: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def isolate(*_: object) -> None:
        raise AssertionError("rows were found one by one")

    monkeypatch.setattr(rejects, "isolate", isolate)
    connection.execute(
        "CREATE TABLE ugc.it AS SELECT n AS id, n + CASE WHEN n % 3 = 0 THEN 1000000 ELSE 0 END::numeric AS it,"
        " CASE WHEN n % 3 <> 0 THEN 'note' END AS note, CASE WHEN n % 3 = 0 THEN 0 ELSE n END AS other"
        " FROM generate_series(1, 900) n UNION ALL SELECT 0, 0, 'note', 0"
    )
    connection.execute("CREATE TABLE analytics.known AS SELECT n::numeric AS it FROM generate_series(0, 900) n")
    connection.execute("ALTER TABLE analytics.known ADD PRIMARY KEY (it)")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it numeric, note text, other integer)")
    connection.execute(rule)
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it, note, other FROM ugc.it")
    executed = succeed(connection, settings, pipeline)
    assert (executed.counts.written, executed.counts.rejected) == (601, 300)
    assert set(quarantined(connection, pipeline).values()) == {code}
    (reason,) = {row["reason"] for row in connection.execute("SELECT reason FROM etl.etl_rejects")}
    assert "stage_" not in reason  # the table that a person knows, and not that of the load
    wanted = "SELECT id, it, note, other FROM ugc.it WHERE id % 3 <> 0 OR id = 0"
    assert differences(connection, wanted.replace(" it,", " it::numeric AS it,"), TARGET, "id") == []


@pytest.mark.promise("E7")
def test_a_rule_that_no_query_can_find_is_found_by_halving(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id, int4range(n, n + 1) AS it FROM generate_series(1, 40) n")
    connection.execute("UPDATE ugc.it SET it = '[1,2)' WHERE id IN (7, 21)")
    connection.execute(
        "CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it int4range, EXCLUDE USING gist (it WITH &&))"
    )
    pipeline = create_pipeline(connection, settings, "incremental", "SELECT id, it FROM ugc.it")
    succeed(connection, settings, pipeline)
    assert quarantined(connection, pipeline) == {"7": "23P01", "21": "23P01"}


# -- bookkeeping ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("J18")
@both_modes
def test_composite_keys_that_look_alike_stay_apart_in_quarantine(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute(
        "CREATE TABLE ugc.it AS SELECT n AS id, a, b, 10 * n AS it FROM (VALUES (1, 'a', 'b/c'), (2, 'a/b', 'c'),"
        " (3, 'x', 'y')) AS v(n, a, b)"
    )
    connection.execute(
        "CREATE TABLE analytics.sorted (id integer, a text, b text, it integer CHECK (it > 25), PRIMARY KEY (a, b))"
    )
    cursor = {"incremental_id_key": "b"} if mode == "incremental" else {}
    pipeline = create_pipeline(
        connection, settings, mode, "SELECT id, a, b, it FROM ugc.it", key_columns=["a", "b"], **cursor
    )
    succeed(connection, settings, pipeline)
    assert set(quarantined(connection, pipeline)) == {"(a, b/c)", "(a/b, c)"}
    rows = connection.execute("SELECT key FROM etl.etl_rejects ORDER BY key").fetchall()
    assert [row["key"] for row in rows] == ['["a", "b/c"]', '["a/b", "c"]']
    connection.execute("UPDATE ugc.it SET it = 30, id = 4 WHERE a = 'a/b'")
    succeed(connection, settings, pipeline)
    assert set(quarantined(connection, pipeline)) == {"(a, b/c)"}


@pytest.mark.promise("J18")
@both_modes
def test_a_reject_under_a_key_of_an_earlier_version_is_closed(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("CREATE TABLE ugc.it AS SELECT 1 AS id, 5 AS it")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, it integer CHECK (it > 5))")
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it FROM ugc.it")
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE etl.etl_rejects SET key = '1'")
    state.reset_state(connection, pipeline.id)
    succeed(connection, settings, pipeline)
    assert len(checkpoint.list_open(connection, pipeline.id)) == 1
    connection.execute("UPDATE ugc.it SET it = 6")
    state.reset_state(connection, pipeline.id)
    succeed(connection, settings, pipeline)
    assert checkpoint.list_open(connection, pipeline.id) == []


@pytest.mark.promise("J18")
@both_modes
@pytest.mark.parametrize("ids", [[1, 2, 3, 4, 1], [1, 2, 3, 9, 9]], ids=["both fit", "one does not fit"])
def test_a_duplicate_key_is_found_beside_a_rejected_row(
    connection: Connection, settings: Settings, mode: str, ids: list[int]
) -> None:
    connection.execute(
        "CREATE TABLE ugc.it AS SELECT n, id, CASE WHEN n = 4 THEN 1e30 ELSE n END AS it"
        " FROM unnest(%s::integer[]) WITH ORDINALITY AS v(id, n)",
        [ids],
    )
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, n integer, it numeric(5))")
    cursor = {"incremental_key": "n", "incremental_id_key": "id"} if mode == "incremental" else {}
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, n::integer AS n, it FROM ugc.it", **cursor)
    failed = run(connection, settings, pipeline).error
    assert failed is not None
    assert failed.code == "DUPLICATE_KEY"


@pytest.mark.promise("J18")
@both_modes
def test_the_last_good_version_of_a_rejected_row_stays_and_the_reject_says_so(
    connection: Connection, settings: Settings, mode: str
) -> None:
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS at, n AS id, n::numeric AS it FROM generate_series(1, 4) n")
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, at integer, it numeric(5))")
    cursor = {"incremental_key": "at", "incremental_id_key": "id"} if mode == "incremental" else {}
    pipeline = create_pipeline(
        connection, settings, mode, "SELECT id, at, it FROM ugc.it", options={"max_delete_ratio": 1}, **cursor
    )
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.it SET at = 10, it = 1e30 WHERE id = 2")
    connection.execute("INSERT INTO ugc.it VALUES (11, 5, 1e30); DELETE FROM ugc.it WHERE id = 4")
    succeed(connection, settings, pipeline)
    kept = [(row["id"], row["it"]) for row in stored(connection)]
    assert kept == [(1, 1), (2, 2), (3, 3)] + ([] if mode == "full" else [(4, 4)])
    reasons = {one["key"]: one["reason"] for one in checkpoint.list_open(connection, pipeline.id)}
    assert reasons["2"].endswith("; the mart keeps the previous version")
    assert reasons["5"].endswith("; the mart has no row for this key")
    if mode == "full":  # a row that has vanished since is deleted
        connection.execute("DELETE FROM ugc.it WHERE id = 2")
        succeed(connection, settings, pipeline)
        assert [row["id"] for row in stored(connection)] == [1, 3]


@pytest.mark.promise("J18")
def test_a_row_that_is_rejected_and_then_fits_in_a_later_batch_of_the_run_leaves_the_quarantine(
    connection: Connection, settings: Settings
) -> None:
    connection.execute(
        "CREATE TABLE ugc.it AS SELECT n AS at, n % 3 AS id, CASE WHEN n = 1 THEN 1e30 ELSE n END AS it"
        " FROM generate_series(1, 6) n"
    )
    connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, at integer, it numeric(5))")
    pipeline = create_pipeline(
        connection,
        settings,
        "incremental",
        "SELECT id, at, it FROM ugc.it",
        options={"on_duplicate_key": "last"},
        incremental_key="at",
        incremental_id_key="id",
        batch_size=1,
    )
    succeed(connection, settings, pipeline)
    assert [(row["id"], row["at"]) for row in stored(connection)] == [(0, 6), (1, 4), (2, 5)]
    assert checkpoint.list_open(connection, pipeline.id) == []


# -- transforms that drop rows ----------------------------------------------------------------------------------------


@pytest.mark.promise("J21")
@both_modes
@pytest.mark.parametrize("exists", [False, True], ids=["new target", "old target"])
@pytest.mark.parametrize("dropped", [{1}, {1, 2}, {2}, {3}], ids=str)
def test_batches_that_a_row_transform_empties_change_no_columns(
    connection: Connection, settings: Settings, mode: str, exists: bool, dropped: set[int], monkeypatch: Any
) -> None:
    """The transform replaces a column: the source's own columns say nothing about its output."""

    def change(rows: Sequence[Row]) -> Sequence[Row]:
        return [{"id": row["id"], "double": 2 * row["it"]} for row in rows if row["id"] not in dropped]

    add_transform(monkeypatch, Kind.ROW, change)
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id, n AS it FROM generate_series(1, 3) n")
    if exists:
        connection.execute("CREATE TABLE analytics.sorted (id integer PRIMARY KEY, double bigint)")
    pipeline = create_pipeline(
        connection,
        settings,
        mode,
        "SELECT id, it FROM ugc.it",
        python_task="change",
        batch_size=1,
        options={"on_schema_change": "add_columns"},
    )
    succeed(connection, settings, pipeline)
    assert stored(connection) == [{"id": n, "double": 2 * n} for n in (1, 2, 3) if n not in dropped]


@pytest.mark.promise("J21")
@both_modes
def test_a_transform_that_drops_every_row_leaves_the_target_to_its_first_row(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(rows: Sequence[Row]) -> Sequence[Row]:
        return [row | {"double": 2 * row["it"]} for row in rows if row["id"] > 3]

    add_transform(monkeypatch, Kind.ROW, change)
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id, n AS it FROM generate_series(1, 3) n")
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it FROM ugc.it", python_task="change")
    succeed(connection, settings, pipeline)
    succeed(connection, settings, pipeline)
    connection.execute("INSERT INTO ugc.it VALUES (4, 4)")
    succeed(connection, settings, pipeline)
    assert stored(connection) == [{"id": 4, "it": 4, "double": 8}]
    assert pipelines.get(connection, pipeline.id).status == "IDLE"


@pytest.mark.promise("J21")
@both_modes
def test_a_frame_transform_that_drops_every_row_creates_the_target_with_its_columns(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("id") > 3).select("id", (pl.col("it") * 2).alias("double"))

    add_transform(monkeypatch, Kind.FRAME, change)
    connection.execute("CREATE TABLE ugc.it AS SELECT n AS id, n AS it FROM generate_series(1, 3) n")
    pipeline = create_pipeline(connection, settings, mode, "SELECT id, it FROM ugc.it", python_task="change")
    succeed(connection, settings, pipeline)
    assert stored(connection, "id, double") == []
