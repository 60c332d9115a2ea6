"""Health checks and metrics, from the store."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field

from vitrine import explain
from vitrine.api.connections import Pool, Service, StorePool
from vitrine.core.status import PipelineId, Status
from vitrine.errors import VitrineError
from vitrine.explain import Lateness
from vitrine.settings import Settings
from vitrine.store import filters, history, pipelines

WAIT_SECONDS = 2.0  # shorter than the usual timeout of a probe

health_router = APIRouter(tags=["health"])


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


@health_router.get("/health", summary="Check the database and the runners", responses=_UNAVAILABLE)
def get_health(pool: StorePool, response: Response) -> Health:
    """Reports whether the database responds and how many runners are alive; 503 if either is missing."""
    health = _check(pool)
    if health.status != "ok":
        response.status_code = 503
    return health


@health_router.get("/health/live", summary="Check the API process")
def get_live() -> Live:
    """Checks neither the database nor the runners. For a supervisor that restarts dead processes."""
    return Live()


def _check(pool: StorePool) -> Health:
    try:
        with pool.connection(WAIT_SECONDS) as connection:
            alive = history.count_live_runners(connection)
    except psycopg.OperationalError:
        return Health(status="unavailable", database="down", runners=0, detail="the database does not respond")
    except VitrineError as exc:
        return Health(status="unavailable", database="down", runners=0, detail=str(exc))
    if alive == 0:
        seconds = int(history.RUNNER_SEEN_WITHIN.total_seconds())
        detail = f"no runner was active in the last {seconds} seconds; start one with `vitrine runner`"
        return Health(status="unavailable", database="ok", runners=0, detail=detail)
    return Health(status="ok", database="ok", runners=alive)


metrics_router = APIRouter(tags=["metrics"])

_STORE_UP = "1 while the database responds, 0 otherwise."


@metrics_router.get("/metrics", include_in_schema=False)
def get_metrics(pool: StorePool, context: Service) -> Response:
    """Queries the store at every scrape, so that a deleted pipeline leaves no metrics."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(StoreCollector(pool, context.settings))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class StoreCollector(Collector):
    """Gauges from a few statements of the store; only store_up while the database is unavailable."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings

    def collect(self) -> Iterable[Metric]:
        try:
            with self._pool.connection(WAIT_SECONDS) as connection:
                stale_crons = filters.list_stale_crons(connection, self._settings.zone)
                watched = pipelines.list_metrics(connection, stale_crons)
                alive = history.count_live_runners(connection)
                stale = [row["id"] for row in watched if row["stale"]]
                late = explain.late_causes_of(connection, self._settings, stale)
        except (psycopg.OperationalError, VitrineError):
            return [_gauge("store_up", _STORE_UP, 0)]
        return [
            _gauge("store_up", _STORE_UP, 1),
            _gauge("runners", "Runner processes seen within the last 15 seconds.", alive),
            *_totals(watched),
            *_by_pipeline(watched),
            _last_errors(watched),
            _late(watched, late),
        ]


def _totals(watched: Sequence[dict[str, Any]]) -> Iterable[Metric]:
    waiting = [row["waiting"] for row in watched if row["waiting"] is not None]
    yield _gauge("queue_length", "Pipelines that wait for a runner.", len(waiting))
    yield _gauge("queue_wait_seconds", "Longest time that one of them has waited.", max(waiting, default=0))
    counted = Counter(row["status"] for row in watched)
    by_status = GaugeMetricFamily("vitrine_pipelines", "Pipelines by their status.", labels=["status"])
    for status in Status:
        by_status.add_metric([status], counted[status])
    yield by_status


def _by_pipeline(watched: Sequence[dict[str, Any]]) -> Iterable[Metric]:
    for name, description, field in (
        ("mart_age_seconds", "Age of the source snapshot that the mart shows, of enabled pipelines.", "mart_age"),
        ("mart_stale", "1 while the mart is older than its freshness or its schedule allows.", "stale"),
        ("schedule_interval_seconds", "Interval between due times, of pipelines with an interval.", "schedule"),
        ("heartbeat_age_seconds", "Time since the last heartbeat of the runner that holds the lease.", "heartbeat_age"),
        ("horizon_lag_seconds", "Age of the transaction that held back the checkpoint in the last run.", "horizon_lag"),
        ("verified_age_seconds", "Time since which the mart is not proven equal to its source.", "verified_age"),
        ("mart_differs", "1 if the last deep reconcile found a difference, 0 if none.", "differs"),
        ("pipeline_failed", "1 while the pipeline is FAILED.", "failed"),
        ("pipeline_postponed", "Scheduled runs in a row that were postponed; 0 after a success.", "postponed"),
    ):
        family = GaugeMetricFamily(f"vitrine_{name}", description, labels=["pipeline"])
        for row in watched:
            value = _value(row, field)
            if value is not None:
                family.add_metric([row["name"]], value)
        yield family


def _last_errors(watched: Sequence[dict[str, Any]]) -> Metric:
    description = "1 while the last run of the pipeline failed with this code."
    family = GaugeMetricFamily("vitrine_pipeline_last_error", description, labels=["pipeline", "code"])
    for row in watched:
        if row["last_error_code"] is not None:
            family.add_metric([row["name"], row["last_error_code"]], 1)
    return family


def _late(watched: Sequence[dict[str, Any]], late: Mapping[PipelineId, Lateness]) -> Metric:
    description = "1 while the mart is older than its freshness or its schedule allows, for this cause."
    family = GaugeMetricFamily("vitrine_mart_late", description, labels=["pipeline", "cause"])
    for row in watched:
        if (found := late.get(row["id"])) is not None:
            family.add_metric([row["name"], found.cause], 1)
    return family


def _value(row: dict[str, Any], field: str) -> float | None:
    if field == "failed":
        return float(row["status"] == Status.FAILED)
    # a disabled pipeline does not run, so its age must raise no alert
    return None if field in ("mart_age", "schedule", "stale") and not row["enabled"] else row[field]


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(f"vitrine_{name}", description, value=value)
