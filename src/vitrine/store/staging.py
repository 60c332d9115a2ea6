"""The tables in which full loads collect their rows: their names, and their end."""

from psycopg import sql

from vitrine.model import Claim, PipelineId
from vitrine.postgres import Connection, translated
from vitrine.store.database import fetch_all


def name_of(pipeline_id: PipelineId, generation: int) -> str:
    """Where a full load collects its rows, in schema etl."""
    return f"stage_{pipeline_id.hex}_g{generation}"


def exists(connection: Connection, claim: Claim, generation: int) -> bool:
    return bool(fetch_all(connection, "list_staging", pattern=f"^{name_of(claim.pipeline_id, generation)}$"))


def drop_all(connection: Connection, pipeline_id: PipelineId) -> None:
    """Remove what half-built loads of the pipeline left; generations are never numbered twice."""
    for row in fetch_all(connection, "list_staging", pattern=f"^stage_{pipeline_id.hex}_g[0-9]+$"):
        with translated("store"):
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("etl", row["name"])))


def drop_orphans(connection: Connection) -> list[str]:
    """Remove staging tables that no half-built load owns; names of what was removed. Nothing else is touched."""
    names = [row["name"] for row in fetch_all(connection, "list_orphan_staging")]
    for name in names:
        with translated("store"):
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("etl", name)))
    return names
