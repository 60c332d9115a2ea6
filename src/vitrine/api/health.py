"""Health checks: the database responds, and a runner is alive."""

from typing import Any

import psycopg
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from vitrine.api.connections import StorePool
from vitrine.errors import VitrineError
from vitrine.store import runs

WAIT_SECONDS = 2.0  # shorter than the usual timeout of a probe

router = APIRouter(tags=["health"])


class Live(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: str = "ok"


class Health(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "ok", "database": "ok", "runners": 1, "detail": None}]}
    )

    status: str = Field(description="ok, or unavailable.")
    database: str = Field(description="ok, or down.")
    runners: int = Field(description="Runner processes seen within the last 15 seconds.")
    detail: str | None = Field(default=None, description="What is wrong, and how to fix it.")


_UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {
        "model": Health,
        "description": "The database does not respond, or no runner is alive",
        "content": {
            "application/json": {
                "example": {
                    "status": "unavailable",
                    "database": "down",
                    "runners": 0,
                    "detail": "the database does not respond",
                }
            }
        },
    }
}


@router.get("/health", summary="Check the database and the runners", responses=_UNAVAILABLE)
def get_health(pool: StorePool, response: Response) -> Health:
    """Reports whether the database responds and how many runners are alive; 503 if either is missing."""
    health = _check(pool)
    if health.status != "ok":
        response.status_code = 503
    return health


@router.get("/health/live", summary="Check the API process")
def get_live() -> Live:
    """Checks neither the database nor the runners. For a supervisor that restarts dead processes."""
    return Live()


def _check(pool: StorePool) -> Health:
    try:
        with pool.connection(WAIT_SECONDS) as connection:
            alive = runs.count_live_runners(connection)
    except psycopg.OperationalError:
        return Health(status="unavailable", database="down", runners=0, detail="the database does not respond")
    except VitrineError as exc:
        return Health(status="unavailable", database="down", runners=0, detail=str(exc))
    if alive == 0:
        seconds = int(runs.RUNNER_SEEN_WITHIN.total_seconds())
        detail = f"no runner was active in the last {seconds} seconds; start one with `vitrine runner`"
        return Health(status="unavailable", database="ok", runners=0, detail=detail)
    return Health(status="ok", database="ok", runners=alive)
