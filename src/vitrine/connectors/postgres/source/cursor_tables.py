"""Tables of a query whose changes do not move its cursor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from vitrine.flow.rows import Finding
from vitrine.policy import ReadOnlySql
from vitrine.policy.cursor_lineage import Lineage, Relation
from vitrine.postgres import Connection

_COLUMNS = r"""
    SELECT n.nspname::text AS schema, c.relname::text AS name, a.attname::text AS column,
           a.atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype) AS is_time,
           a.attname ~* '(modif|updat|chang)' AS is_named,
           coalesce(pg_get_expr(d.adbin, d.adrelid) ~* '(now\(\)|_timestamp|localtimestamp)', false) AS is_now
      FROM unnest(%(schemas)s::name[], %(names)s::name[]) AS named(schema, name)
      JOIN pg_namespace AS n ON n.nspname = named.schema
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = named.name
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     ORDER BY schema, name, a.attnum
"""


@dataclass(frozen=True)
class Table:
    """A relation that the query names."""

    columns: tuple[str, ...]
    change: str | None  # the column that most likely has the time of the last change


def describe(connection: Connection, relations: Sequence[Relation]) -> dict[Relation, Table]:
    arguments = {"schemas": [schema for schema, _ in relations], "names": [name for _, name in relations]}
    found: dict[Relation, list[Mapping[str, object]]] = {}
    for row in connection.execute(_COLUMNS, arguments):
        found.setdefault((row["schema"], row["name"]), []).append(row)
    return {
        relation: Table(tuple(str(row["column"]) for row in rows), _change(rows)) for relation, rows in found.items()
    }


def _change(columns: Sequence[Mapping[str, object]]) -> str | None:
    times = [one for one in columns if one["is_time"]]
    likely = [one for one in times if one["is_named"]] or [one for one in times if one["is_now"]]
    return str(likely[0]["column"]) if likely else None


def ignored(
    connection: Connection, query: ReadOnlySql, tables: Mapping[Relation, Table], cursor: str, lineage: Lineage
) -> tuple[Finding, ...]:
    """One warning about all tables whose changes do not move the cursor."""
    sources = {relation for relation, _ in lineage.origins}
    others = sorted(set(tables) - sources)
    if not sources or not others:
        return ()
    # a run reads only rows whose cursor is above the checkpoint, whatever the query selects
    filtered = {relation for relation, _ in lineage.filtered}
    not_enough = " (a condition on $1 alone does not change that)" if filtered.intersection(others) else ""
    text = (
        f"a change in {_listed(others, 'or')} alone never reaches this mart, because the cursor '{cursor}' takes its"
        f" values from {_listed(sorted(sources), 'and')} only{not_enough};"
        f" {_remedy(connection, tables, cursor, others)}"
    )
    place = query.place_of_relation(*others[0])
    return (Finding("CURSOR_IGNORES_TABLE", text, cursor, place=place),)


def _remedy(connection: Connection, tables: Mapping[Relation, Table], cursor: str, others: Sequence[Relation]) -> str:
    changes = [(one, change) for one in others if (change := tables[one].change) is not None]
    without = [one for one in others if tables[one].change is None]
    remedies: list[str] = []
    if changes:
        times = [(sql.Identifier(*one), sql.Identifier(one[1], change)) for one, change in changes]
        query = sql.SQL("greatest(…, {}) AS {} … WHERE … IN (SELECT … WHERE … >= $1 UNION {})").format(
            sql.SQL(", ").join(sql.SQL("max({})").format(time) for _, time in times),
            sql.Identifier(cursor),
            sql.SQL(" UNION ").join(sql.SQL("SELECT … FROM {} … WHERE {} >= $1").format(*one) for one in times),
        )
        remedies.append(f"a query that includes it has this form: {query.as_string(connection)}")
    if without:
        have = "have" if len(without) > 1 else "has"
        remedies.append(f"{_listed(without, 'and')} {have} no column with the time of a change, so use mode: full")
    return "; ".join(remedies)


def _listed(relations: Sequence[Relation], word: str) -> str:
    *names, last = [".".join(relation) for relation in relations]
    return f"{', '.join(names)} {word} {last}" if names else last
