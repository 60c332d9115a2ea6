"""Places of the source's errors in the query that the user typed."""

from collections.abc import Sequence

import psycopg

from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.copy_out import Described
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.places import Place
from vitrine.policy import ReadOnlySql
from vitrine.postgres import translated

_UNDEFINED_TABLE, _UNDEFINED_SCHEMA = "42P01", "3F000"


def prepare(session: SourceSession, query: ReadOnlySql, then: Sequence[str] = ()) -> list[Described]:
    """The columns of the query; an error has the place that PostgreSQL reports."""

    def place_of(exc: psycopg.Error) -> Place | None:
        position = exc.diag.statement_position
        return query.place_of_position(int(position)) if position else None

    with translated("source query", place_of=place_of, known=None):
        # the type of `$1` follows from its context
        return copy_out.prepare(session, query.text, then)


def place_of_missing(query: ReadOnlySql, exc: psycopg.Error) -> Place | None:
    """Where the query names a relation that is missing: the statement that locks it reports no position."""
    message = exc.diag.message_primary or ""
    for schema, name in sorted(query.relations):
        if exc.sqlstate == _UNDEFINED_TABLE and f'"{schema}.{name}"' in message:
            return query.place_of_relation(schema, name)
        if exc.sqlstate == _UNDEFINED_SCHEMA and f'"{schema}"' in message:
            return query.place_of_relation(schema)
    return None
