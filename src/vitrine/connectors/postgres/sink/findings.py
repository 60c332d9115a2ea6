"""Reasons against writing to a target, and warnings about it, from what the catalog says."""

import re
from collections.abc import Container, Iterator, Sequence

from vitrine.connectors.postgres import PostgresSinkOptions
from vitrine.connectors.postgres.sink.catalog import ColumnFacts, TableFacts
from vitrine.connectors.postgres.sink.drift import WrittenColumns
from vitrine.flow.rows import NUMBERS, Column, Finding, Kind, bare_type, kind_of
from vitrine.model import Definition, Mode

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
