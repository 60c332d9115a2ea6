"""What speaks against writing to a target, from its catalog, its types and the columns that were written last."""

import hashlib
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions, types
from vitrine.connectors.postgres.sink import catalog, copy_in
from vitrine.connectors.postgres.sink.catalog import ColumnFacts, TableFacts
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.core.rows import NUMBERS, Column, Finding, Kind, bare_type, kind_of
from vitrine.definition.context import SinkJob
from vitrine.definition.model import Definition, Mode
from vitrine.postgres import CATALOG_NAMES, in_transaction

_MAX_BYTES = 6000
"""The store keeps 8 KB of facts; of wider tables, a hash is kept."""


class WrittenColumns:
    """Columns of the last write, with their types; empty before the first one."""

    def __init__(self, facts: Mapping[str, Any], definition: Definition) -> None:
        self._facts = facts
        self._steps = _hash([definition.source, *(step.model_dump(mode="json") for step in definition.steps)])

    @property
    def names(self) -> frozenset[str]:
        """Empty also for a table that is too wide for a list of names."""
        return frozenset(self._facts.get("columns", {}))

    def after(self, columns: Sequence[Column]) -> dict[str, Any]:
        """What is kept with the checkpoint after these columns are written."""
        types = _types(columns)
        described = {"columns": types} if len(json.dumps(types).encode()) <= _MAX_BYTES else {"hash": _hash(types)}
        return {**described, "steps": self._steps}

    def removed(self, columns: Sequence[Column]) -> list[str]:
        """Columns that are no longer read, although query and transforms are the same; a user may remove one there."""
        if self._facts.get("steps") != self._steps:
            return []
        names = {column.name for column in columns}
        # guarantee: J13
        return [name for name in self._facts.get("columns", {}) if name not in names]

    def retyped(self, columns: Sequence[Column]) -> list[tuple[Column, str]]:
        """Columns whose type is another one, with the type they had; lengths and scales do not count."""
        types: Mapping[str, str] = self._facts.get("columns", {})
        # the type of a column that a transform made depends on its values
        before = [(column, types.get(column.name, column.type)) for column in columns if not column.inferred]
        return [(column, old) for column, old in before if bare_type(old) != bare_type(column.type)]

    def differ(self, columns: Sequence[Column]) -> bool:
        """Whether the columns of a table that is too wide for a comparison by name have changed."""
        same_steps = self._facts.get("steps") == self._steps
        return same_steps and "hash" in self._facts and self._facts["hash"] != _hash(_types(columns))


def _types(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: "" if column.inferred else column.type for column in columns}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "an index",
}
"""Relations that are no tables, by relkind."""

_TYPES = {"d": "domain", "e": "enum", "r": "range", "m": "multirange"}
"""Types that are no relations, by typtype."""

_TOUCHED = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TEXT})
"""Kinds that PostgreSQL assigns the current time to."""

_LENGTH = re.compile(r"\((\d+)\)")
_TIME_CHARACTERS = len("2024-01-01 00:00:00.000000+00")
"""The longest text of the current time in a session of the sink."""


def of_kind(target: str, facts: TableFacts) -> Finding | None:
    if facts.kind in ("r", "p"):
        return None
    kind = _KINDS.get(facts.kind, "no table")
    text = f"target {target} is {kind}, and rows are written to tables only; choose another name, or drop it"
    return Finding("TARGET_SCHEMA", text, fatal=True)


def of_type(target: str, kind: str | None) -> Finding | None:
    """A table has a type of its own name, so no other type may have it; for a target that does not exist."""
    if kind is None:
        return None
    text = (
        f"target {target} cannot be created, because a type of this name exists ({_TYPES.get(kind, 'base type')}), and"
        " a table needs the name for its own type; choose another name, or rename the type"
    )
    return Finding("TARGET_SCHEMA", text, fatal=True)


def of_key(target: str, facts: TableFacts | None, key: Sequence[str]) -> Finding | None:
    if facts is None:
        text = f"target {target} does not exist yet; name key_columns, and it is created with them"
        return None if key else Finding("KEY_MISSING", text, fatal=True)
    if not key:
        text = f"target {target} has no primary key; add one, or name key_columns"
        return Finding("KEY_MISSING", text, fatal=True)
    if frozenset(key) not in facts.unique:
        text = (
            f"key_columns ({', '.join(key)}) of target {target} are not covered by a unique index of exactly"
            " these columns, with the default operators of their types; add one, or correct key_columns"
        )
        return Finding("KEY_NOT_UNIQUE", text, fatal=True)
    return None


def of_table(target: str, facts: TableFacts, definition: Definition, options: PostgresSinkOptions) -> Iterator[Finding]:
    """Findings that do not depend on the columns of the rows."""
    for reference in facts.references:
        if reference.on_delete:
            effect = "deleted" if reference.on_delete == "CASCADE" else "changed"
            text = (
                f"{reference.table} refers to the target with ON DELETE {reference.on_delete}: when a row disappears"
                f" from the source, its rows there are {effect} as well"
            )
            yield Finding("CASCADE", text)
    for name in facts.unlogged:
        which = f"target {target}" if facts.kind == "r" else f"{name}, a partition of target {target},"
        text = f"{which} is UNLOGGED: a crash of the server empties it; run ALTER TABLE {name} SET LOGGED"
        yield Finding("UNLOGGED_TARGET", text, fatal=definition.mode is Mode.INCREMENTAL)
    if facts.row_security:
        text = (
            f"row-level security of target {target} applies to the role that writes, so that rows would be hidden from"
            f" it; give the role BYPASSRLS, or run ALTER TABLE {target} NO FORCE ROW LEVEL SECURITY as its owner"
        )
        yield Finding("ROW_SECURITY", text, fatal=True)
    if facts.rules:
        text = (
            f"target {target} has rules ({', '.join(facts.rules)}), which PostgreSQL does not allow for MERGE; drop"
            " them, or replace them by triggers"
        )
        yield Finding("TARGET_RULE", text, fatal=True)
    if facts.triggers:
        verb = "fails the run" if options.on_target_trigger == "fail" else "is logged as a warning"
        names = ", ".join(trigger.name for trigger in facts.triggers)
        text = (
            f"target {target} has triggers ({names}): after each write, its rows are read back, and a row that is"
            f" stored differently {verb} (options.on_target_trigger)"
        )
        yield Finding("TARGET_TRIGGER", text)
    for column in facts.columns.values():
        if column.facts.foreign_code:
            text = (
                f"column '{column.name}' of target {target} is of type {column.type}, whose owner may have attached"
                " functions that a write would execute with the rights of this role; run ALTER TABLE"
                f" {target} ALTER COLUMN {column.name} TYPE {column.facts.carrier}"
            )
            yield Finding("TYPE_UNTRUSTED", text, column.name, fatal=True)


def of_columns(
    target: str,
    facts: TableFacts | None,
    key: Sequence[str],
    columns: Sequence[Column],
    definition: Definition,
    options: PostgresSinkOptions,
) -> Iterator[Finding]:
    """Findings about rows of these columns; none are known yet if a transform makes them."""
    given = [column.name for column in columns]
    for name in key:
        if given and name not in given:
            yield Finding("SCHEMA_CHANGED", f"the rows lack the key column '{name}'", name, fatal=True)
    touch = options.touch_column
    if touch in given:
        text = (
            f"the rows have a column '{touch}', which touch_column sets to the current time; give it another name in"
            " the query, or drop the option"
        )
        yield Finding("TARGET_SCHEMA", text, touch, fatal=True)
    if facts is None:
        return
    for column in columns:
        found = facts.columns.get(column.name)
        if found is None:
            yield _new_column(target, column.name, definition)
        elif found.generated:
            text = (
                f"column '{column.name}' of target {target} is generated, so it cannot be written; remove it from the"
                " query, or drop its expression"
            )
            yield Finding("TARGET_SCHEMA", text, column.name, fatal=True)
        elif found.always_identity and column.name not in key:
            text = (
                f"column '{column.name}' of target {target} is GENERATED ALWAYS AS IDENTITY, so it cannot be updated;"
                f" remove it from the query, or run ALTER TABLE {target} ALTER COLUMN {column.name} SET GENERATED BY"
                " DEFAULT"
            )
            yield Finding("TARGET_SCHEMA", text, column.name, fatal=True)
        elif column.name in key and (finding := _coarser(target, column, found)):
            yield finding
    yield from _of_touch(target, facts, touch)
    if given:
        yield from _required(target, facts, {*given, touch})


def _of_touch(target: str, facts: TableFacts, touch: str | None) -> Iterator[Finding]:
    if not touch:
        return
    column = facts.columns.get(touch)
    if column is None:
        text = f"target {target} has no column '{touch}' (touch_column); add it, or drop the option"
        yield Finding("TARGET_SCHEMA", text, touch, fatal=True)
    elif column.generated:
        text = (
            f"column '{touch}' (touch_column) of target {target} is generated, so it cannot be set; drop its"
            " expression, or name another column"
        )
        yield Finding("TARGET_SCHEMA", text, touch, fatal=True)
    elif not _holds_time(column):
        text = (
            f"column '{touch}' (touch_column) of target {target} is of type {column.type}, which cannot"
            f" hold a time; run ALTER TABLE {target} ALTER COLUMN {touch} TYPE timestamptz, or name another column"
        )
        yield Finding("TARGET_SCHEMA", text, touch, fatal=True)


def _holds_time(column: ColumnFacts) -> bool:
    kind = kind_of(column.facts.bare)
    length = _LENGTH.search(column.facts.declared) if kind is Kind.TEXT else None
    return kind in _TOUCHED and (length is None or int(length[1]) >= _TIME_CHARACTERS)


def _required(target: str, facts: TableFacts, given: Container[str | None]) -> Iterator[Finding]:
    """A warning and no refusal: rows that the target already has are updated, and a trigger may set the column."""
    for column in facts.columns.values():
        if not (column.nullable or column.has_default or column.name in given):
            text = (
                f"column '{column.name}' of target {target} is NOT NULL and has no default, and the query does not"
                " return it: a new row does not fit (options.on_reject); add it to the query, or give it a default"
            )
            yield Finding("REQUIRED_COLUMN", text, column.name)


def _new_column(target: str, column: str, definition: Definition) -> Finding:
    if definition.options.on_schema_change == "fail":
        text = (
            f"target {target} has no column '{column}'; add it to the table, drop it from the query, or set"
            " options.on_schema_change: add_columns"
        )
        return Finding("TARGET_SCHEMA", text, column, fatal=True)
    return Finding("COLUMN_ADDED", added_column(target, column, definition), column)


def added_column(target: str, column: str, definition: Definition) -> str:
    text = f"column '{column}' is added to target {target}"
    if definition.mode is Mode.FULL:
        return text
    return f"{text}; rows that do not change hold NULL in it until a full run"


def _coarser(target: str, column: Column, stored: ColumnFacts) -> Finding | None:
    """Keys that differ in the source, but are equal in the target, would overwrite each other."""
    if not column.identical or stored.identical:
        return None
    if not stored.deterministic:
        text = (
            f"key column '{column.name}' of target {target} has a nondeterministic collation, under which different"
            f" keys of the source are equal; run ALTER TABLE {target} ALTER COLUMN {column.name} TYPE {stored.type}"
            ' COLLATE "C"'
        )
        return Finding("KEY_COLLATION", text, column.name, fatal=True)
    is_number = column.kind is Kind.INTEGER and kind_of(stored.type) in NUMBERS
    if is_number or bare_type(stored.type) == bare_type(column.type):
        return None
    text = (
        f"key column '{column.name}' of target {target} is of type {stored.type}, for which different values of the"
        f" source's type {column.type} are equal; run ALTER TABLE {target} ALTER COLUMN {column.name} TYPE"
        f" {column.type}, or cast the column in the query"
    )
    return Finding("KEY_TYPE", text, column.name, fatal=True)


def of_drift(
    target: str, facts: TableFacts, columns: Sequence[Column], written: WrittenColumns, options: PostgresSinkOptions
) -> Iterator[Finding]:
    """Findings about columns that the last write had otherwise."""
    if written.differ(columns) and not options.ignore_removed:
        text = (
            f"the columns or types of the rows for target {target} have changed since the last write; if that is right,"
            " reset the state, or set options.ignore_removed: true"
        )
        yield Finding("SCHEMA_CHANGED", text, fatal=True)
    for name in written.removed(columns) if not options.ignore_removed else ():
        if name in facts.types:
            text = (
                f"column '{name}', which target {target} has from earlier runs, is no longer read: its values would"
                " become outdated; restore it in the source, drop it from the target, or set options.ignore_removed:"
                " true"
            )
            yield Finding("SCHEMA_CHANGED", text, name, fatal=True)


def retyped(target: str, column: Column, before: str, stored: str) -> Finding:
    text = (
        f"column '{column.name}' was of type {before} and is now {column.type}, which target {target} cannot store"
        f" exactly as {stored}; run ALTER TABLE {target} ALTER COLUMN {column.name} TYPE {column.type}, or cast the"
        " column in the query"
    )
    return Finding("SCHEMA_CHANGED", text, column.name, fatal=True)


def missing_type(target: str, column: Column) -> Finding:
    text = (
        f"column '{column.name}' is of type {column.type}, which is no type of PostgreSQL or of an extension in the"
        f" database of target {target}; install the extension there, or cast the column in the query"
    )
    return Finding("TYPE_MISSING", text, column.name, fatal=True)


_TIMES = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})


class TargetChecks:
    """Finds the reasons against writing to a target, and warnings; facts are None for a target that does not exist."""

    def __init__(
        self,
        session: TargetSession,
        job: SinkJob[PostgresSinkOptions, PostgresSettings],
        written: WrittenColumns,
    ) -> None:
        self._session = session
        self._target = str(job.target)
        self._place = job.target.name.split(".")  # schema and table
        self._definition = job.definition
        self._options = job.options
        self._written = written

    def all(self, facts: TableFacts | None, key: Sequence[str], columns: Sequence[Column]) -> list[Finding]:
        if facts is not None and (finding := of_kind(self._target, facts)):
            return [finding]
        if facts is None and (finding := self._of_type()):
            return [finding]
        found = [*self.of_columns(facts, key, columns), *self.of_drift(facts, columns)]
        if finding := self.of_key(facts, key):
            found.insert(0, finding)
        if facts is not None:
            found += of_table(self._target, facts, self._definition, self._options)
        return found

    def _of_type(self) -> Finding | None:
        with self._session.translated():
            kind = catalog.kind_of_type(self._session.connection, *self._place)
        return of_type(self._target, kind)

    def of_key(self, facts: TableFacts | None, key: Sequence[str]) -> Finding | None:
        return of_key(self._target, facts, key)

    def of_columns(self, facts: TableFacts | None, key: Sequence[str], columns: Sequence[Column]) -> list[Finding]:
        found = of_columns(self._target, facts, key, columns, self._definition, self._options)
        return [*found, *self._of_types(columns)]

    def of_drift(self, facts: TableFacts | None, columns: Sequence[Column]) -> list[Finding]:
        """What has changed since the last write."""
        if facts is None or not columns:
            return []
        found = list(of_drift(self._target, facts, columns, self._written, self._options))
        for column, before in self._written.retyped(columns):
            stored = facts.types.get(column.name, column.type)
            if not self._may_become(before, column.type, stored):
                found.append(retyped(self._target, column, before, stored))
        return found

    def _may_become(self, before: str, now: str, stored: str) -> bool:
        """Whether values of the new type have the same meaning as before, and are stored as they are or refused."""
        if bare_type(now) == bare_type(stored):
            return True
        if _TIMES & {kind_of(before), kind_of(now)}:  # their meaning depends on a time zone
            return False
        if {kind_of(now), kind_of(stored)} == {Kind.INTEGER}:
            return True
        with self._session.translated():
            return copy_in.describe_cast(self._session.connection, [(now, stored)])[0].exact

    def _of_types(self, columns: Sequence[Column]) -> list[Finding]:
        """Types that the target's database lacks, or that are neither PostgreSQL's own nor an extension's."""
        # only types of pg_catalog have an unqualified name
        qualified = [column for column in columns if "." in column.type]
        if not qualified:
            return []
        with self._session.translated(), in_transaction(self._session.connection, CATALOG_NAMES):
            rows = self._session.connection.execute(
                "SELECT coalesce(to_regtype(name)::oid, 0)::bigint AS oid"
                "  FROM unnest(%s::text[]) WITH ORDINALITY AS w(name, place) ORDER BY place",
                [[bare_type(column.type) for column in qualified]],
            ).fetchall()
            facts = types.describe(self._session.connection, [(row["oid"], types.UNSET) for row in rows])
        return [
            missing_type(self._target, column)
            for column, known in zip(qualified, facts, strict=True)
            if known.is_flattened or known.bare != bare_type(column.type)
        ]
