"""Warnings about a definition that reads marts: upstreams that never start it, a cursor that misses rows."""

from collections.abc import Iterator, Sequence

from vitrine.errors import VitrineError
from vitrine.flow.rows import Finding
from vitrine.model import Definition, Mode
from vitrine.policy.cursor_lineage import lineage_of
from vitrine.postgres import Connection
from vitrine.service.context import Context
from vitrine.store import chains
from vitrine.store.chains import Mart


def of_chain(context: Context, definition: Definition) -> tuple[Finding, ...]:
    """All of them; ConfigError if the pipeline would wait for itself."""
    with context.connection() as connection:
        found = list(of_upstreams(connection, definition))
        marts = chains.list_marts(connection)
    return (*found, *of_cursor(definition, marts))


def of_upstreams(connection: Connection, definition: Definition) -> Iterator[Finding]:
    """ConfigError if the pipeline would wait for itself."""
    if not definition.after:
        return
    chains.refuse_cycle(connection, definition.name, definition.after)
    enabled = chains.list_enabled(connection, definition.after)
    for name in definition.after:
        if name not in enabled:
            text = "does not exist yet; create it first, or apply both files together"
            yield Finding("UPSTREAM", f"after: pipeline '{name}' {text}")
        elif not enabled[name]:
            text = "is disabled, so that no run of it starts this one; enable it"
            yield Finding("UPSTREAM", f"after: pipeline '{name}' {text}")


def of_cursor(definition: Definition, marts: Sequence[Mart]) -> Iterator[Finding]:
    """A cursor of a mart must grow when a row is written to the mart: the horizon covers no other time.

    Called while no connection to the store is held, because it parses the query.
    """
    query, column = definition.query, definition.incremental_key
    if definition.mode is not Mode.INCREMENTAL or query is None or column is None or definition.source != "default":
        return
    try:
        found = lineage_of(query, column, {mart.relation: mart.columns for mart in marts})
    except VitrineError:
        return  # refused for other reasons
    for mart in marts:
        copied = [name for relation, name in found.origins if relation == mart.relation] if found else []
        if copied and copied != [mart.touch_column]:
            remedy = f"use '{mart.touch_column}'" if mart.touch_column else f"give '{mart.pipeline}' a touch_column"
            text = (
                f"incremental_key: '{column}' is the column '{copied[0]}' of a mart, {'.'.join(mart.relation)}, and has"
                " the time of its source: a row that arrives there late may never be read;"
                f" {remedy}, which has the time of writing, or read in mode full"
            )
            yield Finding("MART_CURSOR", text, column)
