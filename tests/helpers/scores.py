"""The table `ugc.scores`, its pipeline with checks, and what its mart shows."""

from typing import Any

from psycopg import sql

from tests.helpers.running import create
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import history

SCORES = "SELECT id, title, kind, score, ratio, day, modified FROM ugc.scores"
TARGET = "analytics.scores"

NOT_NULL = {"type": "not_null", "columns": ["title"]}
UNIQUE = {"type": "unique", "columns": ["title"]}
ACCEPTED = {"type": "accepted_values", "column": "kind", "values": ["film", "series"]}
RANGE = {"type": "range", "column": "score", "min": 0, "max": 10}
COUNT = {"type": "row_count", "min": 1, "min_ratio": 0.5, "max_ratio": 2}
SQL = {"type": "sql", "name": "score_fits_ratio", "query": "SELECT id FROM mart WHERE score < ratio"}
EVERY = [NOT_NULL, UNIQUE, ACCEPTED, RANGE, COUNT, SQL]


def fill_scores(connection: Connection, count: int) -> None:
    """Create rows 1 to count, which obey every check."""
    connection.execute(
        "CREATE TABLE ugc.scores (id integer PRIMARY KEY, title text, kind text, score numeric(6, 2),"
        " ratio double precision, day date, modified timestamptz NOT NULL)"
    )
    add_scores(connection, 1, count)


def add_scores(connection: Connection, first: int, last: int) -> None:
    rows = raw(
        "SELECT n, 'title ' || n, 'film', 5, 0.5, DATE '2024-01-01', '2024-01-01'::timestamptz + n * interval '1 s'"
        f" FROM generate_series({first}, {last}) n"
    )
    connection.execute(sql.SQL("INSERT INTO ugc.scores {}").format(rows))


def change_score(connection: Connection, ids: list[int], column: str, value: str | None) -> None:
    """Change a column of some rows, which the next incremental run reads."""
    statement = sql.SQL("UPDATE ugc.scores SET {} = {}, modified = now() - interval '1 h' + id * interval '1 s'")
    changed = statement.format(sql.Identifier(column), sql.Literal(value)) + sql.SQL(" WHERE id = ANY (%s)")
    connection.execute(changed, [ids])


def create_scores(
    connection: Connection, settings: Settings, checks: list[dict[str, Any]], mode: str = "full", **fields: Any
) -> Pipeline:
    defaults: dict[str, Any] = {
        "source_query": SCORES,
        "target_table": TARGET,
        "mode": mode,
        "key_columns": ["id"],
        "batch_size": 100,
        "checks": checks,
    }
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    return create(connection, settings, **defaults | cursor | fields)


def visible(connection: Connection) -> dict[int, dict[str, Any]] | None:
    """The rows of the mart by id; None if there is no mart."""
    row = connection.execute("SELECT to_regclass('analytics.scores') IS NOT NULL AS yes").fetchone()
    if row is None or not row["yes"]:
        return None
    return {row["id"]: row for row in connection.execute("SELECT * FROM analytics.scores").fetchall()}


def results(connection: Connection, pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """What the checks have found in the newest run, by name."""
    newest = history.list_runs(connection, pipeline.id, limit=1)[0]
    return {one["name"]: one for one in newest.checks or ()}


def staging_tables(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl' AND tablename LIKE 'stage%'")
    return [row["tablename"] for row in rows]
