"""The statements that write rows to a mart, composed from identifiers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

_DIFFERS = "ROW({ours})::record OPERATOR(pg_catalog.*<>) ROW({theirs})::record"
"""Compares row images: works for json, which has no equality operator, and detects 1.0 changed to 1.00."""


def names(columns: Iterable[str], table: str | None = None) -> sql.Composed:
    """Columns, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(table, name) if table else sql.Identifier(name) for name in columns)


def create_table(
    kind: sql.SQL, table: sql.Identifier, columns: Sequence[tuple[str, sql.Composable]], ending: sql.SQL
) -> sql.Composed:
    definitions = [sql.SQL("{} {}").format(sql.Identifier(name), type_name) for name, type_name in columns]
    return sql.SQL("CREATE {} TABLE {} ({}) {}").format(kind, table, sql.SQL(", ").join(definitions), ending)


@dataclass(frozen=True)
class TargetStatements:
    """The statements for one target: its key, and the column that records when a row was written."""

    target: sql.Identifier
    key: tuple[str, ...]
    touch: str | None

    def merge(self, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        """Update rows that differ and insert new ones; an equal row is neither written nor locked."""
        touched = [self.touch] if self.touch else []
        return sql.SQL(
            "MERGE INTO {target} AS t USING {source} AS s ON {same_key} {update}"
            " WHEN NOT MATCHED THEN INSERT ({columns}) OVERRIDING SYSTEM VALUE VALUES ({values})"
        ).format(
            target=self.target,
            source=source,
            same_key=self._same_key(),
            update=self._update(columns),
            columns=names([*columns, *touched]),
            values=sql.SQL(", ").join(
                [*(sql.Identifier("s", name) for name in columns), *(sql.SQL("now()") for _ in touched)]
            ),
        )

    def _update(self, columns: Sequence[str]) -> sql.Composable:
        others = self._others(columns)
        if not others:
            return sql.SQL("")
        assignments = [sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in others]
        if self.touch:
            assignments.append(sql.SQL("{} = now()").format(sql.Identifier(self.touch)))
        return sql.SQL("WHEN MATCHED AND {differs} THEN UPDATE SET {assignments}").format(
            differs=self._differs(columns), assignments=sql.SQL(", ").join(assignments)
        )

    def sorted_by_key(self, table: sql.Identifier) -> sql.Composed:
        """Rows in key order: a lookup by key then reads each page of the index once."""
        return sql.SQL("(SELECT * FROM {} ORDER BY {})").format(table, names(self.key))

    def delete_vanished(self, staging: sql.Identifier, kept: str | None) -> sql.Composed:
        """Delete rows that are not staged, except those whose keys are in a JSON array."""
        statement = sql.SQL(
            "DELETE FROM {target} AS t WHERE NOT EXISTS (SELECT FROM {staging} AS s WHERE {same_key})"
        ).format(target=self.target, staging=staging, same_key=self._same_key())
        if kept is None:
            return statement
        excepted = sql.SQL(" AND NOT {} IN (SELECT json_array_elements_text({}::json))")
        return statement + excepted.format(self.key_text("t"), sql.Literal(kept))

    def drop_superseded(self, staging: sql.Identifier, order: Sequence[str]) -> sql.Composed:
        """Keep only the last of several rows with one key, by these columns and then by position."""
        newest = [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name)) for name in order]
        return sql.SQL(
            "DELETE FROM {staging} WHERE ctid IN (SELECT ctid FROM (SELECT ctid, row_number() OVER"
            " (PARTITION BY {key} ORDER BY {newest}) AS place FROM {staging}) AS s WHERE place > 1)"
        ).format(staging=staging, key=names(self.key), newest=sql.SQL(", ").join([*newest, sql.SQL("ctid DESC")]))

    def take_out(self, staging: sql.Identifier, columns: Sequence[str], taken: sql.Identifier) -> sql.Composed:
        """Move the target's rows that differ into `taken`, with all columns."""
        return sql.SQL(
            "WITH gone AS (DELETE FROM {target} AS t USING {staging} AS s WHERE {same_key} AND {differs} RETURNING t.*)"
            " INSERT INTO {taken} SELECT * FROM gone"
        ).format(
            target=self.target,
            staging=staging,
            same_key=self._same_key(),
            differs=self._differs(columns),
            taken=taken,
        )

    def put_in(
        self, staging: sql.Identifier, columns: Sequence[str], taken: sql.Identifier, foreign: Sequence[str]
    ) -> sql.Composed:
        """Insert the rows of `taken` again with the new values; columns that the query does not set keep theirs."""
        kept = [sql.SQL("now()") if name == self.touch else sql.Identifier("t", name) for name in foreign]
        return sql.SQL(
            "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values}"
            " FROM {taken} AS t JOIN {staging} AS s ON {same_key}"
        ).format(
            target=self.target,
            columns=names([*columns, *foreign]),
            values=sql.SQL(", ").join([*(sql.Identifier("s", name) for name in columns), *kept]),
            taken=taken,
            staging=staging,
            same_key=self._same_key(),
        )

    def bad_keys(self, table: sql.Composable) -> sql.Composed:
        """Examples of keys that occur twice or contain a NULL."""
        incomplete = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.key)
        return sql.SQL(
            "SELECT concat_ws('/', {key}) AS example, {incomplete} AS incomplete FROM {table} AS k GROUP BY {key}"
            " HAVING count(*) > 1 OR {incomplete} LIMIT 3"
        ).format(key=names(self.key), incomplete=incomplete, table=table)

    def same(self, columns: Sequence[str]) -> sql.Composed:
        """Whether t, the target, and s, a table of rows, have equal values in these columns."""
        return sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in columns)

    def key_text(self, table: str) -> sql.Composed:
        """The key as Vitrine stores it: a JSON array of texts."""
        texts = sql.SQL(", ").join(sql.SQL("concat({})").format(sql.Identifier(table, name)) for name in self.key)
        return sql.SQL("json_build_array({})::text").format(texts)

    def _others(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name not in self.key]

    def _differs(self, columns: Sequence[str]) -> sql.Composed:
        others = self._others(columns)
        return sql.SQL(_DIFFERS).format(ours=names(others, "t"), theirs=names(others, "s"))

    def _same_key(self) -> sql.Composed:
        return self.same(self.key)
