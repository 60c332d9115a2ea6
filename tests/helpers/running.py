"""Runs pipelines in this process and checks that a mart equals its query."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from psycopg import sql

from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts
from vitrine.core.status import RequestKind, RunOptions
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes
from vitrine.postgres import Connection
from vitrine.runner import worker
from vitrine.runner.control import Watch
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state

AT_ONCE = (timedelta(0), timedelta(0))


def create(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    """Create a pipeline, with defaults for the fields that the test does not set."""
    return changes.create(connection, settings, Definition.model_validate({"name": "under_test", **fields}))


def allowing(settings: Settings, *relations: str) -> Settings:
    """Settings that allow these relations with everything behind them."""
    return settings.model_copy(update={"connectors": {"postgres": {"allowed_relations": relations}}})


def run(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    *,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    allow_shrink: bool = False,
    waits: Sequence[float] = (),
    resume: bool = False,
    retry: bool = False,
    full: bool = False,
    kind: RequestKind = RequestKind.RUN,
    options: RunOptions | None = None,
) -> Executed:
    """Runs the pipeline once; transient errors are retried after these waits, never without any.

    With `resume` an earlier request continues; otherwise a load that began before is followed by another. With `retry`
    a failed request stays in the queue. With `full` the request is for a full run, with `kind` for another kind.
    """
    kind, options = RequestKind.FULL if full else kind, options or RunOptions(allow_shrink=allow_shrink)
    pipelines.request_run(connection, pipeline.id, trigger="cli", kind=kind, options=options, resume=resume)
    claim = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl, only=pipeline.id)
    assert claim is not None
    executor = PipelineExecutor(settings, stop or threading.Event(), waits=waits)
    dispatcher = PipelineDispatcher(settings, executor, delays=AT_ONCE)
    executed, _ = dispatcher.dispatch(claim, watch=watch, retry=retry)
    return executed


def run_one_batch(connection: Connection, settings: Settings, pipeline: Pipeline) -> Executed:
    """Runs until the first batch is written, then stops; the run is released."""
    stop = threading.Event()

    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read:
            stop.set()

    executed = run(connection, settings, pipeline, stop=stop, watch=watch)
    assert (executed.outcome, executed.batches) == (Outcome.RELEASED, 1), executed
    return executed


def succeed(connection: Connection, settings: Settings, pipeline: Pipeline, **options: Any) -> Executed:
    executed = run(connection, settings, pipeline, **options)
    assert executed.error is None, executed.error
    return executed


def once_read(rows: int, action: Callable[[], object]) -> Callable[[Counts, int | None], None]:
    """A watch that calls the action once, when this many rows have been read."""
    waiting = [action]

    def watch(counts: Counts, expected: int | None) -> None:
        if counts.read >= rows and waiting:
            waiting.pop()()

    return watch


def differences(connection: Connection, query: str, target: str, key: str) -> list[dict[str, Any]]:
    """Rows that are missing, extra or different in the target; empty when it equals the query."""
    schema, table = target.split(".")
    statement = sql.SQL(
        "SELECT coalesce(s.{key}, t.{key})::text AS key, s IS NULL AS extra, t IS NULL AS missing"
        "  FROM ({query}) AS s FULL JOIN (SELECT {columns} FROM {target}) AS t USING ({key})"
        " WHERE s IS NULL OR t IS NULL OR s::record OPERATOR(pg_catalog.*<>) t::record"
    ).format(
        key=sql.Identifier(key),
        query=sql.SQL(query),  # pyright: ignore[reportArgumentType]
        columns=sql.SQL(", ").join(map(sql.Identifier, _columns(connection, query))),
        target=sql.Identifier(schema, table),
    )
    return connection.execute(statement).fetchall()


def _columns(connection: Connection, query: str) -> list[str]:
    cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(query)))  # pyright: ignore[reportArgumentType]
    return [column.name for column in cursor.description or ()]


def sweep(connection: Connection, settings: Settings) -> list[str]:
    """What a runner's maintenance removes from the targets."""
    installation = history.installation_id(connection)
    return list(worker.sweep_sinks(settings, installation, lambda: state.known_generations(connection)))
