"""What the pages of the console are made of: figures over many pipelines, timelines, changes of many, sessions."""

from datetime import timedelta
from hashlib import sha256
from uuid import UUID

import pytest

from tests.helpers.access import context, issue
from tests.helpers.pipelines import create
from tests.helpers.running import create as create_checked
from tests.helpers.running import succeed
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import Forbidden
from vitrine.operations import control, definitions, history, many, overview
from vitrine.operations.access import close_session, open_session
from vitrine.operations.bodies.filters import Filters
from vitrine.operations.bodies.overview import GroupCounts, StateCounts
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import access, pipelines


@pytest.fixture
def marts(connection: Connection) -> None:
    create(connection, "alpha", tags=["search", "tier-1"], owner="team-a", schedule_interval="1m")
    create(connection, "beta", tags=["search"], enabled=False)
    create(connection, "gamma", owner="team-a")
    create(connection, "delta", schedule_interval="*/5 * * * *")
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'gamma'")
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '1 day'")


@pytest.mark.usefixtures("marts")
def test_states_owners_and_tags_are_counted(connection: Connection, settings: Settings) -> None:
    viewer = context(settings, connection, Role.VIEWER)
    assert overview.counts(viewer) == StateCounts(pipelines=4, idle=3, failed=1, disabled=1, stale=2)
    assert overview.groups(viewer, "owner") == [GroupCounts(name="team-a", pipelines=2, failed=1, running=0, stale=1)]
    assert [(one.name, one.pipelines) for one in overview.groups(viewer, "tag")] == [("search", 2), ("tier-1", 1)]


@pytest.mark.usefixtures("marts")
@pytest.mark.parametrize(("text", "found"), [("ALPH", ["alpha"]), ("team-a", ["alpha", "gamma"]), ("%", []), ("_", [])])
def test_a_text_is_searched_as_it_is(connection: Connection, settings: Settings, text: str, found: list[str]) -> None:
    page = definitions.list_page(context(settings, connection, Role.VIEWER), Filters(search=text))
    assert [one.name for one in page.items] == found


def film_dim(connection: Connection, settings: Settings) -> Pipeline:
    return create_checked(
        connection,
        settings,
        name="genres",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.genres",
        key_columns=["id"],
    )


def test_the_newest_runs_of_several_pipelines_come_with_one_query(connection: Connection, settings: Settings) -> None:
    genres = film_dim(connection, settings)
    never = create(connection, "never")
    for _ in range(3):
        succeed(connection, settings, genres)
    found = overview.recent_runs(context(settings, connection, Role.VIEWER), [genres.id, never.id], limit=2)
    assert [(run.status, run.rows_read) for run in found[genres.id]] == [("SUCCESS", 26)] * 2
    assert found[genres.id][0].id < found[genres.id][1].id, "oldest first"
    assert found[never.id] == []


def test_a_sparkline_has_the_newest_runs_as_the_history_has_them(connection: Connection, settings: Settings) -> None:
    genres = film_dim(connection, settings)
    never = create(connection, "never")
    for _ in range(3):
        succeed(connection, settings, genres)
    connection.execute("""UPDATE etl.etl_runs SET status = 'FAILED', finished_at = started_at + interval '1.234 s'
        WHERE id = (SELECT max(id) FROM etl.etl_runs)""")
    viewer = context(settings, connection, Role.VIEWER)
    found = overview.sparklines(viewer, [genres.id, never.id], limit=2)
    runs = overview.recent_runs(viewer, [genres.id], limit=2)[genres.id]
    assert found[genres.id].statuses == [run.status for run in runs] == ["SUCCESS", "FAILED"]
    assert found[genres.id].milliseconds == pytest.approx([run.seconds * 1000 for run in runs], abs=0.51)
    assert found[genres.id].milliseconds[1] == 1234
    assert found[genres.id].started == pytest.approx([run.started_at.timestamp() * 1000 for run in runs], abs=0.51)
    assert found[never.id]._asdict() == {"statuses": [], "milliseconds": [], "started": []}


def test_health_names_runners_queue_and_what_a_checkpoint_waits_for(connection: Connection, settings: Settings) -> None:
    viewer = context(settings, connection, Role.VIEWER)
    genres = film_dim(connection, settings)
    health = overview.health(viewer)
    assert (health.runners, health.waiting, health.running, health.held_pipeline) == (0, 0, 0, None)
    succeed(connection, settings, genres)
    pipelines.request_run(connection, genres.id, trigger="cli")
    connection.execute("INSERT INTO etl.etl_runners (name) VALUES ('here')")
    connection.execute("UPDATE etl.etl_state SET horizon_lag_seconds = 90, horizon_blocker = 'psql of bob'")
    health = overview.health(viewer)
    assert (health.runners, health.waiting) == (1, 1)
    assert health.oldest_wait is not None
    assert (health.held_pipeline, health.horizon_lag, health.horizon_blocker) == ("genres", 90, "psql of bob")


def test_a_timeline_has_runs_and_changes_in_one_order_and_its_pages_have_each_once(
    connection: Connection, settings: Settings
) -> None:
    operator, viewer = context(settings, connection, Role.ADMIN), context(settings, connection, Role.VIEWER)
    genres = film_dim(connection, settings)
    for _ in range(4):
        succeed(connection, settings, genres)
        control.pause(operator, "genres")
        definitions.change(operator, "genres", {"description": f"secret {_}"}, validate=False)
    seen: list[str] = []
    before_run: int | None = None
    before_change: int | None = None
    for _ in range(20):
        page = history.list_timeline(viewer, "genres", before_run=before_run, before_change=before_change, limit=5)
        seen += [f"run {one.run.id}" if one.run else f"change {one.change and one.change.id}" for one in page.items]
        if page.next_run is None and page.next_change is None:
            break
        before_run, before_change = page.next_run or 1, page.next_change or 1
    assert len(seen) == len(set(seen)) == 12
    first = history.list_timeline(viewer, "genres").items
    assert [one.at for one in first] == sorted((one.at for one in first), reverse=True)
    change = first[0].change
    assert change is not None
    assert (change.actor, change.operation, change.fields) == ("test-admin", "pipelines.change", ["description"])
    assert "secret" not in str(first), "a viewer sees which fields changed, not their values"


@pytest.mark.usefixtures("marts")
def test_many_are_paused_and_resumed_and_one_that_refuses_stops_no_other(
    connection: Connection, settings: Settings
) -> None:
    operator = context(settings, connection, Role.OPERATOR)
    only = Filters(owner="team-a")
    assert many.pause_many(operator, only, dry_run=True).names == ["alpha", "gamma"]
    assert pipelines.get(connection, "alpha").status is Status.IDLE
    paused = many.pause_many(operator, only)
    assert (paused.changed, [one.pipeline for one in paused.refused]) == (["alpha"], ["gamma"])
    assert pipelines.get(connection, "alpha").status is Status.PAUSED
    resumed = many.resume_many(operator, Filters(tag="search"))
    assert (resumed.changed, [one.code for one in resumed.refused]) == (["alpha"], ["DISABLED"])


@pytest.mark.promise("H2")
@pytest.mark.usefixtures("marts")
def test_a_viewer_may_not_change_many(connection: Connection, settings: Settings) -> None:
    viewer = context(settings, connection, Role.VIEWER)
    for change in (many.pause_many, many.resume_many):
        with pytest.raises(Forbidden):
            change(viewer, Filters(tag="search"))
    with pytest.raises(Forbidden):
        control.run(viewer, "alpha")
    assert {pipelines.get(connection, name).status for name in ("alpha", "beta")} == {Status.IDLE}


def test_a_session_is_stored_as_a_hash_and_ends_with_its_token(connection: Connection, settings: Settings) -> None:
    issue(settings, connection, Role.VIEWER, "analyst")
    row = connection.execute("SELECT id FROM etl.etl_tokens").fetchone()
    assert row is not None
    token_id: UUID = row["id"]
    caller = context(settings, connection, Role.VIEWER)
    session = open_session(caller, token_id)
    hashed = sha256(session.encode()).digest()
    assert [one.token_id for one in access.list_valid_sessions(connection, [hashed, b"x" * 32])] == [token_id]
    connection.execute("UPDATE etl.etl_tokens SET expires_at = now() - interval '1 second'")
    assert access.list_valid_sessions(connection, [hashed]) == []
    connection.execute("UPDATE etl.etl_tokens SET expires_at = now() + interval '1 hour', revoked_at = now()")
    assert access.list_valid_sessions(connection, [hashed]) == []
    assert access.prune_sessions(connection) == 1
    access.insert_session(connection, hash=hashed, token_id=token_id, idle=timedelta(hours=1))
    close_session(caller, session)
    assert access.prune_sessions(connection) == 0
