"""Staging tables, in which loads collect their rows: their names, and the removal of leftovers."""

import re
from uuid import UUID

from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings
from vitrine.flow.jobs import SweepJob
from vitrine.ids import PipelineId
from vitrine.postgres import Connection, connect, translated

SCHEMA = "etl"
_NAME = re.compile(r"stage_([0-9a-f]{32})_g([0-9]+)")


def name_of(pipeline_id: PipelineId, generation: int) -> str:
    return f"stage_{pipeline_id.hex}_g{generation}"


def renamed(text: str, table: str) -> str:
    """The text with the name of the mart's table, where the server has written that of its staging."""
    return _NAME.sub(lambda _: table, text)


def identifier(name: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, name)


def drop(connection: Connection, name: str) -> None:
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(identifier(name)))


def sweep(job: SweepJob[PostgresSettings]) -> list[str]:
    """Remove staging tables of loads that are no longer under construction; returns their names."""
    with connect(job.store_url, name="vitrine:sweep", side="target") as connection, translated("target"):
        rows = connection.execute(
            "SELECT relname::text AS name FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
            "   AND relname ~ '^stage_[0-9a-f]{32}_g[0-9]+$' ORDER BY relname",
            [SCHEMA],
        ).fetchall()
        found = [row["name"] for row in rows]
        in_use = job.open_loads() if found else ()
        leftover = [name for name in found if _load_of(name) not in in_use]
        for name in leftover:
            drop(connection, name)
    return leftover


def _load_of(name: str) -> tuple[PipelineId, int] | None:
    matched = _NAME.fullmatch(name)
    return (PipelineId(UUID(matched[1])), int(matched[2])) if matched else None
