"""Digests of a relation, computed inside PostgreSQL; the hash equals `flow.keys.row_hash`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import formats, ranges
from vitrine.connectors.postgres.common_forms import cast
from vitrine.connectors.postgres.key_places import KeyPlaces, Relation
from vitrine.flow.keys import NULL
from vitrine.flow.rows import ALL_KEYS, Column, CommonForm, Compare, Digest, Key, KeyRange, Kind
from vitrine.postgres import Connection


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
        return formats.computed(self._relation.rows) if self._relation.own_settings else sql.SQL("")

    def _selected(self, columns: sql.Composable, *, sampled: bool = False) -> sql.Composed:
        relation = self._relation
        conditions = [formats.APPLIED] if relation.own_settings else []
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
        image = ranges.utf8(sql.SQL("json_build_array({})::text").format(texts))
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
            return sql.SQL("encode({}, 'hex') COLLATE \"C\"").format(ranges.utf8(form))
        if self.as_type == "numeric":
            return ranges.number(value, type_name)
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
