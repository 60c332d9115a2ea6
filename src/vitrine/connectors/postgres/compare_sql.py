"""Comparisons inside PostgreSQL, as SQL: rows by key, ranges of keys, common forms, and digests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres.types import Operator, output_text
from vitrine.core.keys import NULL, rank
from vitrine.core.rows import (
    ALL_KEYS,
    NUMBERS,
    Column,
    CommonForm,
    Compare,
    Digest,
    Key,
    KeyRange,
    Kind,
    Selection,
    bare_type,
    kind_of,
)
from vitrine.postgres import Connection, raw

# Evaluated once, after the last row of the query and before the first row is formatted
_FORMATS = """
    SELECT set_config('TimeZone', 'UTC', true) || set_config('DateStyle', 'ISO', true)
           || set_config('IntervalStyle', 'postgres', true) AS applied
      FROM (SELECT count(*) AS rows FROM q) AS computed WHERE computed.rows >= 0
"""

FORMATS_APPLIED = sql.SQL("(SELECT formats.applied FROM formats) IS NOT NULL")
"""The condition of the statement that formats the rows of `q`."""


def computed_under_formats(rows: sql.Composable) -> sql.Composed:
    """The WITH clause that computes the rows of a query as `q`; the statement that follows must have `APPLIED`."""
    return sql.SQL("WITH q AS MATERIALIZED ({}), formats AS MATERIALIZED ({})").format(rows, raw(_FORMATS))


_CAST_KINDS = frozenset(
    {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL, Kind.UUID, Kind.BYTES, Kind.JSON} | NUMBERS
)
"""Kinds whose cast to text calls the output function; the catalog may define another cast for any other type."""

_NUMERIC_CASTS = frozenset({"smallint", "integer", "bigint", "numeric"})
"""Types whose cast to numeric loses nothing: that of a float keeps 15 digits."""


def text(value: sql.Composable, type_name: str) -> sql.Composable:
    """The value in PostgreSQL's text format, as COPY sends it."""
    if kind_of(type_name) in _CAST_KINDS or bare_type(type_name) in ("text", "character varying"):
        return sql.SQL("CAST({} AS text)").format(value)
    return output_text(value)


def number(value: sql.Composable, type_name: str) -> sql.Composable:
    """The value of a number, or of its text, as numeric."""
    exact = value if bare_type(type_name) in _NUMERIC_CASTS else text(value, type_name)
    return sql.SQL("CAST({} AS numeric)").format(exact)


def utf8(value: sql.Composable) -> sql.Composed:
    """The characters of a text as bytes: equal and ordered alike in databases of every encoding and collation."""
    return sql.SQL("convert_to({}, 'UTF8')").format(value)


def place(value: sql.Composable, type_name: str) -> sql.Composable:
    """What a value is ordered by: a number by its value, everything else by the characters of its text."""
    return number(value, type_name) if kind_of(type_name) in NUMBERS else utf8(text(value, type_name))


def order_by(table: str, key: Sequence[Column]) -> list[sql.Composable]:
    """Expressions that order keys."""
    return [place(sql.Identifier(table, column.name), column.type) for column in key]


def condition(
    table: str, key: Sequence[Column], only: Selection, operators: Mapping[str, Operator | None] | None = None
) -> sql.Composable:
    """True for the selected rows of a relation.

    `operators` are those that decide whether two keys are equal, by column. None: the type has none, its text decides.
    """
    if isinstance(only, KeyRange):
        return within(order_by(table, key), key, only)
    wanted = sql.SQL(", ").join(sql.Literal([one[at] for one in only]) + sql.SQL("::text[]") for at in range(len(key)))
    aliases = sql.SQL(", ").join(sql.Identifier(f"k{at}") for at in range(len(key)))
    if operators is None:
        names = sql.SQL(", ").join(sql.Identifier(table, column.name) for column in key)
        values = sql.SQL(", ").join(_wanted(at, column) for at, column in enumerate(key))
        return sql.SQL("({}) IN (SELECT {} FROM unnest({}) AS wanted({}))").format(names, values, wanted, aliases)
    matches = sql.SQL(" AND ").join(_match(table, at, column, operators) for at, column in enumerate(key))
    return sql.SQL("EXISTS (SELECT FROM unnest({}) AS wanted({}) WHERE {})").format(wanted, aliases, matches)


def _wanted(at: int, column: Column) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(sql.Identifier("wanted", f"k{at}"), raw(column.type))


def _match(table: str, at: int, column: Column, operators: Mapping[str, Operator | None]) -> sql.Composed:
    stored = sql.Identifier(table, column.name)
    operator = operators[column.name]
    if operator is not None:
        return operator.between(stored, _wanted(at, column))
    return sql.SQL('{} = {} COLLATE "C"').format(text(stored, column.type), sql.Identifier("wanted", f"k{at}"))


def within(places: Sequence[sql.Composable], key: Sequence[Column], keys: KeyRange) -> sql.Composable:
    """True for keys of the range; `places` are what the key is ordered by."""
    bounds = [
        _compared(places, key, limit, operator)
        for limit, operator in ((keys.low, sql.SQL(">=")), (keys.high, sql.SQL("<")))
        if limit is not None
    ]
    return sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")


def _compared(places: Sequence[sql.Composable], key: Sequence[Column], limit: Key, operator: sql.SQL) -> sql.Composed:
    values = [_limit(value, column) for value, column in zip(limit, key, strict=True)]
    return sql.SQL("ROW({}) {} ROW({})").format(sql.SQL(", ").join(places), operator, sql.SQL(", ").join(values))


def _limit(value: str, column: Column) -> sql.Composable:
    # the bytes of a text: the database's encoding may lack one of its characters
    return number(sql.Literal(value), "text") if column.kind in NUMBERS else sql.Literal(value.encode())


_LAST_DATE = "294276-12-31"
"""A later date has no timestamp."""


def in_form(value: sql.Composable, type_name: str, form: CommonForm, column: Column) -> sql.Composable:
    """The text of a value of the given type; `column` has the type of the comparison."""
    match form:
        case CommonForm.SAME | CommonForm.OUTPUT:
            return text(value, type_name)
        case CommonForm.NUMBER:
            return sql.SQL("CAST(trim_scale({}) AS text)").format(number(value, type_name))
        case CommonForm.FLOAT:
            return sql.SQL("CAST({} AS text)").format(cast(value, "double precision"))
        case CommonForm.MOMENT:
            return _moment(value, type_name)
        case CommonForm.TIME:
            return sql.SQL("CAST({} AS text)").format(cast(value, "time with time zone"))
        case CommonForm.TEXT:
            return cast(value, "text")
        case CommonForm.PADDED:
            return sql.SQL("rtrim({}, ' ')").format(cast(value, "text"))
        case CommonForm.JSON:
            return sql.SQL("CAST({} AS text)").format(cast(value, "jsonb"))
        case CommonForm.PARSED:
            return text(cast(value, column.type), column.type)


def _moment(value: sql.Composable, type_name: str) -> sql.Composable:
    moment = sql.SQL("CAST({} AS text)").format(cast(value, "timestamp with time zone"))
    if type_name != "date":
        return moment
    beyond = sql.SQL("{0} > {1} AND isfinite({0})").format(value, cast(sql.Literal(_LAST_DATE), "date"))
    return sql.SQL("CASE WHEN {} THEN CAST({} AS text) ELSE {} END").format(beyond, value, moment)


def cast(value: sql.Composable, type_name: str) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(value, raw(type_name))


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
        return number(form, "text") if column.kind in NUMBERS else utf8(form)

    def _bound(self, key: Key, at: int) -> sql.Composable:
        native = self._native[at]
        if native is not None:
            return cast(sql.Literal(key[at]), _widest(native))
        if self._compare.key[at].kind in NUMBERS:
            return number(sql.Literal(key[at]), "text")
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
        parts = [utf8(self.form(column)) for column in self._compare.key]
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


def digest(connection: Connection, relation: Relation, compare: Compare) -> list[Digest]:
    """Digests of every range of the relation, each cut into at most `compare.parts` of similar size, or of every key.

    One statement reads the relation once, however many ranges there are; cutting takes one more for each range.
    """
    if compare.only == ():
        return [] if compare.by_key else [Digest(keys, 0, 0) for keys in compare.ranges]
    if compare.parts > 1:
        cut = tuple(part for keys in compare.ranges for part in _cut(connection, relation, compare, keys))
        compare = replace(compare, ranges=cut, parts=1)
        if compare.bounds_only:
            return [Digest(keys, 0, 0) for keys in cut]
    statement = _Statement(relation, compare)
    if compare.by_key:
        return [_digest_of_key(row, compare) for row in _fetch(connection, statement.by_key())]
    found = {row["bucket"]: row for row in _fetch(connection, statement.by_range())}
    bounds = _Bounds.of(compare)
    return [_digest_of(found.get(statement.places.bucket_of(keys)), keys, bounds) for keys in compare.ranges]


def _cut(connection: Connection, relation: Relation, compare: Compare, keys: KeyRange) -> Iterator[KeyRange]:
    """A part begins at its first key and ends where the next one begins; the outer ends are those of the range."""
    sampled = relation if keys == ALL_KEYS else replace(relation, sample=None)
    rows = _fetch(connection, _Statement(sampled, replace(compare, ranges=(keys,))).first_keys())
    firsts = list(dict.fromkeys(_key(row, compare) for row in rows))[1:]
    lows, highs = [keys.low, *firsts], [*firsts, keys.high]
    return (KeyRange(low, high) for low, high in zip(lows, highs, strict=True))


class _Statement:
    """The statements that compute the digests of one relation."""

    def __init__(self, relation: Relation, compare: Compare) -> None:
        self.places = KeyPlaces(relation, compare)
        self._relation = relation
        self._compare = compare

    def by_range(self) -> sql.Composed:
        control = _Bounds.of(self._compare)
        columns = sql.SQL("{} AS bucket, {} AS image, {} AS control").format(
            self.places.bucket, self._image(self._compare.columns), self._control(control)
        )
        return sql.SQL(
            "{first} SELECT bucket, count(*) AS rows, coalesce(sum(image), 0)::text AS hash,"
            " {lowest} AS lowest, {highest} AS highest FROM ({rows}) AS r GROUP BY bucket"
        ).format(
            first=self._first(),
            lowest=control.shown(sql.SQL("min(control)")),
            highest=control.shown(sql.SQL("max(control)")),
            rows=self._selected(columns),
        )

    def by_key(self) -> sql.Composed:
        columns = self._compare.columns
        images = [sql.SQL("{} AS {}").format(self._image([one]), _image_name(at)) for at, one in enumerate(columns)]
        selected = sql.SQL(", ").join([self._keys(), sql.SQL("{} AS image").format(self._image(columns)), *images])
        sums = [sql.SQL("sum({})::text").format(_image_name(at)) for at in range(len(columns))]
        names = sql.SQL(", ").join(_key_name(at) for at in range(len(self._compare.key)))
        return sql.SQL(
            "{first} SELECT {names}, count(*) AS rows, sum(image)::text AS hash, ARRAY[{sums}]::text[] AS columns"
            " FROM ({rows}) AS r GROUP BY {names}"
        ).format(first=self._first(), names=names, sums=sql.SQL(", ").join(sums), rows=self._selected(selected))

    def first_keys(self) -> sql.Composed:
        """The first key of each part."""
        order = self.places.order
        numbered = sql.SQL("ntile({}) OVER w AS part, row_number() OVER w AS place").format(
            sql.Literal(self._compare.parts)
        )
        columns = sql.SQL("{}, {}").format(self._keys(), numbered)
        names = [_key_name(at) for at in range(len(self._compare.key))]
        present = sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(name) for name in names)
        return sql.SQL(
            "{first} SELECT DISTINCT ON (part) {names} FROM ({rows} WINDOW w AS (ORDER BY {order})) AS r"
            " WHERE {present} ORDER BY part, place"
        ).format(
            first=self._first(),
            names=sql.SQL(", ").join(names),
            rows=self._selected(columns, sampled=True),
            order=order,
            present=present,
        )

    def _first(self) -> sql.Composable:
        return computed_under_formats(self._relation.rows) if self._relation.own_settings else sql.SQL("")

    def _selected(self, columns: sql.Composable, *, sampled: bool = False) -> sql.Composed:
        relation = self._relation
        conditions = [FORMATS_APPLIED] if relation.own_settings else []
        return sql.SQL("SELECT {} FROM {} AS q {} WHERE {}").format(
            columns,
            sql.Identifier("q") if relation.own_settings else relation.rows,
            relation.sample if sampled and relation.sample else sql.SQL(""),
            sql.SQL(" AND ").join([*conditions, *self.places.conditions()] or [sql.SQL("true")]),
        )

    def _keys(self) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(self.places.form(column), _key_name(at))
            for at, column in enumerate(self._compare.key)
        )

    def _image(self, columns: Sequence[Column]) -> sql.Composed:
        """The first 64 bits of MD5 over the row's texts, as a number; bytes of UTF-8 in every database."""
        texts = sql.SQL(", ").join(self.places.form(column) for column in columns)
        image = utf8(sql.SQL("json_build_array({})::text").format(texts))
        return sql.SQL("CAST(CAST('x' || left(md5({}), 16) AS bit(64)) AS bigint)").format(image)

    def _control(self, bounds: "_Bounds") -> sql.Composable:
        column = self._compare.control
        if column is None:
            return sql.SQL("NULL::text")
        value = sql.Identifier("q", column.name)
        return bounds.compared(value, self._relation.type_of(column), self.places.form(column))


def _key_name(at: int) -> sql.Identifier:
    return sql.Identifier(f"key {at}")


def _image_name(at: int) -> sql.Identifier:
    return sql.Identifier(f"image {at}")


@dataclass(frozen=True)
class _Bounds:
    """How the lowest and the highest value of the control column are found, alike on both sides."""

    as_type: str | None  # None: the type itself, or the characters of the text
    by_characters: bool

    @classmethod
    def of(cls, compare: Compare) -> "_Bounds":
        column = compare.control
        form = compare.form_of(column) if column else CommonForm.TEXT
        kind = column.kind if column and form is CommonForm.SAME else None
        match form, kind:
            case (CommonForm.NUMBER, _) | (_, Kind.INTEGER | Kind.DECIMAL):
                return cls("numeric", by_characters=False)
            case (CommonForm.FLOAT, _) | (_, Kind.FLOAT):
                return cls("double precision", by_characters=False)
            case _, Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                return cls(None, by_characters=False)
            case _:
                return cls(None, by_characters=True)

    def compared(self, value: sql.Composable, type_name: str, form: sql.Composable) -> sql.Composable:
        """What is compared; hexadecimal digits order as the bytes do, and bytea has no minimum before version 18."""
        if self.by_characters:
            # guarantee: J35
            return sql.SQL("encode({}, 'hex') COLLATE \"C\"").format(utf8(form))
        if self.as_type == "numeric":
            return number(value, type_name)
        return cast(value, self.as_type) if self.as_type else value

    def shown(self, bound: sql.Composable) -> sql.Composable:
        # equal numbers may have more or fewer zeros at the end
        shown = sql.SQL("trim_scale({})").format(bound) if self.as_type == "numeric" else bound
        return sql.SQL("CAST({} AS text)").format(shown)

    def read(self, shown: str | None) -> str | None:
        return bytes.fromhex(shown).decode() if shown is not None and self.by_characters else shown


def _fetch(connection: Connection, statement: sql.Composed) -> list[DictRow]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement).fetchall()


def _key(row: DictRow, compare: Compare) -> Key:
    texts = (row[f"key {at}"] for at in range(len(compare.key)))
    return tuple(NULL if text is None else text for text in texts)


def _digest_of(row: DictRow | None, keys: KeyRange, bounds: _Bounds) -> Digest:
    if row is None:
        return Digest(keys, 0, 0)
    return Digest(keys, row["rows"], int(row["hash"]), bounds.read(row["lowest"]), bounds.read(row["highest"]))


def _digest_of_key(row: DictRow, compare: Compare) -> Digest:
    images = tuple(int(image) for image in row["columns"])
    return Digest(KeyRange(_key(row, compare)), row["rows"], int(row["hash"]), columns=images)
