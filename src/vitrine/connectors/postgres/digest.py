"""Digests of a relation, computed inside PostgreSQL; the hash equals `flow.keys.row_hash`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import formats, ranges
from vitrine.flow.rows import NUMBERS, Column, CommonForm, Compare, Digest, Key, KeyRange, Kind
from vitrine.postgres import Connection, raw

_LAST_DATE = "294276-12-31"
"""A later date has no timestamp."""


@dataclass(frozen=True)
class Relation:
    """Rows to digest: a table, or a query in parentheses."""

    rows: sql.Composable
    types: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # its own; other columns have the type of the comparison
    own_settings: bool = False  # the query must run under the session's settings, which format times differently

    def type_of(self, column: Column) -> str:
        return self.types.get(column.name, column.type)


def digest(connection: Connection, relation: Relation, compare: Compare) -> list[Digest]:
    """Digests of every range of the relation, each divided into at most `compare.parts` of similar size."""
    found: list[Digest] = []
    for keys in compare.ranges:
        rows = _fetch(connection, _Statement(relation, compare).text(keys))
        found += _digests(rows, keys, compare)
    return found


class _Statement:
    """The statement that computes the digests of one relation."""

    def __init__(self, relation: Relation, compare: Compare) -> None:
        self._relation = relation
        self._compare = compare

    def text(self, keys: KeyRange) -> sql.Composed:
        relation, control = self._relation, _Bounds.of(self._compare)
        columns, grouped, ending = self._parts() if self._compare.parts > 1 else _ONE_PART
        first, rows = sql.SQL(""), relation.rows
        if relation.own_settings:
            first, rows = formats.computed(rows), sql.Identifier("q")
        return sql.SQL(
            "{first} SELECT {grouped}, count(*) AS rows, coalesce(sum(image), 0)::text AS hash,"
            " {lowest} AS lowest, {highest} AS highest"
            " FROM (SELECT {columns}, {image} AS image, {control} AS control FROM {rows} AS q WHERE {where}) AS r"
            " {ending}"
        ).format(
            first=first,
            grouped=grouped,
            lowest=control.shown(sql.SQL("min(control)")),
            highest=control.shown(sql.SQL("max(control)")),
            columns=columns,
            image=self._image(),
            control=self._control(control),
            rows=rows,
            where=sql.SQL(" AND ").join(self._conditions(keys)),
            ending=ending,
        )

    def _parts(self) -> tuple[sql.Composable, sql.Composable, sql.Composable]:
        key, order = self._compare.key, sql.SQL(", ").join(self._places())
        key_texts = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(self._form(column), sql.Identifier(f"key {at}")) for at, column in enumerate(key)
        )
        lowest_keys = sql.SQL(", ").join(
            sql.SQL("(array_agg({0} ORDER BY place))[1] AS {0}").format(sql.Identifier(f"key {at}"))
            for at in range(len(key))
        )
        cut = sql.SQL("ntile({}) OVER (ORDER BY {})").format(sql.Literal(self._compare.parts), order)
        place = sql.SQL("row_number() OVER (ORDER BY {})").format(order)
        columns = sql.SQL("{}, {} AS part, {} AS place").format(key_texts, cut, place)
        return columns, sql.SQL("{}, part").format(lowest_keys), sql.SQL("GROUP BY part ORDER BY part")

    def _places(self) -> list[sql.Composable]:
        """What the key is ordered by; its common form, so that the ranges of one side fit the other."""
        return [
            ranges.number(self._form(column), "text") if column.kind in NUMBERS else ranges.utf8(self._form(column))
            for column in self._compare.key
        ]

    def _image(self) -> sql.Composed:
        """The first 64 bits of MD5 over the row's texts, as a number; bytes of UTF-8 in every database."""
        texts = sql.SQL(", ").join(self._form(column) for column in self._compare.columns)
        image = ranges.utf8(sql.SQL("json_build_array({})::text").format(texts))
        return sql.SQL("CAST(CAST('x' || left(md5({}), 16) AS bit(64)) AS bigint)").format(image)

    def _form(self, column: Column) -> sql.Composable:
        """The text of a value in the form that both sides have in common."""
        value, form = sql.Identifier("q", column.name), self._compare.form_of(column)
        return _in_form(value, self._relation.type_of(column), form, column)

    def _control(self, bounds: "_Bounds") -> sql.Composable:
        column = self._compare.control
        if column is None:
            return sql.SQL("NULL::text")
        value = sql.Identifier("q", column.name)
        return bounds.compared(value, self._relation.type_of(column), self._form(column))

    def _conditions(self, keys: KeyRange) -> list[sql.Composable]:
        compare = self._compare
        conditions: list[sql.Composable] = []
        if self._relation.own_settings:
            conditions.append(formats.APPLIED)
        conditions.append(ranges.within(self._places(), compare.key, keys))
        if compare.below is not None:
            name, bound = compare.below
            conditions.append(sql.SQL("{} < {}").format(sql.Identifier("q", name), sql.Literal(bound)))
        if compare.skipped:
            conditions.append(self._is_not_skipped())
        return conditions

    def _is_not_skipped(self) -> sql.Composed:
        """By bytes: the encoding of the database may lack a character of the key."""
        key = sql.SQL(", ").join(ranges.utf8(self._form(column)) for column in self._compare.key)
        lists = [[one[at].encode() for one in self._compare.skipped] for at in range(len(self._compare.key))]
        wanted = sql.SQL(", ").join(sql.SQL("{}::bytea[]").format(sql.Literal(values)) for values in lists)
        return sql.SQL("((({}) IN (SELECT * FROM unnest({}))) IS NOT TRUE)").format(key, wanted)


_ONE_PART = sql.SQL("1 AS part"), sql.SQL("1 AS part"), sql.SQL("")  # needs neither a sort nor its keys


def _in_form(value: sql.Composable, type_name: str, form: CommonForm, column: Column) -> sql.Composable:
    match form:
        case CommonForm.SAME | CommonForm.OUTPUT:
            return ranges.text(value, type_name)
        case CommonForm.NUMBER:
            return sql.SQL("CAST(trim_scale({}) AS text)").format(ranges.number(value, type_name))
        case CommonForm.FLOAT:
            return sql.SQL("CAST({} AS text)").format(_cast(value, "double precision"))
        case CommonForm.MOMENT:
            return _moment(value, type_name)
        case CommonForm.TIME:
            return sql.SQL("CAST({} AS text)").format(_cast(value, "time with time zone"))
        case CommonForm.TEXT:
            return _cast(value, "text")
        case CommonForm.PADDED:
            return sql.SQL("rtrim({}, ' ')").format(_cast(value, "text"))
        case CommonForm.JSON:
            return sql.SQL("CAST({} AS text)").format(_cast(value, "jsonb"))
        case CommonForm.PARSED:
            return ranges.text(_cast(value, column.type), column.type)


def _moment(value: sql.Composable, type_name: str) -> sql.Composable:
    moment = sql.SQL("CAST({} AS text)").format(_cast(value, "timestamp with time zone"))
    if type_name != "date":
        return moment
    beyond = sql.SQL("{0} > {1} AND isfinite({0})").format(value, _cast(sql.Literal(_LAST_DATE), "date"))
    return sql.SQL("CASE WHEN {} THEN CAST({} AS text) ELSE {} END").format(beyond, value, moment)


def _cast(value: sql.Composable, type_name: str) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(value, raw(type_name))


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
            return sql.SQL("encode({}, 'hex') COLLATE \"C\"").format(ranges.utf8(form))
        if self.as_type == "numeric":
            return ranges.number(value, type_name)
        return _cast(value, self.as_type) if self.as_type else value

    def shown(self, bound: sql.Composable) -> sql.Composable:
        # equal numbers may have more or fewer zeros at the end
        shown = sql.SQL("trim_scale({})").format(bound) if self.as_type == "numeric" else bound
        return sql.SQL("CAST({} AS text)").format(shown)

    def read(self, shown: str | None) -> str | None:
        return bytes.fromhex(shown).decode() if shown is not None and self.by_characters else shown


def _fetch(connection: Connection, statement: sql.Composed) -> list[DictRow]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement).fetchall()


def _digests(rows: Sequence[DictRow], keys: KeyRange, compare: Compare) -> list[Digest]:
    """A part begins at its first key and ends where the next one begins; the outer ends are those of the range."""
    bounds = _Bounds.of(compare)
    if len(rows) <= 1:
        return [_digest_of(row, keys, bounds) for row in rows] or [Digest(keys, 0, 0)]
    firsts = [_key(row, len(compare.key)) for row in rows]
    lows = [keys.low, *firsts[1:]]
    highs = [*firsts[1:], keys.high]
    cut = zip(rows, lows, highs, strict=True)
    return [_digest_of(row, KeyRange(low, high), bounds) for row, low, high in cut]


def _key(row: DictRow, width: int) -> Key:
    return tuple(row[f"key {at}"] for at in range(width))


def _digest_of(row: DictRow, keys: KeyRange, bounds: _Bounds) -> Digest:
    return Digest(keys, row["rows"], int(row["hash"]), bounds.read(row["lowest"]), bounds.read(row["highest"]))
