"""Going back to the previous generation: with a target that keeps it, and with PostgreSQL, which does not."""

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers import plugins
from tests.helpers.forked import forked
from tests.helpers.memory_case import MemoryDocuments
from tests.helpers.running import AT_ONCE, create, run_one_batch, succeed, sweep
from vitrine.api.app import create_app
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Entry, KeptGeneration, Position, Step, Written
from vitrine.core.status import Event, RequestKind, RunStatus, Status
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.errors import LeaseLost, RequestRefused, TransitionRefused
from vitrine.operations import changes
from vitrine.postgres import Connection
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, schedules
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.state import Restorable, known_generations, load_generation, load_state

TARGET = "mem:genres"


@pytest.fixture(scope="module", autouse=True)
def _memory_connector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    folder = plugins.install(plugins.MEMORY_CONNECTOR, tmp_path_factory.mktemp("installed"))
    with plugins.installed(folder):
        yield


@pytest.fixture
def documents(tmp_path: Path) -> MemoryDocuments:
    folder = tmp_path / "documents"
    folder.mkdir()
    return MemoryDocuments(folder)


@pytest.fixture
def keeping(settings: Settings, documents: MemoryDocuments) -> Settings:
    """Settings with a target that keeps the previous generation."""
    return settings.model_copy(update={"connectors": {"memory": {"path": str(documents.folder)}}})


@pytest.fixture
def genres(connection: Connection, keeping: Settings) -> Pipeline:
    return create(
        connection,
        keeping,
        source_query="SELECT id, name FROM content.genre",
        target_table=TARGET,
        key_columns=["id"],
        batch_size=5,
    )


def rename(connection: Connection, text: str) -> None:
    connection.execute("UPDATE content.genre SET name = left(name, 20) || %s", [text])


def names(documents: MemoryDocuments) -> set[str | None]:
    return {row["name"] for row in documents.rows(TARGET).values()}


def published(connection: Connection, settings: Settings, pipeline: Pipeline, texts: str) -> list[datetime]:
    """One generation for each letter; when each of them was fresh."""
    fresh: list[datetime] = []
    for text in texts:
        rename(connection, f"-{text}")
        succeed(connection, settings, pipeline)
        moment = pipelines.get(connection, pipeline.id).fresh_as_of
        assert moment is not None
        fresh.append(moment)
    return fresh


def shows(documents: MemoryDocuments) -> str:
    """The letter of the generation that readers see."""
    (letter,) = {str(name)[-1] for name in names(documents)}
    return letter


def take_rollback(connection: Connection, pipeline: Pipeline, ttl: timedelta) -> Claim:
    pipelines.request_run(connection, pipeline.id, trigger="api", kind=RequestKind.ROLLBACK)
    return take(connection, pipeline, ttl)


def take(connection: Connection, pipeline: Pipeline, ttl: timedelta) -> Claim:
    claim = queue.claim_next(connection, runner="tests", ttl=ttl, only=pipeline.id)
    assert claim is not None
    return claim


def dispatch(settings: Settings, claim: Claim) -> tuple[Executed, Status | None]:
    executor = PipelineExecutor(settings, threading.Event(), waits=())
    return PipelineDispatcher(settings, executor, delays=AT_ONCE).dispatch(claim, retry=False)


def roll_back(connection: Connection, settings: Settings, pipeline: Pipeline) -> Executed:
    return dispatch(settings, take_rollback(connection, pipeline, settings.lease_ttl))[0]


def live(connection: Connection, pipeline: Pipeline) -> int | None:
    found = load_generation(connection, pipeline.id).live
    return found.number if found else None


@pytest.mark.promise("D21")
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED, Status.FAILED])
def test_the_previous_generation_is_visible_again_as_fresh_as_it_was_and_the_pipeline_is_paused(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments, status: Status
) -> None:
    _, second, _ = published(connection, keeping, genres, "abc")
    if status is Status.PAUSED:
        pipelines.request_pause(connection, genres.id)
    if status is Status.FAILED:
        pipelines.request_run(connection, genres.id, trigger="api")
        queue.end_run(connection, take(connection, genres, keeping.lease_ttl), Event.FAIL, RunStatus.FAILED)
    executed = roll_back(connection, keeping, genres)
    assert (executed.outcome, executed.error) == (Outcome.FINISHED, None)
    assert shows(documents) == "b"
    pipeline = pipelines.get(connection, genres.id)
    assert (pipeline.status, pipeline.fresh_as_of) == (Status.PAUSED, second)
    assert live(connection, genres) == 2
    newest = history.list_runs(connection, genres.id, limit=1)[0]
    assert (newest.kind, newest.status, newest.error_code) == ("rollback", RunStatus.SUCCESS, None)


def test_the_source_need_not_be_reachable(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    connection.execute("DROP TABLE content.genre CASCADE")
    unreachable = keeping.model_copy(update={"source_connections": {}})
    assert roll_back(connection, unreachable, genres).error is None
    assert shows(documents) == "a"


@pytest.mark.promise("D21")
def test_after_a_rollback_and_a_new_load_the_way_back_leads_to_what_was_restored(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    assert roll_back(connection, keeping, genres).error is None
    published(connection, keeping, genres, "c")
    assert roll_back(connection, keeping, genres).error is None
    assert shows(documents) == "a"  # and not b, which was removed on purpose


def test_a_second_rollback_finds_nothing_where_the_target_keeps_one_generation(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "abc")
    assert roll_back(connection, keeping, genres).error is None
    refused = roll_back(connection, keeping, genres).error
    assert isinstance(refused, RequestRefused)
    assert refused.code == "NOTHING_TO_ROLL_BACK"
    assert "mem:genres does not keep generation 1" in str(refused)
    assert shows(documents) == "b"
    assert pipelines.get(connection, genres.id).status is Status.PAUSED


def test_a_rollback_of_a_running_pipeline_follows_its_run(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    rename(connection, "-c")
    pipelines.request_run(connection, genres.id, trigger="api")
    running = take(connection, genres, keeping.lease_ttl)
    status, asked = pipelines.request_run(connection, genres.id, trigger="api", kind=RequestKind.ROLLBACK)
    assert (status, history.get_request(connection, asked).state) == (Status.RUNNING, "pending")
    assert dispatch(keeping, running)[1] is Status.RUN_REQUESTED
    assert shows(documents) == "c"
    assert dispatch(keeping, take(connection, genres, keeping.lease_ttl))[1] is Status.PAUSED
    assert (shows(documents), history.get_request(connection, asked).state) == ("b", "succeeded")


def test_a_schedule_does_not_replace_what_was_restored(
    connection: Connection, keeping: Settings, genres: Pipeline
) -> None:
    published(connection, keeping, genres, "ab")
    changes.change(connection, keeping, genres.id, {"schedule_interval": "1m"})
    roll_back(connection, keeping, genres)
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now()")
    assert schedules.fire_schedules(connection) == []
    assert pipelines.get(connection, genres.id).status is Status.PAUSED


@pytest.mark.promise("I15")
@pytest.mark.parametrize("point", ["before_checkpoint", "after_swap", "before_finish"])
def test_a_process_killed_at_any_point_of_a_rollback_goes_back_one_generation_and_not_two(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments, point: str
) -> None:
    published(connection, keeping, genres, "abc")
    claim = take_rollback(connection, genres, keeping.lease_ttl)
    with forked(lambda: dispatch(keeping, claim)[1], f"{point}=kill") as child:
        assert child.ended() == -9
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
    assert len(queue.expire_leases(connection)) == 1
    again = take(connection, genres, keeping.lease_ttl)
    assert (again.kind, again.request_id) == (RequestKind.ROLLBACK, claim.request_id)
    executed, status = dispatch(keeping, again)
    assert (executed.outcome, status) == (Outcome.FINISHED, Status.PAUSED)
    assert (shows(documents), live(connection, genres)) == ("b", 2)


@pytest.mark.promise("I15")
def test_a_runner_that_lost_its_lease_cannot_restore(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    claim = take_rollback(connection, genres, keeping.lease_ttl)
    with forked(lambda: dispatch(keeping, claim)[1], "before_checkpoint=stop") as late:
        late.stopped()  # after the publish, before the save
        connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
        queue.expire_leases(connection)
        dispatch(keeping, take(connection, genres, keeping.lease_ttl))
        published(connection, keeping, genres, "c")
        late.wake()
        assert late.answer() is None
    assert (shows(documents), live(connection, genres)) == ("c", 3)


def test_a_load_that_was_published_and_not_saved_is_what_a_rollback_removes(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    first = published(connection, keeping, genres, "ab")
    rename(connection, "-c")
    pipelines.request_run(connection, genres.id, trigger="api")
    claim = take(connection, genres, keeping.lease_ttl)
    stored = len(documents.rows(TARGET))
    saves = -(-stored // 5) + 1  # one for each batch, and one for the publish
    with forked(lambda: dispatch(keeping, claim)[1], f"before_checkpoint=kill@{saves}") as child:
        assert child.ended() == -9
    assert (shows(documents), live(connection, genres)) == ("c", 2)
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
    queue.expire_leases(connection)
    pipelines.request_pause(connection, genres.id)
    assert roll_back(connection, keeping, genres).error is None
    assert (shows(documents), live(connection, genres)) == ("b", 2)
    assert pipelines.get(connection, genres.id).fresh_as_of == first[1]
    assert not load_state(connection, genres.id).generation_open


def test_a_load_under_construction_is_discarded(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    rename(connection, "-c")
    run_one_batch(connection, keeping, genres)
    assert load_state(connection, genres.id).generation_open
    pipelines.request_pause(connection, genres.id)
    assert roll_back(connection, keeping, genres).error is None
    assert (shows(documents), load_state(connection, genres.id).generation_open) == ("a", False)
    assert sweep(connection, keeping) == []
    pipelines.request_run(connection, genres.id, trigger="api", resume=True)
    assert dispatch(keeping, take(connection, genres, keeping.lease_ttl))[0].error is None
    assert shows(documents) == "c"


# -- the stored state -------------------------------------------------------------------------------------------------


@pytest.mark.promise("D21")
def test_the_checkpoint_of_a_generation_is_the_one_it_had_when_it_was_last_live(
    connection: Connection, settings: Settings, database_url: str, genres: Pipeline
) -> None:
    claim = take_rollback(connection, genres, settings.lease_ttl)
    with Link(database_url, name="tests") as store:
        checkpoint = StoreCheckpoint(claim, store)
        checkpoint.open("modified date, id uuid")

        def publish(cursor: str, **facts: int) -> None:
            checkpoint.open_generation("query", None)
            written = Written(identity=f"index {cursor}", facts=facts)
            checkpoint.save(Entry(Step.PUBLISHED, position=Position((cursor,)), written=written), None)

        publish("1", offset=1)
        moved = Entry(Step.CHECKPOINT, position=Position(("5",), ("6",)), written=Written(facts={"offset": 5}))
        checkpoint.save(moved, None)
        publish("9", offset=9)
        kept = load_generation(connection, genres.id).previous
        assert kept == KeptGeneration(
            1, 0, "query", Position(("5",), ("6",)), "modified date, id uuid", "index 1", {"offset": 5}
        )
        assert kept is not None
        checkpoint.save(Entry(Step.RESTORED, restored=kept), None)
    state = load_state(connection, genres.id)
    assert (state.position, state.cursor_types) == (kept.position, kept.cursor_types)
    assert (state.identity, state.facts) == ("index 1", {"offset": 5})
    assert live(connection, genres) == 1


@pytest.mark.promise("I15")
def test_a_zombie_can_store_no_restored_generation(
    connection: Connection, keeping: Settings, database_url: str, genres: Pipeline
) -> None:
    published(connection, keeping, genres, "ab")
    kept = load_generation(connection, genres.id).previous
    claim = take_rollback(connection, genres, keeping.lease_ttl)
    with Link(database_url, name="tests") as store:
        checkpoint = StoreCheckpoint(claim, store)
        checkpoint.open("")
        connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
        queue.expire_leases(connection)
        with pytest.raises(LeaseLost):
            checkpoint.save(Entry(Step.RESTORED, restored=kept), None)
    assert live(connection, genres) == 2


def test_ten_generations_are_remembered_and_the_way_back_is_among_them(
    connection: Connection, keeping: Settings, genres: Pipeline
) -> None:
    published(connection, keeping, genres, "abcdefghijkl")
    stored = connection.execute("SELECT generation FROM etl.etl_generations ORDER BY 1").fetchall()
    assert [row["generation"] for row in stored] == list(range(3, 13))
    found = load_generation(connection, genres.id)
    assert (found.live and found.live.number, found.previous and found.previous.number) == (12, 11)


def test_another_query_or_a_reset_keeps_the_way_back(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "a")
    query = "SELECT id, name || '-z' AS name FROM content.genre"
    changes.change(connection, keeping, genres.id, {"source_query": query}, state="reset")
    succeed(connection, keeping, pipelines.get(connection, genres.id))
    assert shows(documents) == "z"
    assert roll_back(connection, keeping, genres).error is None
    assert shows(documents) == "a"


@pytest.mark.parametrize("change", [{"target_table": "mem:others"}, {"key_columns": ["id", "name"]}])
def test_another_target_or_key_forgets_the_generations(
    connection: Connection, keeping: Settings, genres: Pipeline, change: dict[str, Any]
) -> None:
    published(connection, keeping, genres, "ab")
    changes.change(connection, keeping, genres.id, change, state="reset")
    assert load_generation(connection, genres.id) == Restorable()


def test_a_deleted_pipeline_leaves_no_generation(connection: Connection, keeping: Settings, genres: Pipeline) -> None:
    published(connection, keeping, genres, "ab")
    pipelines.delete(connection, genres.id)
    assert connection.execute("SELECT FROM etl.etl_generations").fetchall() == []


def test_a_generation_that_can_be_restored_is_not_swept(
    connection: Connection, keeping: Settings, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    assert sweep(connection, keeping) == []
    assert {(genres.id, 1), (genres.id, 2)} == known_generations(connection)


# -- targets that keep nothing ----------------------------------------------------------------------------------------


@pytest.fixture
def mart(connection: Connection, settings: Settings) -> Pipeline:
    return create(
        connection,
        settings,
        name="mart",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.mart",
        key_columns=["id"],
    )


@pytest.mark.promise("D21")
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED, Status.FAILED])
def test_a_postgresql_mart_is_refused_by_the_runner_and_nothing_changes(
    connection: Connection, settings: Settings, mart: Pipeline, status: Status
) -> None:
    published(connection, settings, mart, "ab")
    if status is Status.PAUSED:
        pipelines.request_pause(connection, mart.id)
    if status is Status.FAILED:
        pipelines.request_run(connection, mart.id, trigger="api")
        queue.end_run(connection, take(connection, mart, settings.lease_ttl), Event.FAIL, RunStatus.FAILED)
    before = pipelines.get(connection, mart.id), load_state(connection, mart.id)
    error = roll_back(connection, settings, mart).error
    assert isinstance(error, RequestRefused)
    assert str(error) == (
        "analytics.mart does not keep generation 1, which was live before: there is nothing to go back to; correct the"
        " pipeline and run it again"
    )
    now = pipelines.get(connection, mart.id)
    assert (now.status, now.request_id, now.fresh_as_of) == (status, None, before[0].fresh_as_of)
    assert load_state(connection, mart.id).position == before[1].position
    newest = history.list_runs(connection, mart.id, limit=1)[0]
    assert (newest.kind, newest.status, newest.error_code) == ("rollback", RunStatus.FAILED, "NOTHING_TO_ROLL_BACK")


@pytest.fixture
def client(keeping: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(keeping), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.promise("D21")
def test_the_api_refuses_a_rollback_in_vain_and_records_nothing(
    connection: Connection, settings: Settings, client: TestClient, mart: Pipeline
) -> None:
    never = client.post("/api/v1/pipelines/mart/rollback")
    assert (never.status_code, never.json()["code"]) == (409, "NOTHING_TO_ROLL_BACK")
    assert "no earlier generation" in never.json()["detail"]
    published(connection, settings, mart, "ab")
    unkept = client.post("/api/v1/pipelines/mart/rollback")
    assert (unkept.status_code, unkept.json()["code"]) == (409, "NOTHING_TO_ROLL_BACK")
    assert "does not keep generation 1" in unkept.json()["detail"]
    assert pipelines.get(connection, mart.id).status is Status.IDLE
    assert len(history.list_runs(connection, mart.id)) == 2


def test_the_api_requests_a_rollback_and_a_runner_carries_it_out(
    connection: Connection, keeping: Settings, client: TestClient, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    accepted = client.post("/api/v1/pipelines/under_test/rollback")
    assert (accepted.status_code, accepted.json()["status"]) == (202, "RUN_REQUESTED")
    asked = accepted.json()["request_id"]
    status = client.get("/api/v1/pipelines/under_test/status").json()
    assert (status["request_id"], status["requested_kind"], status["rerun_kind"]) == (asked, "rollback", None)
    assert client.post("/api/v1/pipelines/under_test/rollback").json()["request_id"] == asked
    assert shows(documents) == "b"
    dispatch(keeping, take(connection, genres, keeping.lease_ttl))
    request = client.get(f"/api/v1/requests/{asked}").json()
    assert (request["state"], request["run"]["kind"], request["promised_at"]) == ("succeeded", "rollback", None)
    assert client.get("/api/v1/pipelines/under_test/status").json()["status"] == "PAUSED"
    assert shows(documents) == "a"


def test_a_target_that_does_not_answer_does_not_hold_the_request_back(
    connection: Connection, keeping: Settings, client: TestClient, genres: Pipeline, documents: MemoryDocuments
) -> None:
    published(connection, keeping, genres, "ab")
    hidden = documents.folder.rename(documents.folder.with_name("hidden"))
    assert client.post("/api/v1/pipelines/under_test/rollback").status_code == 202
    hidden.rename(documents.folder)
    assert dispatch(keeping, take(connection, genres, keeping.lease_ttl))[0].error is None
    assert shows(documents) == "a"


def test_a_rollback_of_a_disabled_or_pausing_pipeline_is_refused(
    connection: Connection, keeping: Settings, genres: Pipeline
) -> None:
    published(connection, keeping, genres, "ab")
    pipelines.request_run(connection, genres.id, trigger="api")
    take(connection, genres, keeping.lease_ttl)
    pipelines.request_pause(connection, genres.id)
    with pytest.raises(TransitionRefused, match="PAUSE_REQUESTED; wait until it is PAUSED"):
        pipelines.request_run(connection, genres.id, trigger="api", kind=RequestKind.ROLLBACK)
    changes.change(connection, keeping, genres.id, {"enabled": False})
    with pytest.raises(TransitionRefused, match="disabled"):
        pipelines.request_run(connection, genres.id, trigger="api", kind=RequestKind.ROLLBACK)
