"""A query under the settings of its own database, whose rows are formatted under ours, in one statement."""

from psycopg import sql

from vitrine.postgres import raw

# Evaluated once, after the last row of the query and before the first row is formatted
_FORMATS = """
    SELECT set_config('TimeZone', 'UTC', true) || set_config('DateStyle', 'ISO', true)
           || set_config('IntervalStyle', 'postgres', true) AS applied
      FROM (SELECT count(*) AS rows FROM q) AS computed WHERE computed.rows >= 0
"""

APPLIED = sql.SQL("(SELECT formats.applied FROM formats) IS NOT NULL")
"""The condition of the statement that formats the rows of `q`."""


def computed(rows: sql.Composable) -> sql.Composed:
    """The WITH clause that computes the rows of a query as `q`; the statement that follows must have `APPLIED`."""
    return sql.SQL("WITH q AS MATERIALIZED ({}), formats AS MATERIALIZED ({})").format(rows, raw(_FORMATS))
