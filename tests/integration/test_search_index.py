"""The index behind a target: created, extended, rebuilt without downtime, and never another one's."""

import json
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.forked import claimed, dispatched, forked
from tests.helpers.running import run, succeed, sweep
from tests.helpers.search_cluster import INCREMENTAL, NUMBERS, Cluster
from tests.helpers.search_proxy import Lost, Reply, Request
from tests.helpers.waiting import wait_until
from vitrine.compare import reconcile
from vitrine.connectors.elasticsearch import index
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Row
from vitrine.core.status import RequestKind, Status
from vitrine.definition import registry
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.store import pipelines, queue


def warnings(cluster: Cluster, pipeline: Pipeline) -> str:
    """What `validate` says about the stored definition."""
    stored = pipelines.get(cluster.connection, pipeline.name)
    return "; ".join(validation.validate(stored.definition, cluster.settings).warnings)


def update(cluster: Cluster, pipeline: Pipeline, **fields: Any) -> None:
    changes.change(cluster.connection, cluster.settings, pipeline.name, fields, state="keep")


def touch(cluster: Cluster, note: str, *ids: int) -> None:
    statement = "UPDATE content.numbers SET note = %s, modified = clock_timestamp() WHERE id = ANY(%s)"
    cluster.connection.execute(statement, [note, list(ids)])


# -- creation ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("F10")
@pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "incremental"])
def test_the_first_run_creates_the_index_with_its_mappings_and_the_alias(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    cluster.fill(1, 3)
    succeed(cluster.connection, cluster.settings, cluster.create(**fields))
    live = cluster.search.live(cluster.name)
    assert cluster.search.indexes(cluster.name) == {live: sorted([cluster.name, f"{live}__write"])}
    described = cluster.search.ask("GET", live)[live]
    assert described["mappings"]["dynamic"] == "strict"
    assert described["mappings"]["properties"]["id"] == {"type": "integer", "coerce": False}
    assert described["settings"]["index"]["gc_deletes"] == "1h"
    assert "refresh_interval" not in described["settings"]["index"]
    assert cluster.ids() == ["1", "2", "3"]


@pytest.mark.promise("F10")
def test_an_index_that_vanishes_during_a_run_is_not_created_by_a_write(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.search.ask("PUT", "_cluster/settings", {"persistent": {"action.auto_create_index": True}})
    cluster.fill(4, 6)

    def remove(request: Request) -> Reply:
        cluster.search.remove(cluster.name)
        return request.forward()

    try:
        with cluster.proxy.following(cluster.proxy.once(remove)):
            executed = run(cluster.connection, cluster.settings, pipeline)
    finally:
        cluster.search.ask("PUT", "_cluster/settings", {"persistent": {"action.auto_create_index": None}})
    assert executed.error is not None
    assert executed.error.code == "TARGET_SCHEMA"
    assert cluster.search.indexes(cluster.name) == {}


# -- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("F13")
def test_a_field_that_the_query_no_longer_returns_is_gone(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    update(cluster, pipeline, source_query="SELECT id, modified FROM content.numbers")
    touch(cluster, "unread", 2)
    succeed(cluster.connection, cluster.settings, pipeline)
    documents = cluster.search.documents(cluster.name)
    assert set(documents["2"]) == {"id", "modified"}
    assert set(documents["1"]) == {"id", "note", "modified"}


@pytest.mark.parametrize(("nulls", "fields"), [("omit", {"id", "modified"}), ("write", {"id", "note", "modified"})])
def test_null_is_omitted_or_written(cluster: Cluster, nulls: str, fields: set[str]) -> None:
    cluster.connection.execute("INSERT INTO content.numbers (id) VALUES (1)")
    succeed(cluster.connection, cluster.settings, cluster.create(options={"nulls": nulls}))
    assert set(cluster.search.documents(cluster.name)["1"]) == fields


def test_numbers_keep_every_digit(cluster: Cluster) -> None:
    query = "SELECT 1 AS id, 9007199254740993::bigint AS big, 12345678901234567890.10::numeric AS exact"
    succeed(cluster.connection, cluster.settings, cluster.create(query))
    document = cluster.search.documents(cluster.name)["1"]
    assert document == {"id": 1, "big": 9007199254740993, "exact": "12345678901234567890.10"}


def test_an_upsert_changes_the_fields_of_its_pipeline_only(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    index = {"mappings": {"dynamic": True}}
    options = {"horizon_margin": "0s", "write": "upsert", "index": index}
    fields: dict[str, Any] = {**INCREMENTAL, "options": options}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.search.ask("POST", f"{live}/_update/1?refresh=true", {"doc": {"views": 7}})
    touch(cluster, "changed", 1)
    succeed(cluster.connection, cluster.settings, pipeline)
    document = cluster.search.documents(cluster.name)["1"]
    assert (document["views"], document["note"]) == (7, "changed")
    assert "write: upsert is at-least-once" in warnings(cluster, pipeline)


def test_an_upsert_that_deletes_what_the_source_lacks_is_a_warning(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    options = {"horizon_margin": "0s", "write": "upsert", "delete_mode": "reconcile_keys"}
    fields: dict[str, Any] = {**INCREMENTAL, "options": options}
    pipeline = cluster.create(**fields)
    assert "also those that only other programs have written" in warnings(cluster, pipeline)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.search.ask("PUT", f"{cluster.name}/_doc/3?refresh=true", {"id": 3, "note": "of another program"})
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == ["1", "2"]


# -- definitions ------------------------------------------------------------------------------------------------------


def test_a_changed_definition_is_reported_and_the_next_full_run_rebuilds_the_index(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    assert "has changed" not in warnings(cluster, pipeline)
    update(cluster, pipeline, options={"index": {"mappings": {"properties": {"note": {"type": "keyword"}}}}})
    assert "has changed; the next run builds the index again" in warnings(cluster, pipeline)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    assert cluster.search.ask("GET", live)[live]["mappings"]["properties"]["note"] == {"type": "keyword"}
    assert "has changed" not in warnings(cluster, pipeline)


def test_a_definition_that_the_cluster_refuses_is_a_clear_error(cluster: Cluster) -> None:
    cluster.fill(1, 1)
    index = {"mappings": {"properties": {"note": {"type": "no_such_type"}}}}
    executed = run(cluster.connection, cluster.settings, cluster.create(options={"index": index}))
    assert executed.error is not None
    assert executed.error.code == "INDEX_DEFINITION"
    assert "no_such_type" in str(executed.error)


def test_a_new_column_extends_the_index_where_the_pipeline_says_so(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    update(cluster, pipeline, source_query="SELECT id, note, modified, 5 AS added FROM content.numbers")
    touch(cluster, "changed", 2)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "TARGET_SCHEMA"
    update(cluster, pipeline, options={"horizon_margin": "0s", "on_schema_change": "add_columns"})
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.search.documents(cluster.name)["2"]["added"] == 5
    assert "added" not in cluster.search.documents(cluster.name)["1"]


def test_a_new_column_that_the_index_cannot_take_needs_a_full_run(cluster: Cluster) -> None:
    """An index gets its analyzers when it is created."""
    cluster.fill(1, 3)
    options: dict[str, Any] = {"horizon_margin": "0s", "on_schema_change": "add_columns"}
    fields: dict[str, Any] = {**INCREMENTAL, "options": options}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    index = {
        "settings": {"analysis": {"analyzer": {"titles": {"tokenizer": "standard"}}}},
        "mappings": {"properties": {"title": {"type": "text", "analyzer": "titles"}}},
    }
    query = "SELECT id, note, note AS title, modified FROM content.numbers"
    update(cluster, pipeline, source_query=query, options={**options, "index": index})
    touch(cluster, "changed", 1)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "INDEX_DEFINITION"
    assert "does not take the mappings of title" in str(executed.error)
    assert "build it again by a full run" in str(executed.error)
    succeed(cluster.connection, cluster.settings, pipeline, full=True)
    assert cluster.search.documents(cluster.name)["1"]["title"] == "changed"


def test_a_column_that_a_transform_adds_is_refused_where_the_pipeline_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []

    def add(rows: Sequence[Row]) -> Sequence[Row]:
        return [{**row, **dict.fromkeys(added, 5)} for row in rows]

    monkeypatch.setitem(vars(registry.transforms)["_tasks"], "add", Task("add", Kind.ROW, add, None))
    cluster.fill(1, 2)
    pipeline = cluster.create(**INCREMENTAL, python_task="add")
    succeed(cluster.connection, cluster.settings, pipeline)
    added.append("added")
    touch(cluster, "changed", 2)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "TARGET_SCHEMA"
    assert "no field 'added'" in str(executed.error)
    update(cluster, pipeline, options={"horizon_margin": "0s", "on_schema_change": "add_columns"})
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.search.documents(cluster.name)["2"]["added"] == 5


def test_a_column_that_no_index_can_have_is_refused_when_a_transform_returns_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(rows: Sequence[Row]) -> Sequence[Row]:
        return [{**row, "sub.field": 5} for row in rows]

    monkeypatch.setitem(vars(registry.transforms)["_tasks"], "add", Task("add", Kind.ROW, add, None))
    cluster.fill(1, 2)
    executed = run(cluster.connection, cluster.settings, cluster.create(python_task="add"))
    assert executed.error is not None
    assert executed.error.code == "INDEX_DEFINITION"
    assert "column 'sub.field'" in str(executed.error)
    assert cluster.search.indexes(cluster.name) == {}


@contextmanager
def template(cluster: Cluster, **content: Any) -> Generator[None]:
    """An index template that matches the generations of the target."""
    body = {"index_patterns": [f"{cluster.name}*"], "template": content}
    cluster.search.ask("PUT", f"_index_template/{cluster.name}", body)
    try:
        yield
    finally:
        cluster.search.ask("DELETE", f"_index_template/{cluster.name}")


@pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "incremental"])
@pytest.mark.parametrize(
    ("mappings", "problem"),
    [
        ({"_source": {"enabled": False}}, "stores _source"),
        ({"_source": {"excludes": ["note"]}}, "stores _source"),
        ({"_source": {"includes": ["id"]}}, "stores _source"),
        ({"_routing": {"required": True}}, "requires _routing"),
    ],
)
def test_a_template_of_the_cluster_must_leave_documents_whole(
    cluster: Cluster, fields: dict[str, Any], mappings: dict[str, Any], problem: str
) -> None:
    cluster.fill(1, 2)
    with template(cluster, mappings=mappings):
        executed = run(cluster.connection, cluster.settings, cluster.create(**fields))
    assert executed.error is not None
    assert executed.error.code == "INDEX_DEFINITION"
    assert f"an index template of the cluster {problem}" in str(executed.error)
    assert "exclude the index from the template" in str(executed.error)
    assert [name for name in cluster.search.indexes(cluster.name) if not name.endswith("__g0")] == []


@pytest.mark.promise("I4")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_template_of_the_cluster_must_not_show_a_load_to_readers(cluster: Cluster, is_first: bool) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    if not is_first:
        succeed(cluster.connection, cluster.settings, pipeline)
    before = cluster.search.indexes(cluster.name)
    with template(cluster, aliases={cluster.name: {}}):
        executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "INDEX_DEFINITION"
    assert f"gives the alias '{cluster.name}'" in str(executed.error)
    assert cluster.search.indexes(cluster.name) == before
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == ["1", "2", "3"]


@pytest.mark.promise("I13")
def test_a_load_is_swept_though_a_template_has_given_it_an_alias(cluster: Cluster) -> None:
    cluster = cluster.expiring_soon()
    cluster.fill(1, 3)
    pipeline = cluster.create()
    with template(cluster, aliases={f"{cluster.name}-everything": {}}):
        succeed(cluster.connection, cluster.settings, pipeline)
        pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
        claim = claimed(cluster.settings)
        with forked(lambda: dispatched(cluster.settings, claim), "before_alias=kill") as child:
            assert child.ended() < 0
    wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
    live = cluster.search.live(cluster.name)
    (load,) = set(cluster.search.indexes(cluster.name)) - {live}
    pipelines.request_pause(cluster.connection, pipeline.id)
    query = {"source_query": f"{NUMBERS} WHERE id > 0"}
    changes.change(cluster.connection, cluster.settings, pipeline.name, query, state="reset")
    assert sweep(cluster.connection, cluster.settings) == [load]


@pytest.mark.parametrize(
    ("key", "warns"), [("numeric", True), ("numeric(8,2)", False), ("double precision", True), ("integer", False)]
)
def test_a_key_whose_equal_values_have_different_texts_is_a_warning(cluster: Cluster, key: str, warns: bool) -> None:
    query = f"SELECT id::{key} AS id, note, modified FROM content.numbers"
    assert ("equal values may have different texts" in warnings(cluster, cluster.create(query, **INCREMENTAL))) is warns


@pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "incremental"])
@pytest.mark.parametrize("block", ["write", "read_only", "read_only_allow_delete"])
def test_a_block_is_reported_before_a_row_moves_unless_a_rebuild_does_not_mind(
    cluster: Cluster, fields: dict[str, Any], block: str
) -> None:
    cluster.fill(1, 2)
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.search.ask("PUT", f"{live}/_settings", {f"index.blocks.{block}": True})
    try:
        is_reported = f"index.blocks.{block} is set" in warnings(cluster, pipeline)
        executed = run(cluster.connection, cluster.settings, pipeline, retry=True)
    finally:
        cluster.search.ask("PUT", f"{live}/_settings", {f"index.blocks.{block}": None})
    assert is_reported is (bool(fields) or block == "read_only")
    if not fields:
        assert (executed.error is None) is not is_reported
    assert executed.error is None or executed.error.code == "SINK_BLOCKED"


def test_a_cluster_without_room_for_another_shard_is_a_passing_failure(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    reason = "this action would add [1] shards, but this cluster currently has [1000]/[1000] maximum normal shards open"
    body = {"error": {"type": "validation_exception", "reason": f"Validation Failed: 1: {reason};"}, "status": 400}
    with cluster.proxy.following(lambda request: Reply(400, body) if request.method == "PUT" else None):
        executed = run(cluster.connection, cluster.settings, cluster.create(), retry=True)
    assert executed.error is not None
    assert executed.error.code == "SINK_BLOCKED"
    assert "cluster.max_shards_per_node" in str(executed.error)


# -- generations ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("I14")
def test_a_new_generation_is_shown_by_one_call_that_removes_what_the_run_saw(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    before = cluster.search.live(cluster.name)
    cluster.proxy.requests.clear()
    succeed(cluster.connection, cluster.settings, pipeline)
    (swap,) = [request for request in cluster.proxy.requests if request.path.startswith("/_aliases")]
    actions = json.loads(swap.plain_body())["actions"]
    assert {"remove": {"index": before, "alias": cluster.name, "must_exist": True}} in actions
    assert {"add": {"index": cluster.search.live(cluster.name), "alias": cluster.name}} in actions


@pytest.mark.promise("I4")
def test_a_reader_sees_complete_sets_during_three_rebuilds(cluster: Cluster) -> None:
    cluster.fill(1, 300)
    pipeline = cluster.create(batch_size=50)
    succeed(cluster.connection, cluster.settings, pipeline)
    seen: list[tuple[int, frozenset[str]]] = []
    done = threading.Event()

    def search() -> None:
        body = {"size": 300, "_source": ["note"], "track_total_hits": True}
        while not done.is_set():
            found = cluster.search.ask("POST", f"{cluster.name}/_search", body)["hits"]
            notes = frozenset(str(hit["_source"]["note"]).partition(" ")[0] for hit in found["hits"])
            seen.append((found["total"]["value"], notes))

    reader = threading.Thread(target=search, name="reader")
    reader.start()
    try:
        for number in (1, 2, 3):
            cluster.connection.execute("UPDATE content.numbers SET note = %s", [f"rebuild{number}"])
            succeed(cluster.connection, cluster.settings, pipeline, waits=(0.5, 0.5, 0.5))
    finally:
        done.set()
        reader.join()
    assert {count for count, _ in seen} == {300}
    assert {notes for _, notes in seen} <= {frozenset({one}) for one in ("note", "rebuild1", "rebuild2", "rebuild3")}
    assert len(seen) > 10


@pytest.mark.parametrize(("keep", "left"), [(0, 1), (1, 2), (2, 3)])
def test_replaced_generations_are_kept_as_many_as_the_pipeline_says(cluster: Cluster, keep: int, left: int) -> None:
    cluster.fill(1, 2)
    pipeline = cluster.create(options={"keep_generations": keep})
    for _ in range(4):
        succeed(cluster.connection, cluster.settings, pipeline)
    found = cluster.search.indexes(cluster.name)
    assert len(found) == left
    assert [name for name, aliases in found.items() if aliases] == [cluster.search.live(cluster.name)]


@pytest.mark.promise("I13")
@pytest.mark.parametrize("ends", ["resumed", "swept"])
def test_a_load_that_dies_before_the_alias_changes_leaves_the_index_as_it_was(cluster: Cluster, ends: str) -> None:
    cluster = cluster.expiring_soon()
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    before = cluster.search.live(cluster.name)
    cluster.connection.execute("UPDATE content.numbers SET note = 'changed'")
    pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
    claim = claimed(cluster.settings)
    with forked(lambda: dispatched(cluster.settings, claim), "before_alias=kill") as child:
        assert child.ended() < 0
    assert cluster.search.live(cluster.name) == before
    assert set(cluster.notes().values()) == {"note 1", "note 2", "note 3"}
    wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
    if ends == "swept":
        update(cluster, pipeline, source_query=f"{NUMBERS} WHERE id > 0")  # the load belongs to another query
    executed = run(cluster.connection, cluster.settings, pipeline, resume=True)
    assert executed.outcome is Outcome.FINISHED
    assert set(cluster.notes().values()) == {"changed"}
    sweep(cluster.connection, cluster.settings)
    live = cluster.search.live(cluster.name)
    assert set(cluster.search.indexes(cluster.name)) == {before, live}


@pytest.mark.parametrize("options", [{}, {"on_duplicate_key": "last"}], ids=["", "last of equal keys"])
def test_a_load_shows_no_document_of_a_first_batch_that_failed(cluster: Cluster, options: dict[str, Any]) -> None:
    """The repetition reads another snapshot, in which the row is gone."""
    cluster.fill(1, 6)
    pipeline = cluster.create(batch_size=2, options=options)

    def lose(request: Request) -> Reply:
        request.forward()
        cluster.connection.execute("DELETE FROM content.numbers WHERE id = 1")
        raise Lost

    with cluster.proxy.following(cluster.proxy.once(lose)):
        succeed(cluster.connection, cluster.settings, pipeline, waits=(0.01,))
    assert cluster.ids() == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize("write", ["index", "upsert"])
def test_a_load_of_which_a_batch_was_repeated_has_all_documents(cluster: Cluster, write: str) -> None:
    cluster.fill(1, 6)
    fields: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "write": write}}
    pipeline = cluster.create(batch_size=2, **fields)

    def lose_second(request: Request) -> Reply | None:
        if not request.is_bulk or len(cluster.proxy.bulks) != 2:
            return None
        request.forward()
        raise Lost

    with cluster.proxy.following(lose_second):
        succeed(cluster.connection, cluster.settings, pipeline, waits=(0.01,))
    assert cluster.ids() == ["1", "2", "3", "4", "5", "6"]


# -- crashes and zombies ----------------------------------------------------------------------------------------------


@pytest.mark.promise("A4")
def test_a_batch_whose_runner_dies_after_the_reply_is_written_again_with_the_same_ids(cluster: Cluster) -> None:
    cluster = cluster.expiring_soon()
    cluster.fill(1, 20)
    pipeline = cluster.create(**INCREMENTAL, batch_size=5)
    succeed(cluster.connection, cluster.settings, pipeline)
    touch(cluster, "changed", *range(1, 21))
    pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
    claim = claimed(cluster.settings)
    with forked(lambda: dispatched(cluster.settings, claim), "before_checkpoint=kill@2") as child:
        assert child.ended() < 0
    assert sum(note == "changed" for note in cluster.notes().values()) == 10
    wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
    assert run(cluster.connection, cluster.settings, pipeline, resume=True).outcome is Outcome.FINISHED
    assert cluster.ids() == [str(number) for number in range(1, 21)]
    assert set(cluster.notes().values()) == {"changed"}


@pytest.mark.promise("A8")
def test_a_run_that_wakes_after_its_lease_has_ended_sends_nothing(cluster: Cluster) -> None:
    cluster = cluster.expiring_soon()
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    touch(cluster, "of the zombie", 1, 2)
    pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
    claim = claimed(cluster.settings)
    with forked(lambda: dispatched(cluster.settings, claim), "after_read=stop") as zombie:
        zombie.stopped()
        wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
        touch(cluster, "newer", 1, 2)
        assert run(cluster.connection, cluster.settings, pipeline, resume=True).outcome is Outcome.FINISHED
        sent = len(cluster.proxy.bulks)
        zombie.wake()
        assert zombie.ended() == 0
    assert len(cluster.proxy.bulks) == sent
    assert cluster.notes() == {"1": "newer", "2": "newer", "3": "note 3"}


@pytest.mark.promise("A8", "F7")
def test_a_request_that_is_applied_after_a_takeover_overwrites_nothing(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    touch(cluster, "late", 1, 2)
    with cluster.proxy.applying_late():
        assert run(cluster.connection, cluster.settings, pipeline, retry=True).error is not None
        touch(cluster, "newer", 1)
        succeed(cluster.connection, cluster.settings, pipeline, resume=True)
        assert cluster.notes() == {"1": "newer", "2": "late", "3": "note 3"}
    assert cluster.notes() == {"1": "newer", "2": "late", "3": "note 3"}


@pytest.mark.promise("A8")
def test_a_run_that_takes_over_waits_before_its_first_write(cluster: Cluster) -> None:
    """A request of the run that died may be in progress, and write a document that no newer one replaces."""
    cluster = cluster.expiring_soon()
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    touch(cluster, "changed", 1)
    pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
    claimed(cluster.settings)  # and dies
    wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
    url, waits = cluster.proxy.url, "600s"
    patient = cluster.settings.model_copy(
        update={"connectors": {"elasticsearch": {"url": url, "takeover_grace": waits}}}
    )
    sent = len(cluster.proxy.bulks)
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    assert run(cluster.connection, patient, pipeline, resume=True, stop=stop).outcome is Outcome.RELEASED
    assert len(cluster.proxy.bulks) == sent


# -- reconcile --------------------------------------------------------------------------------------------------------


def test_reconcile_compares_documents_with_the_source(cluster: Cluster) -> None:
    cluster.fill(1, 50)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    assert reconcile.compare(pipeline.definition, cluster.settings).sentence() == "source = target"
    live = cluster.search.live(cluster.name)
    cluster.search.ask("DELETE", f"{live}/_doc/50?refresh=true")
    assert "rows 50 ≠ 49" in reconcile.compare(pipeline.definition, cluster.settings).sentence()
    cluster.search.ask("POST", f"{live}/_update/7?refresh=true", {"doc": {"note": "by hand"}})
    assert not reconcile.compare(pipeline.definition, cluster.settings).equal
    assert pipelines.get(cluster.connection, pipeline.name).status is not Status.FAILED


def test_a_cluster_that_does_not_answer_stops_no_sweep_for_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SWEEP_SECONDS", 0.3)
    with cluster.proxy.blocked():
        started = time.monotonic()
        assert sweep(cluster.connection, cluster.settings) == []
        assert time.monotonic() - started < 10


# -- rollback ---------------------------------------------------------------------------------------------------------


def roll_back(cluster: Cluster, pipeline: Pipeline) -> Executed:
    pipelines.request_run(cluster.connection, pipeline.id, trigger="cli", kind=RequestKind.ROLLBACK)
    claim = claimed(cluster.settings)
    executor = PipelineExecutor(cluster.settings, threading.Event(), waits=())
    return PipelineDispatcher(cluster.settings, executor).dispatch(claim)[0]


def test_rollback_shows_the_previous_generation_again(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(incremental_key="modified")
    succeed(cluster.connection, cluster.settings, pipeline)
    first = cluster.search.live(cluster.name)
    fresh = pipelines.get(cluster.connection, pipeline.name).fresh_as_of
    cluster.connection.execute("UPDATE content.numbers SET note = 'wrong'")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.search.live(cluster.name) != first
    assert roll_back(cluster, pipeline).outcome is Outcome.FINISHED
    assert cluster.search.live(cluster.name) == first
    assert cluster.notes() == {"1": "note 1", "2": "note 2", "3": "note 3"}
    stored = pipelines.get(cluster.connection, pipeline.name)
    assert (stored.status, stored.fresh_as_of) == (Status.PAUSED, fresh)
    # the generation that was wrong has lost its aliases, and the next run builds a third one
    assert sorted(map(len, cluster.search.indexes(cluster.name).values())) == [0, 2]
    cluster.connection.execute("UPDATE content.numbers SET note = 'right'")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert set(cluster.notes().values()) == {"right"}


def test_a_rollback_without_an_earlier_generation_changes_nothing(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    refused = roll_back(cluster, pipeline)
    assert refused.error is not None
    assert "has no earlier generation to go back to" in str(refused.error)
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.IDLE
    touch(cluster, "changed", 2)
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.notes() == {"1": "note 1", "2": "changed", "3": "note 3"}


def test_a_rollback_goes_back_as_often_as_generations_are_kept(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    pipeline = cluster.create(options={"keep_generations": 3})
    notes = ["first", "second", "third", "fourth"]
    for note in notes:
        touch(cluster, note, 1, 2)
        succeed(cluster.connection, cluster.settings, pipeline)
    for note in ("third", "second", "first"):
        assert roll_back(cluster, pipeline).outcome is Outcome.FINISHED
        assert set(cluster.notes().values()) == {note}
    refused = roll_back(cluster, pipeline)
    assert refused.error is not None
    assert refused.error.code == "NOTHING_TO_ROLL_BACK"
    assert set(cluster.notes().values()) == {"first"}
    assert len(cluster.search.indexes(cluster.name)) == len(notes)


def test_a_rollback_finds_nothing_where_no_generation_is_kept(cluster: Cluster) -> None:
    cluster.fill(1, 2)
    pipeline = cluster.create(options={"keep_generations": 0})
    for _ in range(2):
        succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    refused = roll_back(cluster, pipeline)
    assert refused.error is not None
    assert refused.error.code == "NOTHING_TO_ROLL_BACK"
    assert cluster.search.live(cluster.name) == live
