"""Digests of a relation, computed inside PostgreSQL; the hash equals `flow.keys.row_hash`."""

from collections.abc import Sequence

from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import ranges
from vitrine.flow.rows import Column, Compare, Digest, Key, KeyRange
from vitrine.postgres import Connection, raw


def digest(connection: Connection, relation: sql.Composable, compare: Compare) -> list[Digest]:
    """Digests of every range of the relation, each divided into at most `compare.parts` of similar size."""
    found: list[Digest] = []
    for keys in compare.ranges:
        rows = _fetch(connection, _statement(relation, compare, keys))
        found += _digests(rows, keys, len(compare.key))
    return found


def _statement(relation: sql.Composable, compare: Compare, keys: KeyRange) -> sql.Composed:
    order = sql.SQL(", ").join(ranges.order_by("q", compare.key))
    key_texts = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(
            ranges.text(sql.Identifier("q", column.name), column.type), sql.Identifier(f"key {at}")
        )
        for at, column in enumerate(compare.key)
    )
    lowest_keys = sql.SQL(", ").join(
        sql.SQL("(array_agg({0} ORDER BY place))[1] AS {0}").format(sql.Identifier(f"key {at}"))
        for at in range(len(compare.key))
    )
    if compare.parts > 1:
        cut = sql.SQL("ntile({}) OVER (ORDER BY {})").format(sql.Literal(compare.parts), order)
        place = sql.SQL("row_number() OVER (ORDER BY {})").format(order)
        columns = sql.SQL("{}, {} AS part, {} AS place").format(key_texts, cut, place)
        grouped = sql.SQL("{}, part").format(lowest_keys)
        ending = sql.SQL("GROUP BY part ORDER BY part")
    else:  # one part needs neither a sort nor its keys
        columns, grouped, ending = sql.SQL("1 AS part"), sql.SQL("1 AS part"), sql.SQL("")
    control = _control(compare.control)
    return sql.SQL(
        "SELECT {grouped}, count(*) AS rows, coalesce(sum(image), 0)::text AS hash,"
        " min(control)::text AS lowest, max(control)::text AS highest"
        " FROM (SELECT {columns}, {image} AS image, {control} AS control FROM {relation} AS q WHERE {where}) AS r"
        " {ending}"
    ).format(
        grouped=grouped,
        columns=columns,
        image=_image(compare.columns),
        control=control,
        relation=relation,
        where=_where(compare, keys),
        ending=ending,
    )


def _image(columns: Sequence[Column]) -> sql.Composed:
    """The first 64 bits of MD5 over the row's texts, as a number."""
    texts = sql.SQL(", ").join(
        ranges.text(sql.SQL("CAST({} AS {})").format(sql.Identifier("q", column.name), raw(column.type)), column.type)
        for column in columns
    )
    return sql.SQL("CAST(CAST('x' || left(md5(json_build_array({})::text), 16) AS bit(64)) AS bigint)").format(texts)


def _control(column: Column | None) -> sql.Composable:
    if column is None:
        return sql.SQL("NULL::text")
    return sql.SQL("CAST({} AS {})").format(sql.Identifier("q", column.name), raw(_comparable(column.type)))


def _comparable(type_name: str) -> str:
    # these have no min and max; their text is ordered instead
    return "text" if type_name in ("uuid", "boolean", "json", "jsonb") else type_name


def _where(compare: Compare, keys: KeyRange) -> sql.Composable:
    inside = ranges.condition("q", compare.key, keys)
    if compare.below is None:
        return inside
    name, bound = compare.below
    return sql.SQL("{} AND {} < {}").format(inside, sql.Identifier("q", name), sql.Literal(bound))


def _fetch(connection: Connection, statement: sql.Composed) -> list[DictRow]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement).fetchall()


def _digests(rows: Sequence[DictRow], keys: KeyRange, width: int) -> list[Digest]:
    """A part begins at its first key and ends where the next one begins; the outer ends are those of the range."""
    if len(rows) <= 1:
        return [_digest_of(row, keys) for row in rows] or [Digest(keys, 0, 0)]
    firsts = [_key(row, width) for row in rows]
    lows = [keys.low, *firsts[1:]]
    highs = [*firsts[1:], keys.high]
    return [_digest_of(row, KeyRange(low, high)) for row, low, high in zip(rows, lows, highs, strict=True)]


def _key(row: DictRow, width: int) -> Key:
    return tuple(row[f"key {at}"] for at in range(width))


def _digest_of(row: DictRow, keys: KeyRange) -> Digest:
    return Digest(keys, row["rows"], int(row["hash"]), row["lowest"], row["highest"])
