"""Casts between the type of a batch's column and the type of its column in the target, and whether they keep values."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import types
from vitrine.errors import ConfigError
from vitrine.flow.rows import Column, Finding, bare_type
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
            self._known[pairs] = [_same(source) for source, _ in pairs] if is_same else describe(connection, pairs)
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


def describe(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[CastFacts]:
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
