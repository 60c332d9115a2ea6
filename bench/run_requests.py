"""Runs that a runner executes: requested and observed in the tables of the store, without the code of any tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.database import Database
from bench.waiting import wait_until


class RunFailed(Exception):
    """A run ended with another status than SUCCESS."""


def request(store: Database, names: Sequence[str]) -> None:
    """Request a run of each pipeline, all in one transaction, and wake the runners."""
    with store.connection.transaction():
        requested = store.fetch(
            "UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED', request_id = gen_random_uuid(),"
            " requested_at = now(), requested_trigger = 'api', requested_options = '{}'"
            " WHERE name = ANY(%s) AND status = 'IDLE' RETURNING name",
            [list(names)],
        )
        if len(requested) != len(names):
            raise RunFailed(f"{len(requested)} of {len(names)} pipelines are IDLE; the others cannot be requested")
        store.execute("SELECT pg_notify('vitrine', '')")


def wait_until_idle(store: Database, names: Sequence[str], *, pause: float = 0.01) -> None:
    """RunFailed as soon as a pipeline is FAILED."""

    def idle() -> bool:
        statuses = store.fetch(
            "SELECT status, count(*) AS pipelines FROM etl.etl_pipelines WHERE name = ANY(%s) GROUP BY status",
            [list(names)],
        )
        if any(row["status"] == "FAILED" for row in statuses):
            raise RunFailed(f"a pipeline is FAILED: {_last_error(store)}")
        return [row["status"] for row in statuses] == ["IDLE"]

    wait_until(idle, "all requested pipelines are IDLE", pause=pause)


def newest_run(store: Database) -> int:
    return store.number("SELECT coalesce(max(id), 0) FROM etl.etl_runs")


@dataclass(frozen=True)
class Runs:
    """Runs by the clock of the database."""

    elapsed: float  # from the start of the first to the end of the last
    seconds: list[float]  # of each


def finished_since(store: Database, run_id: int, *, expected: int, rows_read: int) -> Runs:
    """The runs after that one; RunFailed unless there are as many as expected and each read that many rows."""
    rows = store.fetch(
        "SELECT status, rows_read, extract(epoch FROM finished_at - started_at)::float8 AS seconds,"
        "       extract(epoch FROM max(finished_at) OVER () - min(started_at) OVER ())::float8 AS elapsed"
        "  FROM etl.etl_runs WHERE id > %s",
        [run_id],
    )
    if [(row["status"], row["rows_read"]) for row in rows] != [("SUCCESS", rows_read)] * expected:
        raise RunFailed(f"of {expected} runs one failed or did not read {rows_read} rows: {_last_error(store)}")
    return Runs(rows[0]["elapsed"], [row["seconds"] for row in rows])


def _last_error(store: Database) -> str:
    rows = store.fetch(
        "SELECT error_code, error_message FROM etl.etl_runs WHERE error_code IS NOT NULL ORDER BY id DESC LIMIT 1"
    )
    return f"{rows[0]['error_message']} ({rows[0]['error_code']})" if rows else "no run has an error"
