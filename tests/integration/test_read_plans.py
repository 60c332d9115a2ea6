"""Reads of lists, status and runs with 1 000 pipelines and 100 000 runs: few statements, all from indexes."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

from psycopg import sql

from bench import crowd
from tests.helpers.recording import Recorder
from vitrine.core.status import Status
from vitrine.operations import definitions, history, many
from vitrine.operations.bodies.filters import Filters, RunManyBody
from vitrine.operations.context import Caller, Context, Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store.history import register_runner

REQUEST_ID = UUID("00000000-0000-0000-0000-000000000500")


def scans(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if node["Node Type"].endswith("Seq Scan"):
        yield node["Node Type"], node["Relation Name"]
    for inner in node.get("Plans", ()):
        yield from scans(inner)


def explained(connection: Connection, statement: Any, arguments: Any) -> tuple[dict[str, Any], float]:
    text = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) {}").format(sql.SQL(statement))
    row = connection.execute(text, arguments).fetchone()
    assert row is not None
    plan = row["QUERY PLAN"][0]
    return plan["Plan"], plan["Execution Time"]


Read = Callable[[Context], Any]
PIPELINE = "p0500"
# filters without an index of their own: they read every pipeline, but no run of those that are not shown
MAY_SCAN_PIPELINES = frozenset(
    {"by target", "by the beginning of a target", "by tag", "by owner", "that are disabled", "that are stale"}
)
LATE = 3
"""Statements about all late marts that are shown, together: why they are late."""

CAUSES = "-- Of pipelines whose marts are late"
"""Reads pipelines by their ids; PostgreSQL may find a scan of a small table cheaper."""

READS: dict[str, tuple[int, Read]] = {
    "the first page": (1 + LATE, lambda c: definitions.list_page(c)),
    "a page in the middle": (1 + LATE, lambda c: definitions.list_page(c, after="p0500", limit=200)),
    "by status": (1 + LATE, lambda c: definitions.list_page(c, Filters(status=(Status.FAILED,)))),
    "by two statuses": (1 + LATE, lambda c: definitions.list_page(c, Filters(status=(Status.FAILED, Status.PAUSED)))),
    "by a status that none has": (1 + LATE, lambda c: definitions.list_page(c, Filters(status=(Status.PAUSED,)))),
    "by target": (1 + LATE, lambda c: definitions.list_page(c, Filters(target="analytics.t7"))),
    "by the beginning of a target": (1 + LATE, lambda c: definitions.list_page(c, Filters(target="analytics.t7*"))),
    "by tag": (1 + LATE, lambda c: definitions.list_page(c, Filters(tag="team-7"))),
    "by owner": (1 + LATE, lambda c: definitions.list_page(c, Filters(owner="owner-7"))),
    "that failed": (1 + LATE, lambda c: definitions.list_page(c, Filters(failed=True))),
    "by error": (1 + LATE, lambda c: definitions.list_page(c, Filters(error="CONFIG"))),
    "that are disabled": (1 + LATE, lambda c: definitions.list_page(c, Filters(enabled=False))),
    "that are stale": (2 + LATE, lambda c: definitions.list_page(c, Filters(stale=True), limit=200)),
    "many to run": (1, lambda c: many.run_many(c, RunManyBody(status=(Status.FAILED,), dry_run=True))),
    "one pipeline": (1, lambda c: definitions.get(c, PIPELINE)),
    "status": (3 + LATE, lambda c: history.status(c, PIPELINE)),
    "status of one that waits under a limit": (4 + LATE, lambda c: history.status(c, "p0049")),
    "state": (2, lambda c: history.state(c, PIPELINE)),
    "runs": (2, lambda c: history.list_runs(c, PIPELINE, limit=200)),
    "older runs": (2, lambda c: history.list_runs(c, PIPELINE, before=50_000)),
    "one run": (2, lambda c: history.run(c, PIPELINE, history.list_runs(c, PIPELINE, limit=1).items[0].id)),
    "figures": (2, lambda c: history.statistics(c, PIPELINE)),
    "figures of a week": (2, lambda c: history.statistics(c, PIPELINE, newest=1000, days=7)),
    "a request": (3, lambda c: history.request(c, REQUEST_ID)),
    "requests that clients wait for": (1, lambda c: history.open_requests(c, [UUID(int=n) for n in range(20)])),
}


def test_reads_take_few_statements_and_no_scan_of_a_whole_table(connection: Connection, settings: Settings) -> None:
    crowd.fill(connection)
    connection.execute("""UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED', request_id = gen_random_uuid(),
        requested_at = now() WHERE name = 'p0049'""")
    register_runner(connection, "worker-1")
    recorder = Recorder(connection)

    @contextmanager
    def recording() -> Generator[Connection]:
        yield cast(Connection, recorder)

    limited = settings.model_copy(update={"source_connections": {"default": 2}})
    context = Context(limited, Caller("api", "tests", Role.ADMIN), recording)
    problems: list[str] = []
    for name, (most, read) in READS.items():
        recorder.executed.clear()
        read(context)
        executed = list(recorder.executed)
        if name == "one run":
            executed = executed[2:]  # without those that found its id
        if len(executed) > most:
            problems.append(f"{name}: {len(executed)} statements, at most {most}")
        for statement, arguments in executed:
            plan, milliseconds = explained(connection, statement, arguments)
            may_scan = name in MAY_SCAN_PIPELINES or str(statement).startswith(CAUSES)
            refused = {"etl_runs"} if may_scan else {"etl_runs", "etl_pipelines"}
            found = [scan for scan in scans(plan) if scan[1] in refused]
            if found:
                problems.append(f"{name}: {found} in {milliseconds:.1f} ms: {json.dumps(statement)[:100]}")
    assert problems == []
