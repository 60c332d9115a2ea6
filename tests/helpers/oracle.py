"""Compares a mart with what its query returns to a session that has the settings of its database, as psql would."""

from collections.abc import Mapping

import psycopg
from psycopg import sql

from tests.helpers.kinds import Kind
from vitrine.postgres import Connection, connect, raw

Columns = Mapping[str, Kind]

# The settings of the transport, under which a value may have become text
_ISO = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 1;"
# Runs resolve names in pg_catalog only, so that the text of a reg… value has a schema whatever the database's path is
_SESSION = (
    "SET default_transaction_read_only = off; SET client_min_messages = error; SET search_path = pg_catalog; {settings}"
    " DROP TABLE IF EXISTS {table}"
)

# The binary format of a tsquery keeps its meaning but not its layout, so that two images of one value may differ
_COMPARED_AS_TEXT = frozenset({"tsquery"})


class Oracle:
    """What the mart must hold: the rows of the query, each value as its carrier."""

    def __init__(self, url: str | None, control: Connection, target: str) -> None:
        """`url` is that of sessions with the settings of the database; without one, they have the usual settings."""
        self._url = url
        self._control = control
        self._target = sql.Identifier(*target.split("."))
        self._columns: Columns = {}
        control.execute("CREATE SCHEMA IF NOT EXISTS oracle")

    def expect(self, query: str, columns: Columns) -> None:
        """Evaluate the query; `columns` are all of its columns."""
        self._columns = columns
        self._evaluate("own", query)
        self._evaluate("iso", query)

    def differences(self, identity: str, *, retyped: bool = False) -> list[str]:
        """One line per column and row that differs; rows are matched by the column `identity`.

        If `retyped`, a column may have another type, whose text must then be a text of the value.
        """
        types, expected = self._types_of(self._target), self._types_of(sql.Identifier("oracle", "own"))
        missing = [f"column {name!r} is missing" for name in self._columns if name not in types]
        if identity not in types:
            return missing
        odd_types = [
            f"column {name!r} ({kind.type}) has type {types[name][1]} instead of {expected[name][1]}"
            for name, kind in self._columns.items()
            if name in types and types[name] != expected[name] and not retyped
        ]
        odd_values = [
            odd
            for name in self._columns
            if name in types
            for odd in self._odd_values(name, identity, expected[name][1], same=types[name][0] == expected[name][0])
        ]
        return [*missing, *odd_types, *self._odd_rows(identity), *odd_values]

    def _evaluate(self, name: str, query: str) -> None:
        table = sql.Identifier("oracle", name)
        carried = [
            sql.SQL("{} AS {}").format(kind.carried(sql.Identifier("q", column)), sql.Identifier(column))
            for column, kind in self._columns.items()
        ]
        created = sql.SQL("CREATE TABLE {} AS SELECT {} FROM ({}) AS q").format(
            table, sql.SQL(", ").join(carried), raw(query)
        )
        if self._url is None:
            self._control.execute(sql.SQL("DROP TABLE IF EXISTS {}; {}").format(table, created))
            return
        with connect(self._url, name="oracle") as session:
            settings = raw(_ISO if name == "iso" else "")
            session.execute(sql.SQL(_SESSION).format(settings=settings, table=table))
            session.execute(created)

    def _types_of(self, table: sql.Identifier) -> dict[str, tuple[int, str]]:
        rows = self._control.execute(
            "SELECT attname AS name, atttypid AS oid, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [table.as_string(None)],
        ).fetchall()
        return {row["name"]: (row["oid"], row["type"]) for row in rows}

    def _odd_rows(self, identity: str) -> list[str]:
        statement = sql.SQL(
            "SELECT s.{id}::text AS missing, t.{id}::text AS extra FROM oracle.own s FULL JOIN {target} t USING ({id})"
            " WHERE s.{id} IS NULL OR t.{id} IS NULL ORDER BY 1, 2"
        ).format(id=sql.Identifier(identity), target=self._target)
        return [
            f"row {row['missing']} is missing" if row["missing"] else f"row {row['extra']} is extra"
            for row in self._control.execute(statement)
        ]

    def _odd_values(self, name: str, identity: str, expected: str, *, same: bool) -> list[str]:
        """Values with another image; what became text may have become so under the settings of either table."""
        kind = self._columns[name]
        stored, own, iso = (sql.Identifier(table, name) for table in ("t", "s", "i"))
        ours = stored if same else sql.SQL("CAST(CAST({} AS text) AS {})").format(stored, raw(expected))
        differs = sql.SQL("ROW({})::record OPERATOR(pg_catalog.*<>) ROW({})::record")
        if kind.type in _COMPARED_AS_TEXT:
            differs = sql.SQL("CAST({} AS text) IS DISTINCT FROM CAST({} AS text)")
        unlike_iso = differs.format(ours, iso) if kind.is_converted else sql.SQL("true")
        statement = sql.SQL(
            "SELECT s.{id}::text AS id, {own}::text AS sent, {ours}::text AS arrived"
            "  FROM oracle.own s JOIN oracle.iso i USING ({id}) JOIN {target} t USING ({id})"
            " WHERE {unlike_own} AND {unlike_iso} ORDER BY 1"
        ).format(
            id=sql.Identifier(identity),
            own=own,
            ours=ours,
            target=self._target,
            unlike_own=differs.format(ours, own),
            unlike_iso=unlike_iso,
        )
        try:
            rows = self._control.execute(statement).fetchall()
        except (psycopg.DataError, psycopg.ProgrammingError) as exc:
            return [f"{name} ({kind.type}) cannot be read from its text: {exc}"]
        return [f"{name} ({kind.type}) of row {row['id']}: {row['sent']!r} became {row['arrived']!r}" for row in rows]
