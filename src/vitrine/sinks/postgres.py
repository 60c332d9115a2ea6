"""Rows into a Postgres mart: what changed is written, what did not is neither written nor locked."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json

from vitrine.errors import ConfigError, DataError
from vitrine.flow import Batch, Column, Copied, Counts, StateManager
from vitrine.model import Measure
from vitrine.policy import Target
from vitrine.postgres import PRINTING, Connection, connect, measure, raw, translated

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

STAGING_SCHEMA = "etl"

# A lost commit loses rows and checkpoint alike, and the commit that ends the run waits for all before it
_UNIT = """
    ; SET LOCAL synchronous_commit = off;
    SET LOCAL lock_timeout = '10s';
    SET LOCAL idle_in_transaction_session_timeout = '10s'
"""


@dataclass(frozen=True)
class FullLoad:
    """A load that collects everything in a staging table first."""

    staging: str
    fresh: bool  # nothing staged yet
    max_delete_ratio: float
    allow_shrink: bool


@dataclass(frozen=True)
class _Table:
    """The target as the catalog describes it."""

    types: dict[str, str]  # column: type, in order; generated columns are left out
    unique: frozenset[frozenset[str]]  # column sets that identify a row
    primary_key: tuple[str, ...]


class PostgresWriter:
    """A TargetWriter for `schema.table`. The key comes from the pipeline, or is the target's primary key."""

    def __init__(
        self,
        url: str,
        target: Target,
        *,
        key_columns: Sequence[str],
        touch_column: str | None,
        name: str,
    ) -> None:
        self._target = target
        self._identifier = sql.Identifier(target.schema or "", target.name)
        self._configured_key = tuple(key_columns)
        self._touch = touch_column
        self._load: FullLoad | None = None
        self._staging = sql.Identifier(STAGING_SCHEMA, "")
        self._connection = connect(url, name=name, side="target")
        try:
            self._table = self._inspect()
            self.key = self._resolve_key()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def begin_load(self, load: FullLoad) -> None:
        """From now on batches are collected in staging, and `publish` applies them."""
        self._load = load
        self._staging = sql.Identifier(STAGING_SCHEMA, load.staging)

    @contextmanager
    def unit(self) -> "Generator[PostgresUnit]":
        with translated(f"target {self._target}"), self._connection.transaction():
            self._connection.execute(PRINTING + _UNIT)
            yield PostgresUnit(self, self._connection)

    def publish(self, state: StateManager) -> Counts:
        if self._load is None:
            return Counts()
        try:
            self._build_staging_key()
            with self.unit() as unit:
                staged = self._count(self._staging) if self._exists(self._staging) else 0
                counts = self._apply_staging(staged)
                self._drop_staging()
                state.publish(unit, staged, counts)
        except DataError:
            # what was staged cannot be applied, and would be as wrong the next time: that run reads anew
            with self.unit() as unit:
                self._drop_staging()
                state.discard(unit)
            raise
        return counts

    # -- for reconcile --------------------------------------------------------------------------------------------

    def types(self) -> dict[str, str]:
        """Columns and types of the target, without the one that only tells when a row was written."""
        if self._table is None:
            raise ConfigError(f"target {self._target} does not exist; run the pipeline first", code="TARGET_MISSING")
        return {name: kind for name, kind in self._table.types.items() if name != self._touch}

    def measure(self, types: Mapping[str, str], control: str) -> Measure:
        with self.unit():
            return measure(self._connection, self._identifier, types, control)

    def measure_batches(self, batches: Iterable[Batch], types: Mapping[str, str], control: str) -> Measure:
        """The figures of rows that exist nowhere yet: collected in a temporary table, measured, forgotten."""
        table = sql.Identifier("pg_temp", "vitrine_measured")
        with self.unit():
            definitions = [(name, kind) for name, kind in types.items()]
            self._create_table(sql.SQL("TEMP"), table, definitions, sql.SQL("ON COMMIT DROP"))
            for batch in batches:
                self._copy_in(table, batch)
            return measure(self._connection, table, types, control)

    # -- one batch ------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> Counts:
        if not batch.count and (self._table is None and not isinstance(batch.payload, Copied)):
            return Counts()  # the columns a transform adds are not known before its first row
        self._check_columns(batch.columns)
        if self._load is not None:
            return self._stage(batch)
        if self._table is None:
            self._create_target(batch.columns)
        return Counts(read=batch.count, written=self._upsert(batch) if batch.count else 0)

    def _stage(self, batch: Batch) -> Counts:
        if self._load and self._load.fresh:
            self._create_staging(batch.columns)
        if batch.count:
            self._copy_in(self._staging, batch)
        return Counts(read=batch.count)

    def _upsert(self, batch: Batch) -> int:
        incoming = sql.Identifier("pg_temp", "vitrine_batch")
        self._create_like_target(sql.SQL("TEMP"), incoming, batch.columns, sql.SQL("ON COMMIT DROP"))
        self._copy_in(incoming, batch)
        self._add_key(incoming)
        names = [column.name for column in batch.columns]
        return self._update_from(incoming, names) + self._insert_from(incoming, names)

    def _copy_in(self, table: sql.Identifier, batch: Batch) -> None:
        """Rows by COPY. Binary bytes go into a column of their own type only, everything else is cast by Postgres."""
        if self._same_types(batch.columns) or not isinstance(batch.payload, Copied):
            self._copy(table, batch)
            return
        uncast = sql.Identifier("pg_temp", "vitrine_uncast")
        self._create_table(
            sql.SQL("TEMP"), uncast, [(c.name, c.type_name) for c in batch.columns], sql.SQL("ON COMMIT DROP")
        )
        self._copy(uncast, batch)
        columns = _list(column.name for column in batch.columns)
        # an INSERT casts as an assignment does: a text too long for its column is an error, not cut off
        self._connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(table, columns, columns, uncast)
        )

    def _copy(self, table: sql.Identifier, batch: Batch) -> None:
        columns = _list(column.name for column in batch.columns)
        binary = isinstance(batch.payload, Copied)
        options = sql.SQL("(FORMAT binary)") if binary else sql.SQL("(FORMAT text)")
        statement = sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, columns, options)
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            if isinstance(batch.payload, Copied):
                copy.write(COPY_HEADER + b"".join(batch.payload.rows) + COPY_TRAILER)
                return
            is_json = [self._type_of(column) in ("json", "jsonb") for column in batch.columns]
            for row in batch.payload.rows:
                copy.write_row([_value(row[c.name], json) for c, json in zip(batch.columns, is_json, strict=True)])

    def _update_from(self, source: sql.Identifier, columns: Sequence[str]) -> int:
        others = [name for name in columns if name not in self.key]
        if not others:
            return 0
        assignments = [sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in others]
        if self._touch:
            assignments.append(sql.SQL("{} = now()").format(sql.Identifier(self._touch)))
        statement = sql.SQL(
            "UPDATE {target} AS t SET {assignments} FROM {source} AS s WHERE {same_key}"
            " AND ROW({ours})::record OPERATOR(pg_catalog.*<>) ROW({theirs})::record"
        ).format(
            target=self._identifier,
            assignments=sql.SQL(", ").join(assignments),
            source=source,
            same_key=self._same_key(),
            ours=_list(others, "t"),
            theirs=_list(others, "s"),
        )
        return self._connection.execute(statement).rowcount

    def _insert_from(self, source: sql.Identifier, columns: Sequence[str]) -> int:
        touched = [sql.Identifier(self._touch)] if self._touch else []
        statement = sql.SQL(
            "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {source} AS s"
            " WHERE NOT EXISTS (SELECT FROM {target} AS t WHERE {same_key}) ON CONFLICT DO NOTHING"
        ).format(
            target=self._identifier,
            columns=sql.SQL(", ").join([*map(sql.Identifier, columns), *touched]),
            values=sql.SQL(", ").join(
                [*(sql.Identifier("s", name) for name in columns), *([sql.SQL("now()")] * len(touched))]
            ),
            source=source,
            same_key=self._same_key(),
        )
        return self._connection.execute(statement).rowcount

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self.key)

    # -- a full load ----------------------------------------------------------------------------------------------

    def _drop_staging(self) -> None:
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._staging))

    def _create_staging(self, columns: Sequence[Column]) -> None:
        self._drop_staging()
        self._create_like_target(sql.SQL(""), self._staging, columns, sql.SQL(""))
        self._load = replace(self._load, fresh=False) if self._load else None

    def _build_staging_key(self) -> None:
        if not self._exists(self._staging):
            return
        with self.unit():
            if not self._has_key(self._staging):
                self._add_key(self._staging)
            if self._table is not None:
                self._connection.execute(sql.SQL("ANALYZE {}").format(self._staging))

    def _apply_staging(self, staged: int) -> Counts:
        """Delete what vanished, update what differs, insert what is new: readers see the old set, then the new."""
        if not self._exists(self._staging):
            return Counts()
        if self._table is None:
            self._become_target()
            return Counts(written=staged)
        columns = self._columns_of(self._staging)
        deleted = self._delete_vanished()
        written = self._update_from(self._staging, list(columns)) + self._insert_from(self._staging, list(columns))
        return Counts(written=written, deleted=deleted)

    def _become_target(self) -> None:
        """A missing target receives the staging table itself, with the rights a table created there would have."""
        grants = self._default_grants()
        key = sql.Identifier(f"{self._target.name[:58]}_pkey")
        moved = sql.Identifier(self._target.schema or "", self._load.staging if self._load else "")
        for statement in (
            sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(self._staging, self._key_name(), key),
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(self._staging, sql.Identifier(self._target.schema or "")),
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(moved, sql.Identifier(self._target.name)),
            *grants,
        ):
            self._connection.execute(statement)
        self._add_touch_column()
        self._table = self._inspect()

    def _default_grants(self) -> list[sql.Composed]:
        """What ALTER DEFAULT PRIVILEGES gives to a new table of the target's schema."""
        self._connection.execute(sql.SQL("CREATE TABLE {} ()").format(self._identifier))
        rows = self._connection.execute(
            "SELECT a.privilege_type AS privilege, r.rolname AS role, a.is_grantable FROM pg_class c"
            "  CROSS JOIN aclexplode(c.relacl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee"
            " WHERE c.oid = %s::regclass AND a.grantee <> c.relowner",
            [self._identifier.as_string(None)],
        ).fetchall()
        self._connection.execute(sql.SQL("DROP TABLE {}").format(self._identifier))
        return [
            sql.SQL("GRANT {} ON {} TO {}{}").format(
                raw(row["privilege"]),
                self._identifier,
                sql.Identifier(row["role"]) if row["role"] else sql.SQL("PUBLIC"),
                sql.SQL(" WITH GRANT OPTION" if row["is_grantable"] else ""),
            )
            for row in rows
        ]

    def _key_name(self) -> sql.Identifier:
        row = self._connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
            [self._staging.as_string(None)],
        ).fetchone()
        return sql.Identifier(row["conname"] if row else "")

    def _delete_vanished(self) -> int:
        statement = sql.SQL(
            "DELETE FROM {target} AS t WHERE NOT EXISTS (SELECT FROM {staging} AS s WHERE {same_key})"
        ).format(target=self._identifier, staging=self._staging, same_key=self._same_key())
        before = self._count(self._identifier)
        deleted = self._connection.execute(statement).rowcount
        load = self._load
        if load and deleted and not load.allow_shrink and deleted > before * load.max_delete_ratio:
            raise DataError(
                f"the source lacks {deleted} of the {before} rows of {self._target}, more than max_delete_ratio"
                f" {load.max_delete_ratio:g} allows; nothing was deleted. If that is right, run once with allow_shrink",
                code="SHRINK_GUARD",
            )
        return deleted

    def _count(self, table: sql.Identifier) -> int:
        row = self._connection.execute(sql.SQL("SELECT count(*) AS n FROM {}").format(table)).fetchone()
        return row["n"] if row else 0

    # -- tables ---------------------------------------------------------------------------------------------------

    def _create_like_target(
        self, kind: sql.SQL, table: sql.Identifier, columns: Sequence[Column], ending: sql.SQL
    ) -> None:
        self._create_table(kind, table, [(column.name, self._type_of(column)) for column in columns], ending)

    def _create_table(
        self, kind: sql.SQL, table: sql.Identifier, columns: Sequence[tuple[str, str]], ending: sql.SQL
    ) -> None:
        definitions = [sql.SQL("{} {}").format(sql.Identifier(name), raw(type_name)) for name, type_name in columns]
        self._connection.execute(
            sql.SQL("CREATE {} TABLE {} ({}) {}").format(kind, table, sql.SQL(", ").join(definitions), ending)
        )

    def _create_target(self, columns: Sequence[Column]) -> None:
        """The mart as the query gives it, with the key as primary key and the touch column behind."""
        definitions = [(column.name, column.type_name) for column in columns]
        self._create_table(sql.SQL(""), self._identifier, definitions, sql.SQL(""))
        self._add_touch_column()
        self._add_key(self._identifier)
        self._table = self._inspect()

    def _add_touch_column(self) -> None:
        if self._touch:
            statement = sql.SQL("ALTER TABLE {} ADD COLUMN {} timestamptz NOT NULL DEFAULT now()")
            self._connection.execute(statement.format(self._identifier, sql.Identifier(self._touch)))

    def _add_key(self, table: sql.Identifier) -> None:
        """Each key once, none NULL; otherwise a DataError with examples."""
        try:
            with self._connection.transaction():
                self._connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(table, _list(self.key)))
        except psycopg.errors.UniqueViolation as exc:
            raise DataError(
                f"the source gives the same key ({', '.join(self.key)}) more than once, for example"
                f" {self._example_keys(table)}; a JOIN may repeat rows, or the key is not unique",
                code="DUPLICATE_KEY",
            ) from exc
        except psycopg.errors.NotNullViolation as exc:
            raise DataError(
                f"the source gives rows with NULL in key column '{exc.diag.column_name}'; a key must be complete",
                code="NULL_KEY",
            ) from exc

    def _example_keys(self, table: sql.Identifier) -> str:
        statement = sql.SQL("SELECT concat_ws('/', {0}) AS key FROM {1} GROUP BY {0} HAVING count(*) > 1 LIMIT 3")
        rows = self._connection.execute(statement.format(_list(self.key), table)).fetchall()
        return ", ".join(row["key"] for row in rows)

    def _exists(self, table: sql.Identifier) -> bool:
        row = self._connection.execute("SELECT to_regclass(%s) IS NOT NULL AS yes", [table.as_string(None)]).fetchone()
        return bool(row and row["yes"])

    def _has_key(self, table: sql.Identifier) -> bool:
        row = self._connection.execute(
            "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = %s::regclass AND indisprimary) AS yes",
            [table.as_string(None)],
        ).fetchone()
        return bool(row and row["yes"])

    def _columns_of(self, table: sql.Identifier) -> dict[str, str]:
        rows = self._connection.execute(
            "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [table.as_string(None)],
        ).fetchall()
        return {row["name"]: row["type"] for row in rows}

    def _inspect(self) -> _Table | None:
        """The target, or None if there is none yet."""
        with translated(f"target {self._target}"), self._connection.transaction():
            self._connection.execute("SET LOCAL search_path = pg_catalog")
            if not self._exists(self._identifier):
                return None
            keys = self._connection.execute(
                "SELECT i.indisprimary AS is_primary, array_agg(a.attname::text ORDER BY k.place) AS columns"
                "  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place), pg_attribute a"
                " WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL"
                "   AND i.indisvalid AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum"
                " GROUP BY i.indexrelid, i.indisprimary",
                [self._identifier.as_string(None)],
            ).fetchall()
            return _Table(
                types=self._columns_of(self._identifier),
                unique=frozenset(frozenset(row["columns"]) for row in keys),
                primary_key=next((tuple(row["columns"]) for row in keys if row["is_primary"]), ()),
            )

    def _resolve_key(self) -> tuple[str, ...]:
        if self._table is None:
            if not self._configured_key:
                raise ConfigError(
                    f"target {self._target} does not exist yet; name key_columns, and it is created with them",
                    code="KEY_MISSING",
                )
            return self._configured_key
        key = self._configured_key or self._table.primary_key
        if not key:
            raise ConfigError(
                f"target {self._target} has no primary key; add one, or name key_columns", code="KEY_MISSING"
            )
        if frozenset(key) not in self._table.unique:
            raise ConfigError(
                f"key_columns ({', '.join(key)}) of target {self._target} are not covered by a unique index of exactly"
                " these columns; add one, or correct key_columns",
                code="KEY_NOT_UNIQUE",
            )
        return key

    def _check_columns(self, columns: Sequence[Column]) -> None:
        names = {column.name for column in columns}
        if missing := [name for name in self.key if name not in names]:
            raise ConfigError(f"the rows lack the key column '{missing[0]}'", code="SCHEMA_CHANGED")
        if self._table is None:
            return
        if unknown := [column.name for column in columns if column.name not in self._table.types]:
            raise ConfigError(
                f"target {self._target} has no column '{unknown[0]}'; add it to the table, or drop it from the query",
                code="TARGET_SCHEMA",
            )
        if self._touch and self._touch not in self._table.types:
            raise ConfigError(
                f"target {self._target} has no column '{self._touch}' (touch_column); add it, or drop the option",
                code="TARGET_SCHEMA",
            )

    def _type_of(self, column: Column) -> str:
        return self._table.types.get(column.name, column.type_name) if self._table else column.type_name

    def _same_types(self, columns: Sequence[Column]) -> bool:
        return all(self._type_of(column) == column.type_name for column in columns)


@dataclass(frozen=True)
class PostgresUnit:
    """One transaction of the target's database; the checkpoint is saved through its connection."""

    writer: PostgresWriter
    connection: Connection

    def write(self, batch: Batch) -> Counts:
        return self.writer.write(batch)


def _list(names: Sequence[str] | Iterator[str], table: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table, name) if table else sql.Identifier(name) for name in names)


def _value(value: Any, is_json: bool) -> Any:
    return Json(value) if is_json and value is not None else value
