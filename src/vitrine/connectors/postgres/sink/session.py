"""The session of a sink: its statements, its staging tables, and the transaction of a unit."""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.types import Operator
from vitrine.core.status import PipelineId
from vitrine.definition.context import SweepJob
from vitrine.postgres import (
    QUESTION,
    TEXT_FORMAT,
    Connection,
    RoleLimits,
    answered,
    connect,
    connect_and_ask,
    raw,
    translated,
)

# Every name of a column is qualified or stands where only a column can: an alias never competes with a column's name.
_DIFFERS = "ROW({ours})::record OPERATOR(pg_catalog.*<>) ROW({theirs})::record"
"""Compares row images: works for json, which has no equality operator, and detects 1.0 changed to 1.00."""

_EQUAL = Operator("pg_catalog", "=")


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
    # equality of each column's type: a bare = would be that of another type under our search_path
    equal: Mapping[str, Operator] = field(default_factory=dict[str, Operator])
    inexact_key: frozenset[str] = frozenset()  # key columns whose equal values may differ: 1.0 and 1.00

    def merge(self, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        """Update rows that differ and insert new ones; an equal row is neither written nor locked."""
        touched = [self.touch] if self.touch else []
        return sql.SQL(
            "MERGE INTO {target} AS t USING {source} AS s ON {same_key} {update}"
            " WHEN NOT MATCHED THEN INSERT ({columns}) OVERRIDING SYSTEM VALUE VALUES ({values})"
        ).format(
            target=self.target,
            source=source,
            same_key=self.same(self.key),
            update=self._update(columns),
            columns=names([*columns, *touched]),
            values=sql.SQL(", ").join(
                [*(sql.Identifier("s", name) for name in columns), *(sql.SQL("now()") for _ in touched)]
            ),
        )

    def _update(self, columns: Sequence[str]) -> sql.Composable:
        changing = self._changing(columns)
        if not changing:
            return sql.SQL("")
        assignments = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("s", name)) for name in changing]
        if self.touch:
            assignments.append(sql.SQL("{} = now()").format(sql.Identifier(self.touch)))
        # guarantee: E9
        return sql.SQL("WHEN MATCHED AND {differs} THEN UPDATE SET {assignments}").format(
            differs=_differs(changing), assignments=sql.SQL(", ").join(assignments)
        )

    def ordered(
        self, table: sql.Composable, columns: Sequence[str] | None = None, *, descending: bool = False
    ) -> sql.Composed:
        """Rows in the order of these columns, or of the key: a lookup by key then reads each index page once."""
        direction = sql.SQL(" DESC" if descending else "")
        by = sql.SQL(", ").join(sql.Identifier("q", name) + direction for name in columns or self.key)
        return sql.SQL("(SELECT q.* FROM {} AS q ORDER BY {})").format(table, by)

    def delete_vanished(self, staging: sql.Identifier, kept: str | None) -> sql.Composed:
        """Delete rows that are not staged, except those whose keys are in a JSON array."""
        statement = sql.SQL(
            "DELETE FROM {target} AS t WHERE NOT EXISTS (SELECT FROM {staging} AS s WHERE {same_key})"
        ).format(target=self.target, staging=staging, same_key=self.same(self.key))
        if kept is None:
            return statement
        excepted = sql.SQL(" AND NOT {} IN (SELECT json_array_elements_text({}::json))")
        return statement + excepted.format(self.key_text("t"), sql.Literal(kept))

    def drop_superseded(self, staging: sql.Identifier, order: Sequence[str]) -> sql.Composed:
        """Keep only the last of several rows with one key, by these columns and then by position."""
        newest = [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier("q", name)) for name in order]
        return sql.SQL(
            "DELETE FROM {staging} AS t WHERE t.ctid IN (SELECT r.ctid FROM (SELECT q.ctid, row_number() OVER"
            " (PARTITION BY {key} ORDER BY {newest}) AS place FROM {staging} AS q) AS r WHERE r.place > 1)"
        ).format(
            staging=staging, key=names(self.key, "q"), newest=sql.SQL(", ").join([*newest, sql.SQL("q.ctid DESC")])
        )

    # -- rows that exchange a unique value ------------------------------------------------------------------------

    def take_out(self, source: sql.Composable, columns: Sequence[str], taken: sql.Identifier) -> sql.Composed:
        """Move the target's rows that differ into `taken`, with all columns."""
        return sql.SQL(
            "WITH gone AS (DELETE FROM {target} AS t USING {source} AS s WHERE {same_key} AND {differs} RETURNING t.*)"
            " INSERT INTO {taken} SELECT * FROM gone"
        ).format(
            target=self.target,
            source=source,
            same_key=self.same(self.key),
            differs=_differs(self._changing(columns)),
            taken=taken,
        )

    def put_in(
        self, source: sql.Composable, columns: Sequence[str], taken: sql.Identifier, foreign: Sequence[str]
    ) -> sql.Composed:
        """Insert the rows of `taken` again with the new values; columns that the query does not set keep theirs."""
        kept = [sql.SQL("now()") if name == self.touch else sql.Identifier("t", name) for name in foreign]
        return sql.SQL(
            "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values}"
            " FROM {taken} AS t JOIN {source} AS s ON {same_key}"
        ).format(
            target=self.target,
            columns=names([*columns, *foreign]),
            values=sql.SQL(", ").join([*(sql.Identifier("s", name) for name in columns), *kept]),
            taken=taken,
            source=source,
            same_key=self.same(self.key),
        )

    def release(self, source: sql.Composable, unique: Sequence[str], column: str) -> sql.Composed:
        """Set a column of a unique constraint to NULL where a row will have another value of the constraint."""
        return sql.SQL(
            "UPDATE {target} AS t SET {column} = NULL FROM {source} AS s WHERE {same_key} AND {differs}"
        ).format(
            target=self.target,
            column=sql.Identifier(column),
            source=source,
            same_key=self.same(self.key),
            differs=_differs(unique),
        )

    def has_conflict(self, source: sql.Composable, unique: Sequence[str]) -> sql.Composed:
        """Whether two rows would have one value of a unique constraint after all rows of the source were merged."""
        return sql.SQL(
            "SELECT EXISTS (SELECT FROM {source} AS s JOIN {target} AS t ON {same_value}"
            " WHERE NOT EXISTS (SELECT FROM {source} AS s WHERE {same_key}))"
            " OR EXISTS (SELECT FROM {source} AS s WHERE ({complete}) GROUP BY {unique} HAVING count(*) > 1)"
            " AS conflict"
        ).format(
            source=source,
            target=self.target,
            same_value=self.same(unique),
            same_key=self.same(self.key),
            complete=sql.SQL(" AND ").join(
                sql.SQL("{} IS NOT NULL").format(sql.Identifier("s", one)) for one in unique
            ),
            unique=names(unique, "s"),
        )

    # -- what is stored -------------------------------------------------------------------------------------------

    def count_altered(self, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        """How many rows of the source the target does not hold as they are."""
        return sql.SQL(
            "SELECT count(*) AS rows FROM {source} AS s WHERE NOT EXISTS"
            " (SELECT FROM {target} AS t WHERE {same_key} AND NOT ({differs}))"
        ).format(
            source=source,
            target=self.target,
            same_key=self.same(self.key),
            differs=_differs(columns),
        )

    def count_unknown(self, source: sql.Composable) -> sql.Composed:
        """How many rows of the target the source lacks."""
        return sql.SQL(
            "SELECT count(*) AS rows FROM {target} AS t WHERE NOT EXISTS (SELECT FROM {source} AS s WHERE {same_key})"
        ).format(target=self.target, source=source, same_key=self.same(self.key))

    def bad_keys(self, table: sql.Composable) -> sql.Composed:
        """Examples of keys that occur twice or contain a NULL."""
        incomplete = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier("q", name)) for name in self.key)
        return sql.SQL(
            "SELECT concat_ws('/', {key}) AS example, {incomplete} AS incomplete FROM {table} AS q GROUP BY {key}"
            " HAVING count(*) > 1 OR {incomplete} LIMIT 3"
        ).format(key=names(self.key, "q"), incomplete=incomplete, table=table)

    def same(self, columns: Sequence[str]) -> sql.Composed:
        """Whether t, the target, and s, a table of rows, have equal values in these columns."""
        return sql.SQL(" AND ").join(
            self.equal.get(name, _EQUAL).between(sql.Identifier("t", name), sql.Identifier("s", name))
            for name in columns
        )

    def key_text(self, table: str) -> sql.Composed:
        """The key as Vitrine stores it: a JSON array of texts."""
        texts = sql.SQL(", ").join(sql.SQL("concat({})").format(sql.Identifier(table, name)) for name in self.key)
        return sql.SQL("json_build_array({})::text").format(texts)

    def _changing(self, columns: Sequence[str]) -> list[str]:
        """The columns that an update sets."""
        return [name for name in columns if name not in self.key or name in self.inexact_key]


def _differs(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(_DIFFERS).format(ours=names(columns, "t"), theirs=names(columns, "s"))


_CODES = {
    "42804": "SCHEMA_CHANGED",
    "42703": "TARGET_SCHEMA",
    "42P01": "TARGET_SCHEMA",
    "3F000": "TARGET_SCHEMA",
    # guarantee: B6
    "55P03": "SINK_LOCKED",
}

# synchronous_commit is off: a lost commit loses rows and checkpoint together, and the commit that ends the run makes
# all earlier ones durable. With row_security off, a policy raises an error instead of hiding rows. When rows do not
# fit, the transaction rolls back to the savepoint.
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;"
    + TEXT_FORMAT
    + """
    ; SET LOCAL xmloption = content;
    SET LOCAL synchronous_commit = off;
    SET LOCAL work_mem = '64MB';
    SET LOCAL maintenance_work_mem = '256MB';
    SET LOCAL lock_timeout = '10s';
    SET LOCAL row_security = off;
    SET LOCAL idle_in_transaction_session_timeout = '10s'
"""
)
_SAVEPOINT = "; SAVEPOINT fitting"
_LIMITS = {"lock_timeout": 10_000, "idle_in_transaction_session_timeout": 10_000}
_MEMORY = ("work_mem", "maintenance_work_mem")
"""What _BEGIN sets, in milliseconds; a stricter limit and a memory of the role take precedence."""


_READERS_WAIT = "SET LOCAL lock_timeout = '800ms'"
"""Readers queue behind a waiting ALTER TABLE: it waits for less than a second, then lets them pass."""

_PAUSES = (0.5, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)
"""Seconds between the attempts to lock the target."""


class TargetSession:
    """One connection to the database of the target, opened by the first call that needs it."""

    def __init__(self, url: str, name: str, target: str) -> None:
        self._url = url
        self._name = name
        self._target = target
        self._opened: Connection | None = None
        self._begin_text = ""

    @property
    def connection(self) -> Connection:
        if self._opened is None:
            self._opened, row = connect_and_ask(
                psycopg.Connection[DictRow], self._url, QUESTION, name=self._name, side="target"
            )
            kept = RoleLimits.of(row).kept(_LIMITS, _MEMORY).as_string(self._opened)
            self._begin_text = _BEGIN + kept + _SAVEPOINT
        return self._opened

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """A transaction with the settings that every unit needs."""
        connection = self.connection
        with self.translated():
            self._begin()
            try:
                yield connection
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _begin(self) -> None:
        # in one message, to save round trips
        connection = self.connection
        with answered(connection, f"target {self._target}"):
            connection.execute(raw(self._begin_text))

    def roll_back_to_start(self) -> None:
        """Undo what the open transaction did so far."""
        self.connection.execute("ROLLBACK TO SAVEPOINT fitting")

    def alter(self, statement: sql.Composed, wait: Callable[[float], None]) -> None:
        """Change the target before anything else is written, in a transaction that holds its lock for a moment only."""
        connection = self.connection
        opened = connection.info.transaction_status is not TransactionStatus.IDLE
        if opened and self._has_written():
            connection.execute(statement)
            return
        if opened:
            connection.execute("COMMIT")
        for pause in _PAUSES:
            try:
                self._alter_now(statement)
                break
            except psycopg.errors.LockNotAvailable:
                wait(pause)
        else:
            self._alter_now(statement)
        if opened:
            self._begin()

    def _alter_now(self, statement: sql.Composed) -> None:
        with self.connection.transaction():
            self.connection.execute(_READERS_WAIT)
            self.connection.execute(statement)

    def _has_written(self) -> bool:
        row = self.connection.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS yes").fetchone()
        return bool(row and row["yes"])

    @contextmanager
    def translated(self) -> Generator[None]:
        """Translate errors of the target into our groups; schema mismatches and locks have their own codes."""
        try:
            yield
        except psycopg.Error as exc:
            with translated(f"target {self._target}", code=_CODES.get(exc.sqlstate or ""), known=self._target):
                raise

    def create_temporary(self, table: sql.Identifier, columns: list[tuple[str, str]]) -> None:
        """Create a table that is dropped at the end of the transaction."""
        typed = [(name, raw(type_name)) for name, type_name in columns]
        self.connection.execute(create_table(sql.SQL("TEMP"), table, typed, sql.SQL("ON COMMIT DROP")))

    def create(self, table: sql.Identifier, columns: list[tuple[str, str]]) -> None:
        typed = [(name, raw(type_name)) for name, type_name in columns]
        catalog.create(self.connection, create_table(sql.SQL(""), table, typed, sql.SQL("")))

    def count(self, table: sql.Identifier) -> int:
        row = self.connection.execute(sql.SQL("SELECT count(*) AS rows FROM {}").format(table)).fetchone()
        return row["rows"] if row else 0

    def exists(self, table: sql.Identifier) -> bool:
        with self.translated():
            return catalog.exists(self.connection, table)

    def cancel(self) -> None:
        opened = self._opened
        if opened is not None and opened.info.transaction_status is TransactionStatus.ACTIVE:
            opened.cancel_safe(timeout=1.0)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


SCHEMA = "etl"
_NAME = re.compile(r"stage_([0-9a-f]{32})_g([0-9]+)")


def staging_name(pipeline_id: PipelineId, generation: int) -> str:
    return f"stage_{pipeline_id.hex}_g{generation}"


def renamed_staging(text: str, table: str) -> str:
    """The text with the name of the mart's table, where the server has written that of its staging."""
    return _NAME.sub(lambda _: table, text)


def staging_identifier(name: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, name)


def drop_staging(connection: Connection, name: str) -> None:
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging_identifier(name)))


def sweep_staging(job: SweepJob[PostgresSettings]) -> list[str]:
    """Remove staging tables of loads that are no longer under construction; returns their names."""
    with connect(job.store_url, name="vitrine:sweep", side="target") as connection, translated("target"):
        rows = connection.execute(
            "SELECT relname::text AS name FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
            "   AND relname ~ '^stage_[0-9a-f]{32}_g[0-9]+$' ORDER BY relname",
            [SCHEMA],
        ).fetchall()
        found = [row["name"] for row in rows]
        in_use = job.open_loads() if found else ()
        leftover = [name for name in found if _load_of(name) not in in_use]
        for name in leftover:
            drop_staging(connection, name)
    return leftover


def _load_of(name: str) -> tuple[PipelineId, int] | None:
    matched = _NAME.fullmatch(name)
    return (PipelineId(UUID(matched[1])), int(matched[2])) if matched else None
