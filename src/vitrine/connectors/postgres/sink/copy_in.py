"""Batches written to a table by COPY: casts of their columns, and text that the target cannot hold."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import cursor_codec, types
from vitrine.connectors.postgres.sink.session import TargetSession, names
from vitrine.core.copytext import text_of
from vitrine.core.rows import (
    Batch,
    BinaryRows,
    Bytes,
    Column,
    Finding,
    FrameRows,
    Payload,
    PythonRows,
    TextRows,
    bare_type,
)
from vitrine.errors import ConfigError, DataError
from vitrine.failpoints import reach
from vitrine.postgres import CATALOG_NAMES, Connection, in_transaction, raw

# Every value survives these casts; a modifier of the target is judged on its own. The documents of json and jsonb are
# the same, whatever their white space and the order of their keys.
_EXACT = frozenset(
    {
        ("smallint", "integer"),
        ("smallint", "bigint"),
        ("smallint", "numeric"),
        ("smallint", "real"),
        ("smallint", "double precision"),
        ("integer", "bigint"),
        ("integer", "numeric"),
        ("integer", "double precision"),
        ("bigint", "numeric"),
        ("oid", "bigint"),
        ("real", "double precision"),
        ("date", "timestamp without time zone"),
        ("date", "timestamp with time zone"),
        ("bpchar", "text"),
        ("bpchar", "character varying"),
        ("cidr", "inet"),
        ('"bit"', "bit varying"),
        ("json", "jsonb"),
        ("jsonb", "json"),
    }
)
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_LENGTHS = frozenset({"character varying", "bpchar", "bit varying", '"bit"'})
_PADDED_OR_CUT = frozenset({"bpchar", "name", '"char"'})
_MODIFIER = re.compile(r"\(([-0-9, ]+)\)")

_TYPES = """
    SELECT w.name, t.oid, t.typtype = 'd' AS is_domain, t.typcategory AS category, e.oid AS element,
           e.typcategory AS element_category
      FROM unnest(%s::text[]) AS w(name)
      JOIN pg_catalog.pg_type t ON t.oid = w.name::regtype
      LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typsubscript = 'array_subscript_handler'::regproc
"""
_CASTS = """
    SELECT castsource AS source, casttarget AS target, castcontext AS context FROM pg_catalog.pg_cast
     WHERE castsource = ANY (%(oids)s::oid[]) AND casttarget = ANY (%(oids)s::oid[])
"""


class CastFacts(NamedTuple):
    """What the assignment of a value of one type to a column of another one does."""

    allowed: bool  # PostgreSQL has an assignment cast
    exact: bool  # every value survives; False: the cast may change a value
    equal: types.Operator | None  # of the source's type; None: row images are compared
    is_reversible: bool  # there is a cast back; False: only through text
    bare: str  # the target's type without domain, length and scale
    declared: str  # the target's type without domain


class Conversion(NamedTuple):
    """A column of a batch, the type that its values are sent in, and the type they get in the target."""

    column: Column
    source: str
    target: str
    facts: CastFacts

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def is_needed(self) -> bool:
        return self.source != self.target

    @property
    def is_checked(self) -> bool:
        """Whether a value may be changed."""
        return self.is_needed and not self.facts.exact

    @property
    def is_domain(self) -> bool:
        return self.facts.declared != self.target

    def assigned(self, value: sql.Composable) -> sql.Composable:
        """The value for an INSERT: an enum that the source carries as text has no assignment cast."""
        if self.is_needed and has_declared_type(self.column, self.target):
            return sql.SQL("CAST({} AS {})").format(value, raw(self.target))
        return value

    def keeps(self, value: sql.Composable, stored: sql.Composable) -> sql.Composed:
        """Whether what is stored, cast back, equals the value."""
        if not self.facts.is_reversible:
            stored = sql.SQL("CAST({} AS text)").format(stored)
        back = sql.SQL("CAST({} AS {})").format(stored, raw(self.source))
        if self.facts.equal is not None:
            same: sql.Composable = self.facts.equal.between(back, value)
        else:
            same = sql.SQL("ROW({})::record OPERATOR(pg_catalog.*=) ROW({})::record").format(back, value)
        return sql.SQL("({} IS NULL OR ({}))").format(value, same)

    def change(self) -> str:
        return f"column '{self.name}' would be changed by the cast from {self.source} to {self.target}"


class Casts:
    """The conversions of batches for one target; the catalog is asked once for each set of columns."""

    def __init__(self, type_of: Callable[[Column], str], target: str) -> None:
        self._type_of = type_of
        self._target = target
        self._known: dict[tuple[tuple[str, str], ...], list[CastFacts]] = {}

    def sent_as(self, column: Column) -> str:
        """The type that the column's values are sent in: a column that a transform made is read by its target's."""
        return self._type_of(column) if column.inferred else column.type

    def is_json(self, column: Column) -> bool:
        return bare_type(self.sent_as(column)) in ("json", "jsonb")

    def of(self, connection: Connection, columns: Sequence[Column]) -> list[Conversion]:
        """How each column is converted; ConfigError where PostgreSQL has no assignment cast."""
        conversions = self._conversions(connection, columns)
        for one in conversions:
            if not one.facts.allowed:
                raise ConfigError(self._refusal(one), code="SCHEMA_CHANGED")
        return conversions

    def findings(self, connection: Connection, columns: Sequence[Column]) -> list[Finding]:
        """Columns that cannot be written, and those whose type may not hold every value."""
        found: list[Finding] = []
        for one in self._conversions(connection, columns):
            if not one.facts.allowed:
                found.append(Finding("SCHEMA_CHANGED", self._refusal(one), one.name, fatal=True))
            elif one.is_checked:
                text = (
                    f"column '{one.name}' of {self._target} is of type {one.target}, which cannot hold every value of"
                    f" the source's {one.source}: a row that would be changed does not fit (options.on_reject)"
                )
                found.append(Finding("NARROWER_COLUMN", text, one.name))
        return found

    def _refusal(self, one: Conversion) -> str:
        return (
            f"column '{one.name}' has type {one.source}, which PostgreSQL does not assign to type"
            f" {one.target} of {self._target}; cast it in the query, or change the column's type"
        )

    def _conversions(self, connection: Connection, columns: Sequence[Column]) -> list[Conversion]:
        kinds = [(self.sent_as(column), self._type_of(column)) for column in columns]
        pairs = tuple(
            (target if has_declared_type(column, target) else source, target)
            for column, (source, target) in zip(columns, kinds, strict=True)
        )
        if pairs not in self._known:
            is_same = all(source == target for source, target in pairs)
            self._known[pairs] = [_same(source) for source, _ in pairs] if is_same else describe_cast(connection, pairs)
        return [
            Conversion(column, source, target, facts)
            for column, (source, target), facts in zip(columns, kinds, self._known[pairs], strict=True)
        ]


_LENGTH = re.compile(r"\([-\d, ]+\)")
# Without its length, the first name of each pair means a length of one
_BARE = {"character": "bpchar", "bit": '"bit"', "character[]": "bpchar[]", "bit[]": '"bit"[]'}


def _same(name: str) -> CastFacts:
    """An assignment between equal types; most marts have no other, so that nothing is asked."""
    bare = _LENGTH.sub("", name)
    if bare.startswith("interval "):
        bare = "interval[]" if bare.endswith("[]") else "interval"
    bare = _BARE.get(bare, bare)
    return CastFacts(allowed=True, exact=True, equal=None, is_reversible=True, bare=bare, declared=name)


def has_declared_type(column: Column, target: str) -> bool:
    """Whether the target has the type that the column only carries, such as an enum: an earlier version created it."""
    return column.declared == target and column.type != "jsonb"


def describe_cast(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[CastFacts]:
    """What an assignment from the first to the second type of each pair does; names as format_type returns them."""
    with in_transaction(connection, CATALOG_NAMES):
        return _describe(connection, pairs)


def _describe(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[CastFacts]:
    names = sorted({name for pair in pairs for name in pair})
    given = {row["name"]: row for row in connection.execute(_TYPES, [names]).fetchall()}
    facts = dict(
        zip(names, types.describe(connection, [(given[name]["oid"], types.UNSET) for name in names]), strict=True)
    )
    bare = sorted({one.bare for one in facts.values()})
    known = {row["name"]: row for row in connection.execute(_TYPES, [bare]).fetchall()}
    oids = {oid for row in known.values() for oid in (row["oid"], row["element"]) if oid}
    casts = {
        (row["source"], row["target"]): row["context"]
        for row in connection.execute(_CASTS, {"oids": list(oids)}).fetchall()
    }
    sides = {name: _Side(name, given[name]["is_domain"], facts[name], known[facts[name].bare]) for name in names}
    return [_facts(sides[source], sides[target], casts) for source, target in pairs]


class _Side:
    """One type of a pair, below its domains."""

    def __init__(self, name: str, is_domain: bool, facts: types.TypeFacts, row: DictRow) -> None:
        self.bare = facts.bare
        self.declared = facts.declared if is_domain else name
        self.equal = facts.equal
        self.oid: int = row["oid"]
        self.category: str = row["category"]
        self.element: int | None = row["element"]
        self.element_category: str | None = row["element_category"]
        self.scalar = self.bare.removesuffix("[]")
        found = _MODIFIER.search(self.declared)
        self.modifier: tuple[int, ...] = tuple(int(part) for part in found[1].split(",")) if found else ()

    @property
    def is_text(self) -> bool:
        return self.category == "S"

    @property
    def cuts_fields(self) -> bool:
        """An `interval year to month` drops days and hours; those that end with seconds drop nothing."""
        fields = self.declared.removesuffix("[]").partition(" ")[2]
        return self.scalar == "interval" and fields != "" and not fields.endswith("second")


def _facts(source: _Side, target: _Side, casts: Mapping[tuple[int, int], str]) -> CastFacts:
    return CastFacts(
        allowed=_has_cast(source, target, casts, "ai", explicit=False),
        exact=_is_exact(source, target),
        equal=source.equal,
        is_reversible=_has_cast(target, source, casts, "aie", explicit=True),
        bare=target.bare,
        declared=target.declared,
    )


def _has_cast(
    source: _Side, target: _Side, casts: Mapping[tuple[int, int], str], contexts: str, *, explicit: bool
) -> bool:
    if source.oid == target.oid or target.is_text or (explicit and source.is_text):
        return True
    if casts.get((source.oid, target.oid), "-") in contexts:
        return True
    if source.element is None or target.element is None:
        return False
    is_through_text = target.element_category == "S" or (explicit and source.element_category == "S")
    is_cast = casts.get((source.element, target.element), "-") in contexts
    return source.element == target.element or is_through_text or is_cast


def _is_exact(source: _Side, target: _Side) -> bool:
    if source.declared == target.declared:
        return True
    if (source.element is None) != (target.element is None):
        return _is_plain_text(target)
    pair = source.scalar, target.scalar
    if pair[0] == pair[1] or pair in _EXACT:
        return not (target.modifier or target.cuts_fields) or _fits(source, target)
    if source.element is None:
        return _is_plain_text(target) or (source.is_text and _fits_text(source, target))
    return target.element_category == "S" and target.scalar not in _PADDED_OR_CUT and not target.modifier


def _is_plain_text(target: _Side) -> bool:
    return target.is_text and target.bare not in _PADDED_OR_CUT and not target.modifier


def _fits_text(source: _Side, target: _Side) -> bool:
    return source.scalar == "bpchar" and target.scalar == "character varying" and _fits(source, target)


def _fits(source: _Side, target: _Side) -> bool:
    """Whether every value of the source's type fits the target's length, scale or precision."""
    if target.scalar == "numeric":
        precision, scale = (*target.modifier, 0)[:2]
        if source.scalar in _DIGITS:
            return scale >= 0 and _DIGITS[source.scalar] <= precision - scale
        if source.scalar != "numeric" or not source.modifier:
            return False
        old_precision, old_scale = (*source.modifier, 0)[:2]
        return old_scale <= scale and old_precision - old_scale <= precision - scale
    if not source.modifier:
        return False
    if target.scalar == '"bit"':
        return source.modifier == target.modifier
    return (target.scalar in _LENGTHS or source.scalar == target.scalar) and source.modifier <= target.modifier


HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

UNCAST = sql.Identifier("pg_temp", "vitrine_uncast")


class ValueChanged(psycopg.DataError):
    """A cast to the target's type would change a value; a refusal like those that PostgreSQL raises."""


def encode(batch: Batch, casts: Casts) -> Batch:
    """Python values and frames in a format of COPY; called in another thread, before the write."""
    if not batch.count or not isinstance(batch.payload, PythonRows | FrameRows):
        return batch
    if isinstance(batch.payload, FrameRows):
        from vitrine.core.copytext import frames

        # binary data must match the types of the table exactly
        types = {column.name: casts.sent_as(column) for column in batch.columns}
        if (binary := frames.encode(batch.payload.frame, types)) is not None:
            return replace(batch, payload=replace(batch.payload, binary=binary))
    return replace(batch, payload=TextRows(text_of(batch, casts.is_json), batch.count))


def copy_in(session: TargetSession, casts: Casts, table: sql.Identifier, batch: Batch, *, checked: bool = True) -> None:
    """Copy rows into a table with the target's types; ValueChanged if a cast would change a value."""
    conversions = casts.of(session.connection, batch.columns)
    if not any(one.is_needed for one in conversions):
        copy_rows(session, casts, table, batch)
        return
    session.create_temporary(UNCAST, [(one.name, one.source) for one in conversions])
    copy_rows(session, casts, UNCAST, batch)
    _refuse_changes(session, conversions)
    # INSERT casts like an assignment: a text too long for its column is an error and is not truncated
    insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
        table,
        names(one.name for one in conversions),
        sql.SQL(", ").join(one.assigned(sql.Identifier(one.name)) for one in conversions),
        UNCAST,
    )
    session.connection.execute(insert)


def _refuse_changes(session: TargetSession, conversions: Sequence[Conversion]) -> None:
    kept = [
        one.keeps(value, sql.SQL("CAST({} AS {})").format(value, raw(one.facts.declared)))
        for one in conversions
        if one.is_checked
        for value in [sql.Identifier(one.name)]
    ]
    if not kept:
        return
    statement = sql.SQL("SELECT FROM {} WHERE NOT ({}) LIMIT 1").format(UNCAST, sql.SQL(" AND ").join(kept))
    if session.connection.execute(statement).rowcount:
        raise ValueChanged


def copy_rows(
    session: TargetSession, casts: Casts, table: sql.Identifier, batch: Batch, *, as_text: bool = False
) -> None:
    """Copy rows into a table whose types match the payload."""
    columns = names(column.name for column in batch.columns)
    parts: Sequence[Bytes]
    if not as_text and (binary := _binary_of(batch.payload)) is not None:
        options, parts = sql.SQL("(FORMAT binary)"), (HEADER, binary, TRAILER)
    else:
        options, parts = sql.SQL("(FORMAT text)"), (text_of(batch, casts.is_json),)
    statement = sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, columns, options)
    with session.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in parts:
            copy.write(part)
            reach("in_copy")


def _binary_of(payload: Payload) -> Bytes | None:
    match payload:
        case BinaryRows(data=data):
            return data
        case FrameRows(binary=binary):
            return binary
        case _:
            return None


REFUSALS = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)


def concerns_text(connection: Connection, error: psycopg.Error) -> bool:
    """Whether a text could not be converted; the same error refuses a JSON document with \\u0000 for jsonb."""
    is_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    return isinstance(error, REFUSALS) and not (is_utf8 and isinstance(error, psycopg.errors.UntranslatableCharacter))


def encoding_refusal(connection: Connection, batch: Batch, target: str) -> DataError:
    """The error for a batch that the server could not convert; the transaction must be usable."""
    encoding = connection.info.parameter_status("server_encoding") or "unknown"
    column = next((name for name, data in _columns(batch) if not _is_known(connection, data)), None)
    named = f"column '{column}'" if column else "a column"
    return DataError(
        f"{named} has a character that the encoding of target {target}'s database ({encoding}) lacks; change it in the"
        " query, or use a database with the encoding UTF8",
        code="ENCODING",
    )


def _is_known(connection: Connection, data: bytes) -> bool:
    try:
        with connection.transaction():
            connection.execute("SELECT convert_from(%b, 'UTF8')", [data])
    except REFUSALS:
        return False
    return True


def _columns(batch: Batch) -> Iterator[tuple[str, bytes]]:
    """Each column with the bytes of all its values."""
    for index, column in enumerate(batch.columns):
        if isinstance(batch.payload, BinaryRows):
            data = batch.payload.data
            found = (cursor_codec.fields(data, [index], start)[0] or b"" for start in cursor_codec.starts(data))
        else:
            lines = bytes(text_of(batch)).split(b"\n")
            found = (line.split(b"\t")[index] for line in lines if line)
        yield column.name, b"".join(_decodable(part) for part in found)


def _decodable(part: bytes) -> bytes:
    """The bytes of a text; of another type, in binary format, nothing that could be taken for one."""
    try:
        part.decode()
    except UnicodeDecodeError:
        return b""
    return part.replace(b"\0", b"")
