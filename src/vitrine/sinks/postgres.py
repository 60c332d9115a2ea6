"""Rows into a Postgres mart: what changed is written, what did not is neither written nor locked."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import sql

from vitrine.errors import ConfigError, DataError
from vitrine.flow import Batch, Column, Copied, Counts, Reject, StateManager
from vitrine.model import Measure, Options
from vitrine.policy import Target
from vitrine.postgres import PRINTING, Connection, connect, measure, raw, safe_message, translated
from vitrine.printed import binary_of, text_of
from vitrine.sinks.isolation import isolate

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

STAGING_SCHEMA = "etl"

_SCHEMA_CODES = {"42804": "SCHEMA_CHANGED", "42703": "TARGET_SCHEMA", "42P01": "TARGET_SCHEMA"}

_BATCH = sql.Identifier("pg_temp", "vitrine_batch")
_NUMBERED = sql.Identifier("pg_temp", "vitrine_numbered")
_NUMBER_NAME = "vitrine number"  # no column of a query has a blank in its name
_NUMBER = sql.Identifier(_NUMBER_NAME)

# A lost commit loses rows and checkpoint alike, and the commit that ends the run waits for all before it
_UNIT = """
    ; SET LOCAL synchronous_commit = off;
    SET LOCAL work_mem = '64MB';
    SET LOCAL maintenance_work_mem = '256MB';
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
        options: Options,
        open_rejects: Sequence[str] = (),
        name: str,
    ) -> None:
        self._target = target
        self._options = options
        self._open_rejects = list(open_rejects)
        self._rejected = 0
        self._identifier = sql.Identifier(target.schema or "", target.name)
        self._configured_key = tuple(key_columns)
        self._touch = options.touch_column
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
        with self._translated():
            # in one go: a unit is as short as its round trips. Rows that do not fit go back to the savepoint
            self._connection.execute("BEGIN;" + PRINTING + _UNIT + "; SAVEPOINT fitting")
            try:
                yield PostgresUnit(self, self._connection)
            except BaseException:
                if not self._connection.closed:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Errors of the target in our groups; what its table lacks, or holds in another type, has a code of its own."""
        try:
            with translated(f"target {self._target}"):
                yield
        except ConfigError as exc:
            code = _SCHEMA_CODES.get(getattr(exc.__cause__, "sqlstate", None) or "")
            raise (ConfigError(str(exc), code=code) if code else exc) from exc.__cause__

    def publish(self, state: StateManager) -> Counts:
        if self._load is None:
            return Counts()
        try:
            self._build_staging_key()
            with self.unit() as unit:
                staged = self._count(self._staging) if self._exists(self._staging) else 0
                counts = self._apply_staging(unit, staged)
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

    @property
    def exists(self) -> bool:
        return self._table is not None

    def cascades(self) -> list[str]:
        """Tables whose rows go when a row of the target goes."""
        with self.unit():
            rows = self._connection.execute(
                "SELECT conrelid::regclass::text AS name FROM pg_constraint WHERE contype = 'f' AND confdeltype = 'c'"
                " AND confrelid = to_regclass(%s) ORDER BY 1",
                [self._identifier.as_string(None)],
            ).fetchall()
        return [row["name"] for row in rows]

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

    def write(self, unit: "PostgresUnit", batch: Batch) -> Counts:
        if not batch.count and (self._table is None and not isinstance(batch.payload, Copied)):
            return Counts()  # the columns a transform adds are not known before its first row
        before = self._table, self._load
        try:
            written = self._write(unit, batch)
        except (psycopg.DataError, psycopg.IntegrityError) as exc:
            self._connection.execute("ROLLBACK TO SAVEPOINT fitting")
            self._table, self._load = before
            written = self._write_around(unit, batch, exc)
        return Counts(read=batch.count, written=written, rejected=len(unit.rejects))

    def _write(self, unit: "PostgresUnit", batch: Batch) -> int:
        self._prepare(batch.columns)
        if not batch.count:
            return 0
        if self._load is not None:
            self._copy_in(self._staging, batch)
            return 0
        self._create_batch(batch.columns)
        self._copy_in(_BATCH, batch)
        return self._upsert(unit, [column.name for column in batch.columns])

    def _prepare(self, columns: Sequence[Column]) -> None:
        """Afterwards there is a table for these columns: the staging of a full load, or the target."""
        self._check_columns(columns)
        if self._load is not None and self._load.fresh:
            self._create_staging(columns)
        elif self._load is None and self._table is None:
            self._create_target(columns)

    def _create_batch(self, columns: Sequence[Column]) -> None:
        self._create_like_target(sql.SQL("TEMP"), _BATCH, columns, sql.SQL("ON COMMIT DROP"))

    def _upsert(self, unit: "PostgresUnit", columns: Sequence[str]) -> int:
        self._refuse_bad_keys(_BATCH)
        # A batch is small beside its mart: look each row up by its key. Without statistics of the batch the planner
        # would scan the whole mart instead.
        self._connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        written = self._merge(_BATCH, columns)
        self._heal(unit, _BATCH)
        return written

    # -- rows that do not fit ---------------------------------------------------------------------------------------

    def _write_around(self, unit: "PostgresUnit", batch: Batch, exc: psycopg.Error) -> int:
        """Write every row that fits; the others are put aside, or the first of them is told (on_reject)."""
        self._prepare(batch.columns)
        names = [column.name for column in batch.columns]
        self._number(batch)
        if self._load is None:
            self._create_batch(batch.columns)
        written = 0

        def attempt(low: int, high: int) -> Exception | None:
            nonlocal written
            try:
                with self._connection.transaction():
                    written += self._write_range(unit, names, low, high)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                return error
            return None

        for number, error in isolate(1, batch.count, attempt):
            self._put_aside(unit, self._describe_reject(batch.columns, number, error))
        return written

    def _number(self, batch: Batch) -> None:
        """The batch as text or in its own types, each row with a number."""
        as_text = not isinstance(batch.payload, Copied)
        columns = [(column.name, "text" if as_text else column.type_name) for column in batch.columns]
        self._create_table(sql.SQL("TEMP"), _NUMBERED, columns, sql.SQL("ON COMMIT DROP"))
        self._connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN {} integer GENERATED ALWAYS AS IDENTITY").format(_NUMBERED, _NUMBER)
        )
        self._copy(_NUMBERED, batch)

    def _write_range(self, unit: "PostgresUnit", names: Sequence[str], low: int, high: int) -> int:
        table = self._staging if self._load is not None else _BATCH
        if self._load is None:
            self._connection.execute(sql.SQL("TRUNCATE {}").format(_BATCH))
        self._connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} AS n WHERE {} BETWEEN {} AND {}").format(
                table, _list(names), self._readable(names), _NUMBERED, _NUMBER, low, high
            )
        )
        return self._upsert(unit, names) if self._load is None else 0

    def _readable(self, names: Sequence[str]) -> sql.Composed:
        """Columns of the numbered rows, read as the type they go into: texts have no assignment cast of their own."""
        types = self._columns_of(_NUMBERED)
        bare = self._bare_types()
        return sql.SQL(", ").join(
            sql.SQL("CAST({} AS {})").format(sql.Identifier(name), raw(bare[name]))
            if types[name] == "text" and name in bare
            else sql.Identifier(name)
            for name in names
        )

    def _bare_types(self) -> dict[str, str]:
        """Types of the table that is written, without length or scale: those are checked by the assignment."""
        table = self._staging if self._load is not None else self._identifier
        rows = self._connection.execute(
            "SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [table.as_string(None)],
        ).fetchall()
        return {row["name"]: row["type"] for row in rows}

    def _describe_reject(self, columns: Sequence[Column], number: int, error: Exception) -> Reject:
        row = self._connection.execute(
            sql.SQL(
                "SELECT concat_ws('/', {}) AS key, (to_jsonb(n) - {})::text AS row FROM {} AS n WHERE {} = {}"
            ).format(_list(self.key), sql.Literal(_NUMBER_NAME), _NUMBERED, _NUMBER, number)
        ).fetchone()
        found = row or {"key": "", "row": "{}"}
        sqlstate = getattr(error, "sqlstate", None) or "?????"
        column = self._culprit(columns, number) or getattr(getattr(error, "diag", None), "column_name", None)
        where = f"column '{column}'" if column else "the row"
        reason = f"{where} does not fit: {safe_message(error)}"
        return Reject(found["key"], column, sqlstate, reason, found["row"])

    def _culprit(self, columns: Sequence[Column], number: int) -> str | None:
        """The column whose value alone cannot be stored, if there is one."""
        probe = sql.Identifier("pg_temp", "vitrine_probe")
        for column in columns:
            try:
                with self._connection.transaction():
                    self._create_like_target(sql.SQL("TEMP"), probe, [column], sql.SQL("ON COMMIT DROP"))
                    self._connection.execute(
                        sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE {} = {}").format(
                            probe, self._readable([column.name]), _NUMBERED, _NUMBER, number
                        )
                    )
                    self._connection.execute(sql.SQL("DROP TABLE {}").format(probe))
            except psycopg.DataError:
                return column.name
        return None

    def _put_aside(self, unit: "PostgresUnit", reject: Reject) -> None:
        if self._options.on_reject == "fail":
            raise DataError(
                f"row {reject.key} of {self._target}: {reject.reason}; correct it, or set options.on_reject: quarantine"
            )
        self._rejected += 1
        if self._rejected > self._options.max_rejects:
            raise DataError(
                f"more than {self._options.max_rejects} rows do not fit {self._target}, the last is {reject.key}:"
                f" {reject.reason}; correct them, or raise options.max_rejects",
                code="TOO_MANY_REJECTS",
            )
        unit.rejects.append(reject)

    def _heal(self, unit: "PostgresUnit", table: sql.Identifier) -> None:
        """Note the rejects of earlier runs whose rows are in this table, and so are written now."""
        if not self._open_rejects:
            return
        statement = sql.SQL("SELECT key FROM (SELECT concat_ws('/', {}) AS key FROM {}) AS k WHERE key = ANY (%s)")
        rows = self._connection.execute(statement.format(_list(self.key), table), [self._open_rejects]).fetchall()
        unit.healed.extend(row["key"] for row in rows)

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
        binary = binary_of(batch, {} if isinstance(batch.payload, Copied) else self._columns_of(table))
        if binary is not None:
            options, parts = sql.SQL("(FORMAT binary)"), (COPY_HEADER, binary, COPY_TRAILER)
        else:
            options, parts = sql.SQL("(FORMAT text)"), (text_of(batch, self._is_json),)
        statement = sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, columns, options)
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for part in parts:
                copy.write(part)

    def _is_json(self, column: Column) -> bool:
        return self._type_of(column) in ("json", "jsonb")

    def _merge(self, source: sql.Composable, columns: Sequence[str]) -> int:
        """Write what differs and what is new; a row that is equal is neither written nor locked."""
        others = [name for name in columns if name not in self.key]
        touched = [self._touch] if self._touch else []
        now = [sql.SQL("now()")] * len(touched)
        update = sql.SQL("")
        if others:
            assignments = [sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in others]
            assignments += [sql.SQL("{} = now()").format(sql.Identifier(name)) for name in touched]
            update = sql.SQL(
                "WHEN MATCHED AND ROW({ours})::record OPERATOR(pg_catalog.*<>) ROW({theirs})::record"
                " THEN UPDATE SET {assignments}"
            ).format(ours=_list(others, "t"), theirs=_list(others, "s"), assignments=sql.SQL(", ").join(assignments))
        statement = sql.SQL(
            "MERGE INTO {target} AS t USING {source} AS s ON {same_key} {update}"
            " WHEN NOT MATCHED THEN INSERT ({columns}) OVERRIDING SYSTEM VALUE VALUES ({values})"
        ).format(
            target=self._identifier,
            source=source,
            same_key=self._same_key(),
            update=update,
            columns=_list([*columns, *touched]),
            values=sql.SQL(", ").join([*(sql.Identifier("s", name) for name in columns), *now]),
        )
        return self._connection.execute(statement).rowcount

    def _refuse_bad_keys(self, table: sql.Identifier) -> None:
        """Each key once, none NULL; otherwise a DataError with examples."""
        incomplete = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self.key)
        statement = sql.SQL(
            "SELECT concat_ws('/', {key}) AS example, {incomplete} AS incomplete FROM {table} GROUP BY {key}"
            " HAVING count(*) > 1 OR {incomplete} LIMIT 3"
        ).format(key=_list(self.key), incomplete=incomplete, table=table)
        rows = self._connection.execute(statement).fetchall()
        if any(row["incomplete"] for row in rows):
            raise self._null_key()
        if rows:
            raise self._duplicate_key(", ".join(row["example"] for row in rows))

    def _duplicate_key(self, examples: str) -> DataError:
        return DataError(
            f"the source gives the same key ({', '.join(self.key)}) more than once, for example {examples};"
            " a JOIN may repeat rows, or the key is not unique",
            code="DUPLICATE_KEY",
        )

    def _null_key(self) -> DataError:
        return DataError(
            f"the source gives rows with NULL in the key ({', '.join(self.key)}); a key must be complete",
            code="NULL_KEY",
        )

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self.key)

    # -- a full load ----------------------------------------------------------------------------------------------

    def _drop_staging(self) -> None:
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._staging))

    def _create_staging(self, columns: Sequence[Column]) -> None:
        self._drop_staging()
        self._create_like_target(sql.SQL(""), self._staging, columns, sql.SQL(""))
        for rule in self._rules([column.name for column in columns]):
            self._connection.execute(rule)
        self._load = replace(self._load, fresh=False) if self._load else None

    def _rules(self, columns: Sequence[str]) -> list[sql.Composed]:
        """The target's own CHECK and NOT NULL rules, for staging: a row that breaks one is found in its batch."""
        if self._table is None:
            return []
        checks = self._connection.execute(
            "SELECT pg_get_constraintdef(oid) AS rule FROM pg_constraint WHERE conrelid = %(table)s::regclass"
            "   AND contype = 'c' AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = conrelid"
            "   AND a.attnum = ANY (conkey) AND a.attname <> ALL (%(columns)s))",
            {"table": self._identifier.as_string(None), "columns": list(columns)},
        ).fetchall()
        required = self._connection.execute(
            "SELECT attname AS name FROM pg_attribute WHERE attrelid = %(table)s::regclass AND attnotnull"
            "   AND attnum > 0 AND NOT attisdropped AND attname = ANY (%(columns)s)",
            {"table": self._identifier.as_string(None), "columns": list(columns)},
        ).fetchall()
        alter = sql.SQL("ALTER TABLE {} ").format(self._staging)
        return [
            *(alter + sql.SQL("ADD {}").format(raw(row["rule"])) for row in checks),
            *(alter + sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(row["name"])) for row in required),
        ]

    def _build_staging_key(self) -> None:
        if not self._exists(self._staging):
            return
        with self.unit():
            if not self._has_key(self._staging):
                self._add_key(self._staging)
            if self._table is not None:
                self._connection.execute(sql.SQL("ANALYZE {}").format(self._staging))

    def _apply_staging(self, unit: "PostgresUnit", staged: int) -> Counts:
        """Delete what vanished, update what differs, insert what is new: readers see the old set, then the new."""
        if not self._exists(self._staging):
            return Counts()
        self._heal(unit, self._staging)
        if self._table is None:
            self._become_target()
            return Counts(written=staged)
        columns = list(self._columns_of(self._staging))
        deleted = self._delete_vanished()
        for way in (self._merge_staging, self._replace_differing):
            try:
                with self._connection.transaction():
                    return Counts(written=way(columns), deleted=deleted)
            except psycopg.errors.UniqueViolation:
                continue
            except (psycopg.DataError, psycopg.IntegrityError):
                break
        written = self._merge_around(unit, columns)
        return Counts(written=written, deleted=deleted, rejected=len(unit.rejects))

    def _merge_staging(self, columns: Sequence[str]) -> int:
        return self._merge(self._staging, columns)

    def _merge_around(self, unit: "PostgresUnit", columns: Sequence[str]) -> int:
        """Apply every staged row that fits; what only the target itself can refuse (a foreign key) is found here."""
        numbering = sql.SQL(
            "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT s.*, row_number() OVER ()::integer AS {} FROM {} AS s"
        )
        self._connection.execute(numbering.format(_NUMBERED, _NUMBER, self._staging))
        self._connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(_NUMBERED, _NUMBER))
        written = 0

        def attempt(low: int, high: int) -> Exception | None:
            nonlocal written
            part = sql.SQL("(SELECT * FROM {} WHERE {} BETWEEN {} AND {})").format(_NUMBERED, _NUMBER, low, high)
            try:
                with self._connection.transaction():
                    written += self._merge(part, columns)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                return error
            return None

        for number, error in isolate(1, self._count(_NUMBERED), attempt):
            self._put_aside(unit, self._describe_reject([], number, error))
        return written

    def _replace_differing(self, columns: Sequence[str]) -> int:
        """Rows that swap a unique value stand in each other's way: take all that differ out, then put them in again.

        What somebody else keeps in further columns of these rows stays.
        """
        taken = sql.Identifier("pg_temp", "vitrine_taken")
        others = [name for name in columns if name not in self.key]
        foreign = [name for name in (self._table.types if self._table else {}) if name not in columns]
        kept = [name for name in foreign if name != self._touch]
        target_columns = [*columns, *foreign]
        empty_copy = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE false")
        self._connection.execute(empty_copy.format(taken, self._identifier))
        self._connection.execute(
            sql.SQL(
                "WITH gone AS (DELETE FROM {target} AS t USING {staging} AS s WHERE {same_key}"
                " AND ROW({ours})::record OPERATOR(pg_catalog.*<>) ROW({theirs})::record RETURNING t.*)"
                " INSERT INTO {taken} SELECT * FROM gone"
            ).format(
                target=self._identifier,
                staging=self._staging,
                same_key=self._same_key(),
                ours=_list(others, "t"),
                theirs=_list(others, "s"),
                taken=taken,
            )
        )
        replaced = self._connection.execute(
            sql.SQL(
                "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values}"
                " FROM {taken} AS t JOIN {staging} AS s ON {same_key}"
            ).format(
                target=self._identifier,
                columns=_list(target_columns),
                values=sql.SQL(", ").join(
                    [
                        *(sql.Identifier("s", name) for name in columns),
                        *(sql.Identifier("t", name) if name in kept else sql.SQL("now()") for name in foreign),
                    ]
                ),
                taken=taken,
                staging=self._staging,
                same_key=self._same_key(),
            )
        ).rowcount
        return replaced + self._merge(self._staging, columns)

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
        try:
            with self._connection.transaction():
                self._connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(table, _list(self.key)))
        except psycopg.errors.UniqueViolation as exc:
            raise self._duplicate_key(self._example_keys(table)) from exc
        except psycopg.errors.NotNullViolation as exc:
            raise self._null_key() from exc

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
        unknown = [column for column in columns if column.name not in self._table.types]
        if unknown and self._options.on_schema_change == "add_columns":
            self._add_columns(unknown)
        elif unknown:
            raise ConfigError(
                f"target {self._target} has no column '{unknown[0].name}'; add it to the table, drop it from the query,"
                " or set options.on_schema_change: add_columns",
                code="TARGET_SCHEMA",
            )
        if self._touch and self._touch not in self._table.types:
            raise ConfigError(
                f"target {self._target} has no column '{self._touch}' (touch_column); add it, or drop the option",
                code="TARGET_SCHEMA",
            )

    def _add_columns(self, columns: Sequence[Column]) -> None:
        for column in columns:
            self._connection.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                    self._identifier, sql.Identifier(column.name), raw(column.type_name)
                )
            )
        self._table = self._inspect()

    def _type_of(self, column: Column) -> str:
        return self._table.types.get(column.name, column.type_name) if self._table else column.type_name

    def _same_types(self, columns: Sequence[Column]) -> bool:
        return all(self._type_of(column) == column.type_name for column in columns)


@dataclass
class PostgresUnit:
    """One transaction of the target's database; the checkpoint is saved through its connection."""

    writer: PostgresWriter
    connection: Connection
    rejects: list[Reject] = field(default_factory=list[Reject])
    healed: list[str] = field(default_factory=list[str])

    def write(self, batch: Batch) -> Counts:
        return self.writer.write(self, batch)


def _list(names: Sequence[str] | Iterator[str], table: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(table, name) if table else sql.Identifier(name) for name in names)
