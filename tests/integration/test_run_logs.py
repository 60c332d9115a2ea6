"""The last log lines of each run are kept with it."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.events import create_filled
from tests.helpers.running import create, run, succeed
from tests.helpers.tasks import register
from vitrine.core.status import RunId
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.logs import OURS, Redactor
from vitrine.postgres import Connection
from vitrine.runner import run as run_log
from vitrine.runner.run import RunLogKeeper
from vitrine.settings import Settings
from vitrine.store import history
from vitrine.store.database import Link


@pytest.fixture(autouse=True)
def _lines_are_made() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """As `configure_logging` sets it for every level."""
    logger = logging.getLogger(OURS)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


def lines(connection: Connection, pipeline: Pipeline) -> list[dict[str, Any]]:
    (newest, *_) = history.list_runs(connection, pipeline.id)
    return [dict(line) for line in history.load_log(connection, newest.id).lines]


def actions(connection: Connection, pipeline: Pipeline) -> list[str]:
    return [line["action"] for line in lines(connection, pipeline)]


def test_a_run_of_few_batches_has_the_start_and_the_end_of_each(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 250)
    succeed(connection, settings, pipeline)
    batch = ["batch_started", "batch_written"]
    assert actions(connection, pipeline) == ["run_started", *batch, *batch, *batch, "run_ended"]
    written = [line["fields"] for line in lines(connection, pipeline) if line["action"] == "batch_written"]
    assert [(one["batch"], one["rows_read"]) for one in written] == [(1, 100), (2, 100), (3, 50)]


@pytest.mark.parametrize(("log_batches", "expected"), [(0, 0), (2, 2), (20, 6)])
def test_a_setting_limits_how_many_batches_are_logged_in_full(
    connection: Connection, settings: Settings, log_batches: int, expected: int
) -> None:
    pipeline = create_filled(connection, settings, "incremental", 60, batch_size=10)
    succeed(connection, settings.model_copy(update={"log_batches": log_batches}), pipeline)
    kept = actions(connection, pipeline)
    assert (kept.count("batch_started"), kept.count("batch_written")) == (expected, expected)


def test_a_failure_is_in_the_log_with_file_and_line_and_without_values(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"note": int(row["note"])} for row in rows]

    register(monkeypatch, Task("broken", Kind.ROW, broken, None))
    pipeline = create_filled(connection, settings, "incremental", 5, python_task="broken")
    connection.execute("UPDATE ugc.events SET note = 'S3CR3T' WHERE id = 3")
    executed = run(connection, settings, pipeline)
    place = f"{__name__.replace('.', '/')}.py:{broken.__code__.co_firstlineno + 1}"
    assert f"raised ValueError in {place} at key 3 of a batch" in str(executed.error)
    (last,) = [line for line in lines(connection, pipeline) if line["action"] == "run_failed"]
    assert (last["level"], last["fields"]["code"]) == ("error", "TRANSFORM_ERROR")
    assert place in last["text"]
    assert "S3CR3T" not in str(lines(connection, pipeline)) + str(executed.error)


def keeper() -> RunLogKeeper:
    return RunLogKeeper(RunId(1), Redactor(["very-secret-word"]))


def kept_by(made: RunLogKeeper) -> list[dict[str, Any]]:
    return [line for line, _ in vars(made)["_lines"]]


def test_only_the_lines_of_the_run_are_kept_and_not_after_its_end() -> None:
    log = logging.getLogger("vitrine.tests")
    made = keeper()
    with made:
        log.info("mine", extra={"run_id": 1, "action": "mine", "rows_read": 3})
        log.info("another's", extra={"run_id": 2})
        log.debug("too fine", extra={"run_id": 1})
    log.info("too late", extra={"run_id": 1})
    (line,) = kept_by(made)
    assert (line["text"], line["action"], line["fields"]) == ("mine", "mine", {"rows_read": 3})


@pytest.mark.parametrize(
    ("text", "count"),
    [("x", 500), ("x" * 3000, 500), ("ж" * 3000, 500), ("x" * 1_000_000, 20)],
    ids=["short", "long", "two bytes a character", "huge"],
)
def test_lines_are_bounded_in_number_and_size(text: str, count: int) -> None:
    log = logging.getLogger("vitrine.tests")
    made = keeper()
    with made:
        for number in range(count):
            log.info("%s", text, extra={"run_id": 1, "number": number})
    kept = kept_by(made)
    assert 0 < len(kept) <= run_log.MAX_LINES
    assert vars(made)["_size"] <= run_log.MAX_BYTES
    assert kept[-1]["fields"]["number"] == count - 1
    assert len(kept) + vars(made)["_dropped"] == count


def test_a_line_has_no_secret_and_nothing_that_the_store_cannot_hold(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "incremental", 5)
    succeed(connection, settings, pipeline)
    (newest, *_) = history.list_runs(connection, pipeline.id)
    made = RunLogKeeper(newest.id, Redactor(["very-secret-word"]))
    with made, Link(settings.store_url, name="tests") as store:
        extra = {"run_id": newest.id, "odd": float("nan"), "half": "\ud800", "thing": object(), "n": "very-secret-word"}
        logging.getLogger("vitrine.tests").info("postgresql://u:pw@h/d NUL \0 very-secret-word", extra=extra)
        made.save(store)
    (line,) = lines(connection, pipeline)
    assert line["text"] == "postgresql://h/d NUL  ***"
    assert (line["fields"]["n"], line["fields"]["odd"]) == ("***", "nan")


def test_a_store_that_cannot_keep_the_lines_does_not_fail_the_run(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 5)
    connection.execute("DROP TABLE etl.etl_run_logs")
    assert succeed(connection, settings, pipeline).counts.written == 5


def test_lines_are_deleted_with_their_run(connection: Connection, settings: Settings) -> None:
    pipeline = create_filled(connection, settings, "incremental", 5)
    for _ in range(4):
        succeed(connection, settings, pipeline)
    history.prune_runs(connection, max_age=timedelta(days=1), max_runs=2)
    stored = connection.execute("SELECT run_id FROM etl.etl_run_logs").fetchall()
    assert {row["run_id"] for row in stored} == {one.id for one in history.list_runs(connection, pipeline.id)}


def test_a_long_run_stores_its_lines_from_time_to_time(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "SAVE_SECONDS", 0.0)
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, title, modified FROM content.film_work",
        target_table="analytics.films",
        key_columns=["id"],
        batch_size=10,
    )
    seen: list[int] = []
    executed = run(connection, settings, pipeline, watch=lambda counts, expected: seen.append(stored_lines(connection)))
    assert executed.error is None
    assert max(seen) > 2


def stored_lines(connection: Connection) -> int:
    row = connection.execute("SELECT coalesce(max(jsonb_array_length(lines)), 0) AS n FROM etl.etl_run_logs").fetchone()
    assert row is not None
    return row["n"]
