"""Where keys of a relation stand among the ranges and keys of a comparison, as SQL."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.common_forms import cast, in_form
from vitrine.flow.keys import NULL, rank
from vitrine.flow.rows import NUMBERS, Column, Compare, Key, KeyRange, Kind, bare_type

_NATIVE = {
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    **dict.fromkeys(("smallint", "integer", "bigint"), re.compile(r"-?[0-9]{1,18}")),
}
"""Types that order their values as the texts or numbers of a comparison are ordered, so that an index can be used."""

MOST_CONDITIONS = 200
"""Ranges that are also given one by one; of more, most rows are read in any case."""


@dataclass(frozen=True)
class Relation:
    """Rows to digest: a table, or a query in parentheses."""

    rows: sql.Composable
    types: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # its own; other columns have the type of the comparison
    own_settings: bool = False  # the query must run under the session's settings, which format times differently
    sample: sql.Composable | None = None  # of a large table: the clause that reads enough rows to cut it into parts
    lacks: frozenset[str] = frozenset()  # columns of the comparison that it does not have: every row holds NULL

    def type_of(self, column: Column) -> str:
        return self.types.get(column.name, column.type)


class KeyPlaces:
    """The key of a relation `q`, in the order of the comparison."""

    def __init__(self, relation: Relation, compare: Compare) -> None:
        self._relation = relation
        self._compare = compare
        self._bounds = _sorted_bounds(compare)
        self._native = [self._native_type(at) for at in range(len(compare.key))]

    def form(self, column: Column) -> sql.Composable:
        """The text of a value in the form that both sides have in common."""
        if column.name in self._relation.lacks:
            return sql.SQL("NULL::text")
        value = sql.Identifier("q", column.name)
        return in_form(value, self._relation.type_of(column), self._compare.form_of(column), column)

    @property
    def bucket(self) -> sql.Composable:
        """The number of the bound at or below the key: 0 before the first; NULL is after all others."""
        if not self._bounds:
            return sql.SQL("0")
        place = self._row([self._place(at) for at in range(len(self._native))])
        bounds = sql.SQL(", ").join(self._row([self._bound(key, at) for at in range(len(key))]) for key in self._bounds)
        return sql.SQL("coalesce(width_bucket({}, ARRAY[{}]), {})").format(
            place, bounds, sql.Literal(len(self._bounds))
        )

    def bucket_of(self, keys: KeyRange) -> int:
        return 0 if keys.low is None else self._bounds.index(keys.low) + 1

    @property
    def order(self) -> sql.Composable:
        return sql.SQL(", ").join(self._place(at) for at in range(len(self._native)))

    def conditions(self) -> Iterator[sql.Composable]:
        """True for the rows that the comparison covers, apart from those that it skips."""
        compare = self._compare
        if compare.only is not None:
            yield from self._listed_natively(compare.only)
            yield self._is_listed(compare.only)
        wanted = [self.bucket_of(keys) for keys in compare.ranges]
        if len(set(wanted)) <= len(self._bounds):
            yield from self._ranges_natively()
            yield sql.SQL("{} = ANY({}::integer[])").format(self.bucket, sql.Literal(wanted))
        if compare.marked is not None:
            yield self._is_not_marked(compare.marked)
        # guarantee: J30
        if compare.skipped:
            yield sql.SQL("({} IS NOT TRUE)").format(self._is_listed(compare.skipped))

    def _is_not_marked(self, column: Column) -> sql.Composed:
        """The same rule as that of `flow.marks`."""
        value = sql.Identifier("q", column.name)
        if column.kind is Kind.BOOLEAN:
            return sql.SQL("{} IS NOT TRUE").format(value)
        return sql.SQL("({} <> 0) IS NOT TRUE" if column.kind in NUMBERS else "{} IS NULL").format(value)

    def _place(self, at: int) -> sql.Composable:
        column = self._compare.key[at]
        if (native := self._native[at]) is not None:
            return cast(sql.Identifier("q", column.name), _widest(native))
        form = self.form(column)
        return ranges.number(form, "text") if column.kind in NUMBERS else ranges.utf8(form)

    def _bound(self, key: Key, at: int) -> sql.Composable:
        native = self._native[at]
        if native is not None:
            return cast(sql.Literal(key[at]), _widest(native))
        if self._compare.key[at].kind in NUMBERS:
            return ranges.number(sql.Literal(key[at]), "text")
        # the bytes of a text: the database's encoding may lack one of its characters
        return sql.SQL("{}::bytea").format(sql.Literal(key[at].encode()))

    @staticmethod
    def _row(values: Sequence[sql.Composable]) -> sql.Composable:
        return values[0] if len(values) == 1 else sql.SQL("ROW({})").format(sql.SQL(", ").join(values))

    def _native_type(self, at: int) -> str | None:
        """The type of a key column that is compared as it is; None: by its common form."""
        column = self._compare.key[at]
        type_name = bare_type(self._relation.type_of(column))
        pattern = _NATIVE.get(type_name)
        if pattern is None or bare_type(column.type) not in _NATIVE:
            return None
        given = (key[at] for key in (*self._bounds, *(self._compare.only or ())))
        return type_name if all(pattern.fullmatch(text) for text in given) else None

    def _listed_natively(self, keys: Sequence[Key]) -> Iterator[sql.Composable]:
        if (native := self._native[0]) is not None:
            texts = sql.Literal([key[0] for key in keys])
            name = sql.Identifier("q", self._compare.key[0].name)
            yield sql.SQL("{} = ANY({})").format(name, cast(texts, f"{_widest(native)}[]"))

    def _is_listed(self, keys: Sequence[Key]) -> sql.Composed:
        """By bytes: the encoding of the database may lack a character of the key."""
        parts = [ranges.utf8(self.form(column)) for column in self._compare.key]
        if any(NULL in key for key in keys):
            parts = [sql.SQL("coalesce({}, {}::bytea)").format(part, sql.Literal(NULL.encode())) for part in parts]
        key = sql.SQL(", ").join(parts)
        lists = [[one[at].encode() for one in keys] for at in range(len(self._compare.key))]
        wanted = sql.SQL(", ").join(sql.SQL("{}::bytea[]").format(sql.Literal(values)) for values in lists)
        return sql.SQL("(({}) IN (SELECT * FROM unnest({})))").format(key, wanted)

    def _ranges_natively(self) -> Iterator[sql.Composable]:
        """The ranges by the first column of the key alone, for an index."""
        if self._native[0] is None or len(self._compare.ranges) > MOST_CONDITIONS:
            return
        name = sql.Identifier("q", self._compare.key[0].name)
        each: list[sql.Composable] = []
        for keys in self._compare.ranges:
            ends = [
                sql.SQL("{} {} {}").format(name, operator, self._bound(key, 0))
                for key, operator in ((keys.low, sql.SQL(">=")), (keys.high, sql.SQL("<=")))
                if key is not None
            ]
            each.append(sql.SQL("({})").format(sql.SQL(" AND ").join(ends)))
            if keys.high is None:  # NULL is after all others
                each.append(sql.SQL("{} IS NULL").format(name))
        yield sql.SQL("({})").format(sql.SQL(" OR ").join(each))


def _widest(native: str) -> str:
    # a text of the other side may be too large for a smaller type
    return native if native == "uuid" else "bigint"


def _sorted_bounds(compare: Compare) -> list[Key]:
    ends = {end for keys in compare.ranges for end in (keys.low, keys.high) if end is not None}
    return sorted(ends, key=lambda key: rank(key, compare.key))
