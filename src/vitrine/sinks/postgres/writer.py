"""The writer: batches into a mart one transaction each, or into staging first and then the difference at once."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import sql

from vitrine.errors import ConfigError, DataError
from vitrine.failpoints import reach
from vitrine.flow import (
    Batch,
    Bytes,
    Column,
    Copied,
    Counts,
    Decoded,
    Framed,
    Payload,
    Printed,
    Reject,
    StateManager,
)
from vitrine.model import Measure, Options
from vitrine.policy import Target
from vitrine.postgres import PRINTING, Connection, connect, measure, raw, translated
from vitrine.printed import encoding, text_of
from vitrine.sinks.postgres import catalog
from vitrine.sinks.postgres.misfits import NUMBER, NUMBERED, REFUSALS, Misfits
from vitrine.sinks.postgres.statements import Writing, create_table, names

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

STAGING_SCHEMA = "etl"

BATCH = sql.Identifier("pg_temp", "vitrine_batch")
TEMPORARY, FOR_THE_UNIT = sql.SQL("TEMP"), sql.SQL("ON COMMIT DROP")
LASTING, NOTHING = sql.SQL(""), sql.SQL("")

_CODES = {
    "42804": "SCHEMA_CHANGED",
    "42703": "TARGET_SCHEMA",
    "42P01": "TARGET_SCHEMA",
    "55P03": "SINK_LOCKED",
}

# A lost commit loses rows and checkpoint alike, and the commit that ends the run waits for all before it
_UNIT = """
    ; SET LOCAL synchronous_commit = off;
    SET LOCAL work_mem = '64MB';
    SET LOCAL maintenance_work_mem = '256MB';
    SET LOCAL lock_timeout = '10s';
    SET LOCAL idle_in_transaction_session_timeout = '10s';
    SAVEPOINT fitting
"""


@dataclass(frozen=True)
class FullLoad:
    """A load that collects everything in a staging table first."""

    staging: str
    fresh: bool  # nothing staged yet
    max_delete_ratio: float
    allow_shrink: bool
    keyed_last: bool = False  # a key may come twice, so it is made unique in the unit that applies the rows
    may_repeat: Callable[[], bool] = lambda: False  # whether rows may have been staged twice


class PostgresWriter:
    """A TargetWriter for `schema.table`. The key comes from the pipeline, or is the target's primary key."""

    def __init__(
        self,
        url: str,
        target: Target,
        *,
        key_columns: Sequence[str],
        newest_by: Sequence[str] = (),
        options: Options,
        open_rejects: Sequence[str] = (),
        name: str,
    ) -> None:
        self._target = target
        self._identifier = sql.Identifier(target.schema or "", target.name)
        self._options = options
        self._newest_by = newest_by
        self._load: FullLoad | None = None
        self._staging = sql.Identifier(STAGING_SCHEMA, "")
        self._connection = connect(url, name=name, side="target")
        try:
            self._table = self._inspect()
            self.key = self._resolve_key(tuple(key_columns))
        except BaseException:
            self._connection.close()
            raise
        self._writing = Writing(self._identifier, self.key, options.touch_column)
        self._misfits = Misfits(self._connection, str(target), self.key, options, open_rejects)

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
            self._connection.execute("BEGIN;" + PRINTING + _UNIT)
            try:
                yield PostgresUnit(self, self._connection)
            except BaseException:
                if not self._connection.closed:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Errors of the target in our groups; a table that does not fit, or is locked, has a code of its own."""
        try:
            yield
        except psycopg.Error as exc:
            with translated(f"target {self._target}", code=_CODES.get(exc.sqlstate or "")):
                raise

    # -- what reconcile and validate ask ----------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self._table is not None

    def types(self) -> dict[str, str]:
        """Columns and types of the target, without the one that only tells when a row was written."""
        if self._table is None:
            raise ConfigError(f"target {self._target} does not exist; run the pipeline first", code="TARGET_MISSING")
        return {name: kind for name, kind in self._table.types.items() if name != self._options.touch_column}

    def cascades(self) -> list[str]:
        """Tables whose rows go when a row of the target goes."""
        with self.unit():
            return catalog.cascading_tables(self._connection, self._identifier)

    def measure(self, types: Mapping[str, str], control: str) -> Measure:
        with self.unit():
            return measure(self._connection, self._identifier, types, control)

    def measure_batches(self, batches: Iterable[Batch], types: Mapping[str, str], control: str) -> Measure:
        """The figures of rows that exist nowhere yet: collected in a temporary table, measured, forgotten."""
        table = sql.Identifier("pg_temp", "vitrine_measured")
        with self.unit():
            self._create(TEMPORARY, table, list(types.items()), FOR_THE_UNIT)
            for batch in batches:
                self._copy_in(table, self.encode(batch))
            return measure(self._connection, table, types, control)

    # -- one batch ------------------------------------------------------------------------------------------------

    def encode(self, batch: Batch) -> Batch:
        if not batch.count or not isinstance(batch.payload, Decoded | Framed):
            return batch
        if isinstance(batch.payload, Framed):
            # a table for the batch gets the types of the target, and binary goes into exactly these
            types = {column.name: self._type_of(column) for column in batch.columns}
            if (binary := encoding.encode(batch.payload.frame, types)) is not None:
                return replace(batch, payload=replace(batch.payload, binary=binary))
        return replace(batch, payload=Printed(text_of(batch, self._is_json), batch.count))

    def write(self, unit: "PostgresUnit", batch: Batch) -> Counts:
        if not batch.count and (self._table is None and not isinstance(batch.payload, Copied)):
            return Counts()  # the columns a transform adds are not known before its first row
        before = self._table, self._load
        try:
            written = self._write(unit, batch)
        except REFUSALS as refusal:
            self._connection.execute("ROLLBACK TO SAVEPOINT fitting")
            self._table, self._load = before
            if self._table is None and refusal.diag.column_name in self.key:
                raise self._null_key() from refusal
            written = self._write_what_fits(unit, batch)
        return Counts(read=batch.count, written=written, rejected=len(unit.rejects), repeated=unit.repeated)

    def _write(self, unit: "PostgresUnit", batch: Batch) -> int:
        self._prepare(batch.columns)
        if not batch.count:
            return 0
        if self._load is not None:
            self._copy_in(self._staging, batch)
            return 0
        self._create_batch(batch.columns)
        self._copy_in(BATCH, batch)
        return self._upsert(unit, [column.name for column in batch.columns])

    def _prepare(self, columns: Sequence[Column]) -> None:
        """Afterwards there is a table for these columns: the staging of a full load, or the target."""
        self._check_columns(columns)
        if self._load is not None and self._load.fresh:
            self._create_staging(columns)
        elif self._load is None and self._table is None:
            self._create_target(columns)

    def _create_batch(self, columns: Sequence[Column]) -> None:
        self._create(TEMPORARY, BATCH, self._as_in_target(columns), FOR_THE_UNIT)

    def _upsert(self, unit: "PostgresUnit", columns: Sequence[str]) -> int:
        repeated = self._drop_superseded(BATCH) if self._last_wins else 0
        self._refuse_bad_keys(BATCH)
        # A batch is small beside its mart: look each row up by its key. Without statistics of the batch the planner
        # would scan the whole mart instead.
        self._connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        ordered = self._writing.sorted_by_key(BATCH)
        written = self._connection.execute(self._writing.merge(ordered, columns)).rowcount
        unit.healed += self._misfits.healed(BATCH)
        unit.repeated += repeated
        return written

    def _write_what_fits(self, unit: "PostgresUnit", batch: Batch) -> int:
        """The same, row by row where it must be."""
        self._prepare(batch.columns)
        self._number(batch)
        if self._load is None:
            self._create_batch(batch.columns)
        table = BATCH if self._load is None else self._staging
        columns = [column.name for column in batch.columns]
        readable = self._misfits.readable(columns, table)

        def write_range(low: int, high: int) -> int:
            if self._load is None:
                self._connection.execute(sql.SQL("TRUNCATE {}").format(BATCH))
            insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} BETWEEN {} AND {}")
            self._connection.execute(insert.format(table, names(columns), readable, NUMBERED, NUMBER, low, high))
            return self._upsert(unit, columns) if self._load is None else 0

        written, rejects = self._misfits.write_all_but(batch.count, write_range, columns, table)
        unit.rejects += rejects
        return written

    def _number(self, batch: Batch) -> None:
        """The batch as text or in its own types, each row with a number."""
        as_text = not isinstance(batch.payload, Copied)
        columns = [(column.name, "text" if as_text else column.type_name) for column in batch.columns]
        self._create(TEMPORARY, NUMBERED, columns, FOR_THE_UNIT)
        identity = sql.SQL("ALTER TABLE {} ADD COLUMN {} integer GENERATED ALWAYS AS IDENTITY")
        self._connection.execute(identity.format(NUMBERED, NUMBER))
        self._copy(NUMBERED, batch, as_text=as_text)

    def _copy_in(self, table: sql.Identifier, batch: Batch) -> None:
        """Rows by COPY. Binary bytes go into a column of their own type only, everything else is cast by Postgres."""
        if self._same_types(batch.columns) or not isinstance(batch.payload, Copied):
            self._copy(table, batch)
            return
        uncast = sql.Identifier("pg_temp", "vitrine_uncast")
        self._create(TEMPORARY, uncast, [(column.name, column.type_name) for column in batch.columns], FOR_THE_UNIT)
        self._copy(uncast, batch)
        columns = names(column.name for column in batch.columns)
        # an INSERT casts as an assignment does: a text too long for its column is an error, not cut off
        insert = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {uncast}")
        self._connection.execute(insert.format(table=table, columns=columns, uncast=uncast))

    def _copy(self, table: sql.Identifier, batch: Batch, *, as_text: bool = False) -> None:
        columns = names(column.name for column in batch.columns)
        if not as_text and (binary := _binary_of(batch.payload)) is not None:
            options, parts = sql.SQL("(FORMAT binary)"), (COPY_HEADER, binary, COPY_TRAILER)
        else:
            options, parts = sql.SQL("(FORMAT text)"), (text_of(batch, self._is_json),)
        statement = sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, columns, options)
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for part in parts:
                copy.write(part)
                reach("in_copy")

    def _is_json(self, column: Column) -> bool:
        return self._type_of(column) in ("json", "jsonb")

    def _refuse_bad_keys(self, table: sql.Identifier) -> None:
        """Each key once, none NULL; otherwise a DataError with examples."""
        rows = self._connection.execute(self._writing.bad_keys(table)).fetchall()
        if any(row["incomplete"] for row in rows):
            raise self._null_key()
        if rows:
            raise DataError(
                f"the source gives the same key ({', '.join(self.key)}) more than once, for example"
                f" {', '.join(row['example'] for row in rows)}; a JOIN may repeat rows, or the key is not unique."
                " If the last of them is meant, set options.on_duplicate_key: last",
                code="DUPLICATE_KEY",
            )

    def _null_key(self) -> DataError:
        return DataError(
            f"the source gives rows with NULL in the key ({', '.join(self.key)}); a key must be complete",
            code="NULL_KEY",
        )

    # -- a full load ----------------------------------------------------------------------------------------------

    def publish(self, state: StateManager) -> Counts:
        if self._load is None:
            return Counts()
        try:
            self._build_staging_key()
            reach("staging_built")
            with self.unit() as unit:
                staged = self._count(self._staging) if self._has_staging() else 0
                superseded = self._drop_superseded(self._staging) if self._may_repeat() else 0
                self._add_missing_key()
                counts = self._apply_staging(unit, staged - superseded)
                if self._last_wins:
                    counts = replace(counts, repeated=superseded)
                self._drop_staging()
                state.publish(unit, staged, counts)
                reach("before_swap")
            reach("after_swap")
        except DataError:
            # what was staged cannot be applied, and would be as wrong the next time: that run reads anew
            with self.unit() as unit:
                self._drop_staging()
                state.discard(unit)
            raise
        return counts

    def _has_staging(self) -> bool:
        return catalog.exists(self._connection, self._staging)

    def _drop_staging(self) -> None:
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._staging))

    def _create_staging(self, columns: Sequence[Column]) -> None:
        """Bare but for the target's own rules: a row that breaks one is found in its batch."""
        self._drop_staging()
        self._create(LASTING, self._staging, self._as_in_target(columns), NOTHING)
        if self._table is not None:
            rules = catalog.rules(self._connection, self._identifier, [column.name for column in columns])
        else:  # as the key will want it: told in time, and the rows are not looked through once more for it
            rules = [sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(name)) for name in self.key]
        for rule in rules:
            self._connection.execute(sql.SQL("ALTER TABLE {} {}").format(self._staging, rule))
        self._load = replace(self._load, fresh=False) if self._load else None

    def _may_repeat(self) -> bool:
        return self._load is not None and self._load.may_repeat() and self._has_staging()

    @property
    def _last_wins(self) -> bool:
        return self._options.on_duplicate_key == "last"

    def _drop_superseded(self, table: sql.Identifier) -> int:
        """Of rows with one key the newest stays. In the unit that counts and applies them, or in none."""
        columns = catalog.column_types(self._connection, table)
        order = [name for name in self._newest_by if name in columns]
        return self._connection.execute(self._writing.drop_superseded(table, order)).rowcount

    def _add_missing_key(self) -> None:
        if self._has_staging() and catalog.primary_key_name(self._connection, self._staging) is None:
            self._add_key(self._staging)

    def _build_staging_key(self) -> None:
        """In a unit of its own, so that a load which dies while it is applied does not build it again."""
        if not self._has_staging() or (self._load is not None and self._load.keyed_last):
            return
        with self.unit():
            self._add_missing_key()
            if self._table is not None:
                self._connection.execute(sql.SQL("ANALYZE {}").format(self._staging))

    def _apply_staging(self, unit: "PostgresUnit", staged: int) -> Counts:
        """Delete what vanished, update what differs, insert what is new: readers see the old set, then the new."""
        if not self._has_staging():
            return Counts()
        unit.healed += self._misfits.healed(self._staging)
        if self._table is None:
            self._become_target()
            return Counts(written=staged)
        columns = list(catalog.column_types(self._connection, self._staging))
        deleted = self._delete_vanished()
        for way in (self._merge_staging, self._replace_differing):
            try:
                with self._connection.transaction():
                    return Counts(written=way(columns), deleted=deleted)
            except psycopg.errors.UniqueViolation:
                continue
            except REFUSALS:
                break
        written = self._merge_what_fits(unit, columns)
        return Counts(written=written, deleted=deleted, rejected=len(unit.rejects))

    def _merge_staging(self, columns: Sequence[str]) -> int:
        return self._connection.execute(self._writing.merge(self._staging, columns)).rowcount

    def _replace_differing(self, columns: Sequence[str]) -> int:
        """Rows that swap a unique value stand in each other's way: take all that differ out, then put them in again."""
        taken = sql.Identifier("pg_temp", "vitrine_taken")
        foreign = [name for name in (self._table.types if self._table else {}) if name not in columns]
        empty_copy = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE false")
        self._connection.execute(empty_copy.format(taken, self._identifier))
        self._connection.execute(self._writing.take_out(self._staging, columns, taken))
        replaced = self._connection.execute(self._writing.put_in(self._staging, columns, taken, foreign)).rowcount
        return replaced + self._merge_staging(columns)

    def _merge_what_fits(self, unit: "PostgresUnit", columns: Sequence[str]) -> int:
        """Apply every staged row that fits; what only the target itself can refuse (a foreign key) is found here."""
        numbering = sql.SQL(
            "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT s.*, row_number() OVER ()::integer AS {} FROM {} AS s"
        )
        self._connection.execute(numbering.format(NUMBERED, NUMBER, self._staging))
        self._connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(NUMBERED, NUMBER))

        def write_range(low: int, high: int) -> int:
            part = sql.SQL("(SELECT * FROM {} WHERE {} BETWEEN {} AND {})").format(NUMBERED, NUMBER, low, high)
            return self._connection.execute(self._writing.merge(part, columns)).rowcount

        count = self._count(NUMBERED)
        written, rejects = self._misfits.write_all_but(count, write_range, [], self._identifier)
        unit.rejects += rejects
        return written

    def _become_target(self) -> None:
        """A missing target receives the staging table itself, with the rights a table created there would have."""
        grants = catalog.default_grants(self._connection, self._identifier)
        old_key = sql.Identifier(catalog.primary_key_name(self._connection, self._staging) or "")
        new_key = catalog.free_name(self._connection, self._target.schema or "", f"{self._target.name[:56]}_pkey")
        moved = sql.Identifier(self._target.schema or "", self._load.staging if self._load else "")
        for statement in (
            sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(
                self._staging, old_key, sql.Identifier(new_key)
            ),
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(self._staging, sql.Identifier(self._target.schema or "")),
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(moved, sql.Identifier(self._target.name)),
            *grants,
        ):
            self._connection.execute(statement)
        self._add_touch_column()
        self._table = self._inspect()

    def _delete_vanished(self) -> int:
        before = self._count(self._identifier)
        deleted = self._connection.execute(self._writing.delete_vanished(self._staging)).rowcount
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

    # -- the target -----------------------------------------------------------------------------------------------

    def _inspect(self) -> catalog.TableFacts | None:
        with translated(f"target {self._target}"), self._connection.transaction():
            self._connection.execute("SET LOCAL search_path = pg_catalog")
            return catalog.describe(self._connection, self._identifier)

    def _create(
        self, kind: sql.SQL, table: sql.Identifier, columns: Sequence[tuple[str, str]], ending: sql.SQL
    ) -> None:
        typed = [(name, raw(type_name)) for name, type_name in columns]
        self._connection.execute(create_table(kind, table, typed, ending))

    def _create_target(self, columns: Sequence[Column]) -> None:
        """The mart as the query gives it, with the key as primary key and the touch column behind."""
        definitions = [(column.name, column.type_name) for column in columns]
        self._create(LASTING, self._identifier, definitions, NOTHING)
        self._add_touch_column()
        self._add_key(self._identifier)
        self._table = self._inspect()

    def _add_touch_column(self) -> None:
        if self._options.touch_column:
            statement = sql.SQL("ALTER TABLE {} ADD COLUMN {} timestamptz NOT NULL DEFAULT now()")
            self._connection.execute(statement.format(self._identifier, sql.Identifier(self._options.touch_column)))

    def _add_key(self, table: sql.Identifier) -> None:
        try:
            with self._connection.transaction():
                statement = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})")
                self._connection.execute(statement.format(table, names(self.key)))
        except psycopg.IntegrityError:
            self._refuse_bad_keys(table)
            raise

    def _add_columns(self, columns: Sequence[Column]) -> None:
        for column in columns:
            statement = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
            added = statement.format(self._identifier, sql.Identifier(column.name), raw(column.type_name))
            self._connection.execute(added)
        self._table = self._inspect()

    def _resolve_key(self, configured: tuple[str, ...]) -> tuple[str, ...]:
        if self._table is None:
            if not configured:
                raise ConfigError(
                    f"target {self._target} does not exist yet; name key_columns, and it is created with them",
                    code="KEY_MISSING",
                )
            return configured
        key = configured or self._table.primary_key
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
        given = {column.name for column in columns}
        if missing := [name for name in self.key if name not in given]:
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
        touch = self._options.touch_column
        if touch and touch not in self._table.types:
            raise ConfigError(
                f"target {self._target} has no column '{touch}' (touch_column); add it, or drop the option",
                code="TARGET_SCHEMA",
            )

    def _as_in_target(self, columns: Sequence[Column]) -> list[tuple[str, str]]:
        return [(column.name, self._type_of(column)) for column in columns]

    def _type_of(self, column: Column) -> str:
        return self._table.types.get(column.name, column.type_name) if self._table else column.type_name

    def _same_types(self, columns: Sequence[Column]) -> bool:
        return all(self._type_of(column) == column.type_name for column in columns)


def _binary_of(payload: Payload) -> Bytes | None:
    match payload:
        case Copied(data=data):
            return data
        case Framed(binary=binary):
            return binary
        case _:
            return None


@dataclass
class PostgresUnit:
    """One transaction of the target's database; the checkpoint is saved through its connection."""

    writer: PostgresWriter
    connection: Connection
    rejects: list[Reject] = field(default_factory=list[Reject])
    healed: list[str] = field(default_factory=list[str])
    repeated: int = 0  # rows left out, as their key came again

    def write(self, batch: Batch) -> Counts:
        return self.writer.write(self, batch)
