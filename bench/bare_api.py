"""The least that an API can do: FastAPI routes that execute the statements of a read and return their rows.

`python -m bench.bare_api URL PORT`. Neither service functions nor models, limits or problem responses.
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from vitrine.store.database import statement
from vitrine.store.filters import Selection

EVERY: dict[str, Any] = dict.fromkeys((one.name for one in fields(Selection)), None) | {
    "target_prefix": None,
    "stale_crons": [],
}
NEWEST = 2**63 - 1


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Bytes as text: a digest is no UTF-8, which FastAPI would take it for."""
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


def create_app(url: str) -> FastAPI:
    pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
        url,
        kwargs={"autocommit": True, "prepare_threshold": None, "row_factory": dict_row},
        min_size=1,
        max_size=8,
        open=False,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        with pool:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/pipelines")
    def list_pipelines() -> Any:
        with pool.connection() as connection:
            rows = connection.execute(statement("list_selected"), {**EVERY, "after": "", "limit": 51}).fetchall()
            return [plain(row) for row in rows]

    @app.get("/pipelines/{name}/status")
    def get_status(name: str) -> Any:
        with pool.connection() as connection:
            pipeline = connection.execute(statement("get_pipeline"), {"id": None, "name": name}).fetchone()
            newest = {"id": pipeline["id"], "before": NEWEST, "limit": 1} if pipeline else {}
            return {
                "pipeline": pipeline and plain(pipeline),
                "runs": connection.execute(statement("list_runs"), newest).fetchall(),
                "runners": connection.execute(
                    statement("count_live_runners"), {"within": timedelta(seconds=15)}
                ).fetchone(),
            }

    @app.get("/pipelines/{name}/runs")
    def list_runs(name: str) -> Any:
        with pool.connection() as connection:
            pipeline = connection.execute(statement("get_pipeline"), {"id": None, "name": name}).fetchone()
            page = {"id": pipeline["id"], "before": NEWEST, "limit": 51} if pipeline else {}
            return connection.execute(statement("list_runs"), page).fetchall()

    @app.get("/health")
    def get_health() -> dict[str, str]:
        return {}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
