"""Routes of health: the database, the runners and the API process."""

from datetime import timedelta
from typing import Any

import psycopg
from fastapi import APIRouter, Response

from vitrine.api.bodies import Health, Live
from vitrine.api.connections import StorePool
from vitrine.errors import VitrineError
from vitrine.store import runs

RUNNER_SEEN_WITHIN = timedelta(seconds=15)
WAIT_SECONDS = 2.0  # less than what probes usually wait

router = APIRouter(tags=["health"])

_UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {
        "model": Health,
        "description": "The database does not answer, or no runner is alive",
        "content": {
            "application/json": {
                "example": {
                    "status": "unavailable",
                    "database": "down",
                    "runners": 0,
                    "detail": "the database does not answer",
                }
            }
        },
    }
}


@router.get("/health", summary="Check the database and the runners", responses=_UNAVAILABLE)
def tell_health(pool: StorePool, response: Response) -> Health:
    """Reports whether the database answers and how many runners are alive; 503 when the database does not answer or no
    runner is alive."""
    health = _examine(pool)
    if health.status != "ok":
        response.status_code = 503
    return health


@router.get("/health/live", summary="Check the API process")
def tell_live() -> Live:
    """Checks neither the database nor the runners. For a supervisor that restarts dead processes."""
    return Live()


def _examine(pool: StorePool) -> Health:
    try:
        with pool.connection(WAIT_SECONDS) as connection:
            alive = runs.count_live_runners(connection, RUNNER_SEEN_WITHIN)
    except psycopg.OperationalError:
        return Health(status="unavailable", database="down", runners=0, detail="the database does not answer")
    except VitrineError as exc:
        return Health(status="unavailable", database="down", runners=0, detail=str(exc))
    if alive == 0:
        seconds = int(RUNNER_SEEN_WITHIN.total_seconds())
        detail = f"no runner has been seen for {seconds} seconds; start one with `vitrine runner`"
        return Health(status="unavailable", database="ok", runners=0, detail=detail)
    return Health(status="ok", database="ok", runners=alive)
