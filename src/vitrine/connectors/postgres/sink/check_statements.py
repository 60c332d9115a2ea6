"""The statements of checks, composed from identifiers and literals.

Rows are always `q`, and every operator is one of pg_catalog: none of the target's schemas can replace it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from vitrine.checks import AcceptedValues, BaseCheck, NotNull, Range
from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.checks import canonical
from vitrine.flow.rows import Column, Key, Kind, bare_type, kind_of
from vitrine.postgres import raw

_LARGEST = 2**63 - 1
_LARGEST_SETTING = 2**31 - 1


@dataclass(frozen=True)
class Rows:
    """Rows to check: a table or a subquery, the types of its columns, and its key."""

    relation: sql.Composable
    types: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def query(self) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} AS q").format(names(self.types, "q"), self.relation)


@dataclass(frozen=True)
class Search:
    """How rows that break a check are found: their number, and a query of them."""

    count: sql.Composed
    broken: sql.Composed


def no_rows(types: Mapping[str, str]) -> sql.Composed:
    """A subquery with these columns and without rows."""
    columns = sql.SQL(", ").join(
        sql.SQL("CAST(NULL AS {}) AS {}").format(raw(type_name), sql.Identifier(name))
        for name, type_name in types.items()
    )
    return sql.SQL("(SELECT {} WHERE false)").format(columns)


def restricted(seconds: float, temporary_bytes: int) -> sql.Composed:
    """Settings for the subtransaction of a check; stricter limits of the role take precedence.

    Temporary files are limited if the role may do that. The merge of a batch switches joins off.
    """
    return sql.SQL(
        # guarantee: M5
        "SET LOCAL transaction_read_only = on; SET LOCAL search_path = pg_catalog, pg_temp;"
        " SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on;"
        " SELECT set_config('statement_timeout',"
        " CASE WHEN setting::bigint BETWEEN 1 AND {limit} THEN setting ELSE {limit}::text END, true)"
        " FROM pg_settings WHERE name = 'statement_timeout';"
        " SELECT set_config('temp_file_limit', {files}::text, true) FROM pg_settings WHERE name = 'temp_file_limit'"
        " AND has_parameter_privilege('temp_file_limit', 'SET') AND NOT setting::bigint BETWEEN 0 AND {files}"
    ).format(
        limit=sql.Literal(max(1, min(round(seconds * 1000), _LARGEST_SETTING))),
        files=sql.Literal(min(temporary_bytes // 1024, _LARGEST_SETTING)),
    )


# -- rows that break a check ------------------------------------------------------------------------------------------


def breaking(check: BaseCheck, rows: Rows) -> sql.Composed:
    """Whether row q breaks a check of single rows."""
    match check:
        case NotNull():
            return sql.SQL("num_nulls({}) > 0").format(names(check.columns, "q"))
        case AcceptedValues():
            return _is_another(check, rows.types[check.column])
        case Range():
            return _is_outside(check, rows.types[check.column])
        case _:
            raise ValueError(f"{check.kind} is no check of single rows")


def _is_another(check: AcceptedValues, type_name: str) -> sql.Composed:
    texts = [canonical(value, type_name) for value in check.values]
    column, compared = _compared(check.column, type_name, texts)
    values = sql.SQL(", ").join(map(sql.Literal, texts))
    return sql.SQL("{} OPERATOR(pg_catalog.<>) ALL (ARRAY[{}]::{}[])").format(column, values, compared)


def _is_outside(check: Range, type_name: str) -> sql.Composed:
    bounds = [("<", check.min), (">", check.max)]
    texts = {operator: canonical(bound, type_name) for operator, bound in bounds if bound is not None}
    column, compared = _compared(check.column, type_name, list(texts.values()))
    parts = [
        sql.SQL("{} OPERATOR(pg_catalog.{}) {}::{}").format(column, raw(operator), sql.Literal(text), compared)
        for operator, text in texts.items()
    ]
    if kind_of(type_name) in (Kind.FLOAT, Kind.DECIMAL):  # PostgreSQL orders NaN above all other numbers
        parts.append(sql.SQL("{} OPERATOR(pg_catalog.=) 'NaN'::{}").format(column, compared))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))


def _compared(name: str, type_name: str, texts: Sequence[str]) -> tuple[sql.Composable, sql.SQL]:
    """The column, and the type in which it is compared: without a length or scale, which would change the values."""
    column, kind = sql.Identifier("q", name), kind_of(type_name)
    if kind is Kind.INTEGER:
        wide = raw("bigint" if all(abs(int(text)) <= _LARGEST for text in texts) else "numeric")
        return sql.SQL("{}::{}").format(column, wide), wide
    if kind is Kind.TEXT:  # exactly, whatever the collation and the type find equal
        return sql.SQL('{}::text COLLATE "C"').format(column), raw("text")
    return column, raw(bare_type(type_name))


def select(condition: sql.Composed, rows: Rows) -> sql.Composed:
    return sql.SQL("{} WHERE {}").format(rows.query, condition)


def search(broken: sql.Composed) -> Search:
    return Search(sql.SQL("SELECT count(*) AS rows FROM ({}) AS found").format(broken), broken)


def repeated(rows: Rows, columns: Sequence[str]) -> Search:
    """Rows whose values in these columns, none of them NULL, another row has."""
    complete, unique = _complete("q", columns), names(columns, "q")
    counted = sql.SQL(
        "SELECT coalesce(sum(found.rows), 0)::bigint AS rows FROM (SELECT count(*) AS rows FROM {} AS q WHERE {}"
        " GROUP BY {} HAVING count(*) > 1) AS found"
    ).format(rows.relation, complete, unique)
    number = "rows with these values"
    ranked = sql.SQL("SELECT {}, count(*) OVER (PARTITION BY {}) AS {} FROM {} AS q WHERE {}").format(
        names(rows.types, "q"), unique, sql.Identifier(number), rows.relation, complete
    )
    broken = sql.SQL("SELECT {} FROM ({}) AS q WHERE {} > 1").format(
        names(rows.types, "q"), ranked, sql.Identifier("q", number)
    )
    return Search(counted, broken)


def with_twin_in_target(rows: Rows, columns: Sequence[str], target: TargetTable, deleted: Sequence[Key]) -> Search:
    """Rows whose values in these columns a row of another key has in the target, which contains them already.

    Rows of the keys in `deleted` are deleted next, in the same transaction.
    """
    found, facts = target.statements, target.facts
    kept: sql.Composable = sql.SQL("")
    if deleted and facts is not None:
        key = [Column(name, facts.types[name]) for name in target.key]
        kept = sql.SQL(" AND NOT ({})").format(ranges.condition("t", key, deleted, facts.equality))
    broken = sql.SQL(
        "SELECT {all} FROM {rows} AS s WHERE {complete} AND EXISTS"
        " (SELECT FROM {target} AS t WHERE {same_values} AND NOT ({same_key}){kept})"
    ).format(
        all=names(rows.types, "s"),
        rows=rows.relation,
        complete=_complete("s", columns),
        target=target.identifier,
        same_values=found.same(columns),
        same_key=found.same(found.key),
        kept=kept,
    )
    return search(broken)


def _complete(table: str, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL("num_nulls({}) = 0").format(names(columns, table))


# -- their number and their keys --------------------------------------------------------------------------------------


def count_all(conditions: Sequence[sql.Composed], rows: Rows) -> sql.Composed:
    """How many rows break each of the conditions, in one pass."""
    counts = sql.SQL(", ").join(
        sql.SQL("count(*) FILTER (WHERE {}) AS {}").format(condition, sql.Identifier(str(at)))
        for at, condition in enumerate(conditions)
    )
    return sql.SQL("SELECT {} FROM {} AS q").format(counts, rows.relation)


def limited(broken: sql.Composed, count: int) -> sql.Composed:
    return sql.SQL("SELECT * FROM ({}) AS found LIMIT {}").format(broken, sql.Literal(count))


def keys_of(broken: sql.Composed, key: Sequence[str], count: int) -> sql.Composed:
    """The first keys, as Vitrine stores them."""
    texts = sql.SQL(", ").join(sql.SQL("concat({})").format(sql.Identifier("found", name)) for name in key)
    return sql.SQL("SELECT json_build_array({})::text AS key FROM ({}) AS found ORDER BY {} LIMIT {}").format(
        texts, broken, names(key, "found"), sql.Literal(count)
    )
