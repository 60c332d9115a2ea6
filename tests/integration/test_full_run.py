"""A full run of an incremental pipeline: once, everything is read, and what vanished at the source is removed."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import search_cluster
from tests.helpers.events import EVENTS, create_events, create_filled, events_are_right, fill_events
from tests.helpers.ratings import rate
from tests.helpers.running import create, differences, once_read, run, succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from vitrine import failpoints
from vitrine.compare import reconcile
from vitrine.core.protocols import Outcome
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import pipelines, state

RATED_FILMS = """
    SELECT f.id AS film_id, f.title, avg(r.rating)::numeric(5, 2) AS avg_score, max(r.modified) AS last_rating
      FROM content.film_work f
      JOIN ugc.ratings r ON r.film_id = f.id
     WHERE r.film_id IN (SELECT film_id FROM ugc.ratings WHERE modified >= $1)
     GROUP BY f.id, f.title
"""


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    failpoints.install("")


@pytest.fixture
def cluster(elasticsearch_url: str, index_name: str, settings: Settings, connection: Connection) -> Iterator[Cluster]:
    with search_cluster.opened(elasticsearch_url, index_name, settings, connection) as opened:
        yield opened


def create_rated_films(connection: Connection, settings: Settings, target: str) -> Pipeline:
    return create(
        connection,
        settings,
        source_query=RATED_FILMS,
        target_table=target,
        mode="incremental",
        incremental_key="last_rating",
        incremental_id_key="film_id",
        key_columns=["film_id"],
        batch_size=20,
        options={"horizon_margin": "0s"},
    )


def delete_rated_films(connection: Connection, count: int) -> None:
    chosen = connection.execute("SELECT DISTINCT film_id FROM ugc.ratings ORDER BY 1 LIMIT %s", [count]).fetchall()
    films = [row["film_id"] for row in chosen]
    assert len(films) == count
    connection.execute("DELETE FROM ugc.ratings WHERE film_id = ANY(%s)", [films])
    connection.execute("DELETE FROM content.film_work WHERE id = ANY(%s)", [films])


def code_of(connection: Connection, settings: Settings, pipeline: Pipeline, **options: Any) -> str:
    error = run(connection, settings, pipeline, **options).error
    assert error is not None
    return error.code


def delete_events(connection: Connection, *ids: int) -> None:
    connection.execute("DELETE FROM ugc.events WHERE id = ANY(%s)", [list(ids)])


# -- what vanished ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("I16")
@pytest.mark.parametrize("sink", ["postgres", "elasticsearch"])
def test_films_that_were_deleted_at_the_source_leave_the_mart_and_reconcile_is_equal(
    connection: Connection, settings: Settings, sink: str, request: pytest.FixtureRequest
) -> None:
    target = "analytics.rated_films"
    if sink == "elasticsearch":
        name, url = request.getfixturevalue("index_name"), request.getfixturevalue("elasticsearch_url")
        section = {"elasticsearch": {"url": url, "takeover_grace": "0s"}}
        target, settings = f"es:{name}", settings.model_copy(update={"connectors": section})
    films = create_rated_films(connection, settings, target)
    succeed(connection, settings, films)
    delete_rated_films(connection, 10)
    succeed(connection, settings, films)
    stale = reconcile.compare(films.definition, settings)
    assert stale.target.rows == stale.source.rows + 10
    full = succeed(connection, settings, films, full=True)
    assert full.counts.deleted == 10
    assert reconcile.compare(films.definition, settings).equal
    # the next runs continue from its checkpoint
    assert succeed(connection, settings, films).counts.read <= 1
    rate(connection, "clock_timestamp()")
    assert 1 <= succeed(connection, settings, films).counts.read <= 2
    assert reconcile.compare(films.definition, settings).equal


@pytest.mark.promise("I16")
def test_a_full_run_sets_the_checkpoint_and_leaves_rows_that_did_not_change(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, events)
    delete_events(connection, 7, 300)
    full = succeed(connection, settings, events, full=True)
    assert (full.counts.read, full.counts.written, full.counts.deleted) == (298, 0, 2)
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).position.cursor == ("2024-01-01 00:04:59+00", "299")
    assert succeed(connection, settings, events).counts.read == 0


def test_the_first_run_may_be_a_full_one(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    succeed(connection, settings, events, full=True)
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).position.cursor == ("2024-01-01 00:05:00+00", "300")


@pytest.mark.parametrize("damage", ["DROP TABLE analytics.events", "TRUNCATE analytics.events", None])
def test_a_full_run_builds_a_mart_that_is_missing_or_another_one(
    connection: Connection, settings: Settings, damage: str | None
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    succeed(connection, settings, events)
    connection.execute(raw(damage or "CREATE TABLE analytics.copy AS SELECT * FROM analytics.events"))
    if damage is None:
        connection.execute("DROP TABLE analytics.events")
        connection.execute("ALTER TABLE analytics.copy RENAME TO events")
        connection.execute("ALTER TABLE analytics.events ADD PRIMARY KEY (id)")
        connection.execute("DELETE FROM analytics.events WHERE id < 100")
    succeed(connection, settings, events, full=True)
    assert events_are_right(connection)
    assert succeed(connection, settings, events).counts.read == 0


# -- the checkpoint ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("I16")
def test_an_integer_cursor_ends_with_the_highest_number_of_the_load_as_pending(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, note text)")
    connection.execute("INSERT INTO ugc.events SELECT n, 'n' FROM generate_series(1, 300) n")
    query = "SELECT id, note FROM ugc.events WHERE id >= $1"
    options = {"horizon_margin": "0s"}
    events = create_events(
        connection, settings, "incremental", source_query=query, incremental_key="id", options=options
    )
    for _ in range(2):
        succeed(connection, settings, events)
    delete_events(connection, 5, 6)
    succeed(connection, settings, events, full=True)
    position = state.load_state(connection, events.id).position
    assert (position.cursor, position.pending_cursor) == (None, ("300", "300"))
    connection.execute("INSERT INTO ugc.events VALUES (301, 'new')")
    succeed(connection, settings, events)
    assert differences(connection, "SELECT id, note FROM ugc.events", "analytics.events", "id") == []
    position = state.load_state(connection, events.id).position
    assert (position.cursor, position.pending_cursor) == (("300", "300"), ("301", "301"))


@pytest.mark.parametrize("on_null_cursor", ["fail", "ignore"])
def test_rows_with_null_in_the_cursor_follow_the_option(
    connection: Connection, settings: Settings, on_null_cursor: str
) -> None:
    fill_events(connection, 10)
    connection.execute("ALTER TABLE ugc.events ALTER modified DROP NOT NULL")
    query = f"{EVENTS} WHERE modified >= $1"
    events = create_events(
        connection, settings, "incremental", source_query=query, options={"on_null_cursor": on_null_cursor}
    )
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET modified = NULL WHERE id = 3")
    delete_events(connection, 4)
    if on_null_cursor == "fail":
        assert code_of(connection, settings, events, full=True) == "NULL_CURSOR"
        assert not events_are_right(connection)
        return
    succeed(connection, settings, events, full=True)
    assert differences(connection, f"{EVENTS} WHERE modified IS NOT NULL", "analytics.events", "id") == []
    assert reconcile.compare(events.definition, settings).equal


@pytest.mark.promise("I16")
def test_a_full_run_that_fails_keeps_the_checkpoint_and_the_next_run_continues_from_it(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, events)
    before = state.load_state(connection, events.id).position
    delete_events(connection, 7)
    failpoints.install("staging_built=raise")
    assert run(connection, settings, events, full=True).error is not None
    failpoints.install("")
    assert state.load_state(connection, events.id).position == before
    connection.execute("INSERT INTO ugc.events VALUES (301, 'new', '2025-01-01')")
    changed = succeed(connection, settings, events)
    assert (changed.counts.read, changed.counts.deleted) == (1, 0)
    assert not state.load_state(connection, events.id).generation_open
    succeed(connection, settings, events, full=True)
    assert events_are_right(connection)


@pytest.mark.promise("I16")
def test_a_full_run_that_was_stopped_continues_where_it_stopped(connection: Connection, settings: Settings) -> None:
    # with `>`, the checkpoint as $1 would hide the other rows of the same time
    same_time = "(n / 150) * interval '1 s'"
    fill_events(connection, 300, modified=same_time)
    events = create_events(connection, settings, "incremental", source_query=f"{EVENTS} WHERE modified > $1")
    succeed(connection, settings, events)
    delete_events(connection, 7, 250)
    stop = threading.Event()
    first = run(connection, settings, events, stop=stop, watch=once_read(100, stop.set), full=True)
    assert (first.outcome, first.counts.read) == (Outcome.RELEASED, 100)
    assert succeed(connection, settings, events, resume=True).counts.read == 198
    assert events_are_right(connection)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("I17")
def test_a_query_that_uses_the_checkpoint_otherwise_is_refused_with_the_place(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    query = f"{EVENTS}\n WHERE modified >= $1\n   AND modified IS DISTINCT FROM $1 + interval '1 day'"
    events = create_events(connection, settings, "incremental", source_query=query)
    succeed(connection, settings, events)
    delete_events(connection, 4)
    refused = run(connection, settings, events, full=True)
    assert refused.error is not None
    assert refused.error.code == "PARAM"
    assert "$1 in line 3, column 34 of the query" in str(refused.error)
    assert pipelines.get(connection, events.name).status is Status.IDLE
    succeed(connection, settings, events)


@pytest.mark.promise("I6")
def test_the_shrink_guard_protects_the_mart_unless_the_request_allows_it(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "incremental", 100)
    succeed(connection, settings, events)
    before = state.load_state(connection, events.id).position
    connection.execute("DELETE FROM ugc.events WHERE id > 20")
    assert code_of(connection, settings, events, full=True) == "SHRINK_GUARD"
    assert state.load_state(connection, events.id).position == before
    succeed(connection, settings, events, full=True, allow_shrink=True)
    assert events_are_right(connection)


# -- an index ---------------------------------------------------------------------------------------------------------


def field_type(cluster: Cluster, field: str) -> str:
    live = cluster.search.live(cluster.name)
    return cluster.search.ask("GET", f"{live}/_mapping")[live]["mappings"]["properties"][field]["type"]


@pytest.mark.promise("I16")
def test_a_full_run_builds_an_index_again_whose_definition_has_changed(cluster: Cluster) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    before = cluster.search.live(cluster.name)
    index = {"mappings": {"properties": {"note": {"type": "keyword"}}}}
    changed = changes.change(
        cluster.connection, cluster.settings, pipeline.name, {"options": {"index": index}}, state="keep"
    )
    said = "; ".join(validation.validate(changed.definition, cluster.settings).warnings)
    assert "a full run builds it again" in said
    succeed(cluster.connection, cluster.settings, pipeline)
    assert (cluster.search.live(cluster.name), field_type(cluster, "note")) == (before, "text")
    cluster.connection.execute("DELETE FROM content.numbers WHERE id = 2")
    succeed(cluster.connection, cluster.settings, pipeline, full=True)
    assert (cluster.search.live(cluster.name) != before, field_type(cluster, "note")) == (True, "keyword")
    assert cluster.ids() == ["1", "3", "4", "5"]
    assert validation.validate(changed.definition, cluster.settings).warnings == ()


def test_a_field_of_another_type_is_refused_until_a_full_run_builds_the_index_again(cluster: Cluster) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    query = "SELECT id, length(note) AS note, modified FROM content.numbers"
    changes.change(cluster.connection, cluster.settings, pipeline.name, {"source_query": query}, state="keep")
    assert code_of(cluster.connection, cluster.settings, pipeline) == "TARGET_SCHEMA"
    succeed(cluster.connection, cluster.settings, pipeline, full=True)
    assert field_type(cluster, "note") == "integer"


@pytest.mark.promise("I16")
@pytest.mark.parametrize("is_old", [False, True])
def test_an_index_that_was_published_and_not_saved_is_continued_by_an_incremental_run(
    cluster: Cluster, is_old: bool
) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.connection.execute("DELETE FROM content.numbers WHERE id = 2")
    failpoints.install("before_checkpoint=raise@2")  # the first one is that of the staged rows
    assert run(cluster.connection, cluster.settings, pipeline, full=True).error is not None
    failpoints.install("")
    assert cluster.ids() == ["1", "3", "4", "5"]
    assert state.load_state(cluster.connection, pipeline.id).generation_open
    if is_old:
        cluster.connection.execute("UPDATE etl.etl_state SET generation_started_at = now() - interval '2 days'")
    cluster.fill(6, 7)
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == ["1", "3", "4", "5", "6", "7"]
    assert not state.load_state(cluster.connection, pipeline.id).generation_open


def test_an_index_with_fields_of_others_is_not_built_again(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    fields: dict[str, Any] = {**INCREMENTAL, "options": {**INCREMENTAL["options"], "write": "upsert"}}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    assert code_of(cluster.connection, cluster.settings, pipeline, full=True) == "UPSERT_FULL"
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.IDLE
