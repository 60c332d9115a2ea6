"""What `validate` reports about the cursor of a query."""

from vitrine.connectors.postgres import PostgresSourceOptions
from vitrine.connectors.postgres.source import clock
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.query import SourceColumn
from vitrine.flow.rows import Finding
from vitrine.model import format_duration
from vitrine.postgres import translated


def of_cursor(
    column: SourceColumn, options: PostgresSourceOptions, connections: SourceConnections
) -> tuple[Finding, ...]:
    """Findings about the cursor column of an incremental pipeline."""
    return (*_of_lookback(options), *_of_zone(column, options, connections))


def _of_lookback(options: PostgresSourceOptions) -> tuple[Finding, ...]:
    if options.lookback is None:
        return ()
    lookback = format_duration(options.lookback)
    text = f"options.lookback: rows of a transaction that stays open longer than {lookback} may never be read"
    return (Finding("LOOKBACK", text),)


def _of_zone(
    column: SourceColumn, options: PostgresSourceOptions, connections: SourceConnections
) -> tuple[Finding, ...]:
    if column.type_oid not in (codec.TIMESTAMP, codec.DATE) or options.cursor_timezone is not None:
        return ()
    with translated("source"), connections.formatting() as connection:
        zone = clock.use_database_zone(connection)
    text = (
        f"options.cursor_timezone is not set: '{column.name}' is taken for the local time of {zone}, the TimeZone of"
        " the source database; set the option if the application writes times of another zone"
    )
    return (Finding("CURSOR_TIMEZONE", text, column=column.name),)
