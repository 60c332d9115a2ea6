"""What `validate` reports about the cursor of a query."""

from vitrine.connectors.postgres import PostgresSourceOptions
from vitrine.flow.rows import Finding
from vitrine.model import format_duration


def of_cursor(options: PostgresSourceOptions) -> tuple[Finding, ...]:
    """Findings about the cursor of an incremental pipeline."""
    return _of_lookback(options)


def _of_lookback(options: PostgresSourceOptions) -> tuple[Finding, ...]:
    if options.lookback is None:
        return ()
    lookback = format_duration(options.lookback)
    text = f"options.lookback: rows of a transaction that stays open longer than {lookback} may never be read"
    return (Finding("LOOKBACK", text),)
