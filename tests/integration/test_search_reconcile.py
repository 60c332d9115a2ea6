"""Deep reconcile and repair of a search index: documents found by id, repaired and verified."""

import json
from functools import partial
from typing import Any

import pytest

from tests.helpers.reconciling import NOTHING, keys, report
from tests.helpers.running import succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from tests.helpers.search_proxy import Reply, Request
from vitrine.compare import digests, reconcile
from vitrine.connectors.elasticsearch import read
from vitrine.connectors.elasticsearch.read import Scan
from vitrine.errors import TransientError
from vitrine.store import pipelines


def damage(cluster: Cluster) -> None:
    name, ask = cluster.name, cluster.search.ask
    ask("POST", f"{name}/_update/17", {"doc": {"note": "changed by hand"}})
    ask("POST", f"{name}/_update/18", {"doc": {"note": None}})
    ask("DELETE", f"{name}/_doc/42")
    ask("PUT", f"{name}/_doc/900", {"id": 900, "note": "by hand"})
    # an id of its own, so that the document is not found by its key
    ask("POST", f"{name}/_doc", {"id": 901, "note": "by hand"})
    ask("POST", f"{name}/_refresh")


@pytest.mark.promise("R8")
@pytest.mark.parametrize("mode", [{}, INCREMENTAL])
def test_damaged_documents_are_found_by_id_and_repaired(
    cluster: Cluster, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "ROWS_PER_PART", 50)
    cluster.fill(1, 500)
    pipeline = cluster.create(**mode)
    succeed(cluster.connection, cluster.settings, pipeline)
    assert keys(report(cluster.connection, cluster.settings, pipeline)) == NOTHING
    damage(cluster)
    found = report(cluster.connection, cluster.settings, pipeline)
    assert keys(found) == {"missing": ["42"], "extra": ["900", "901"], "different": ["17", "18"]}
    assert found["different"]["columns"] == {"17": ["note"], "18": ["note"]}
    repaired = report(cluster.connection, cluster.settings, pipeline, repair=True)
    # a document whose id is not that of its key cannot be deleted by its key
    assert keys(repaired) == NOTHING | {"extra": ["901"]}
    assert {kind: some["count"] for kind, some in repaired["repaired"].items()} == {
        "missing": 1,
        "extra": 1,
        "different": 2,
    }
    cluster.search.ask("POST", f"{cluster.name}/_delete_by_query?refresh=true", {"query": {"term": {"id": 901}}})
    assert keys(report(cluster.connection, cluster.settings, pipeline)) == NOTHING
    assert cluster.notes() == {str(number): f"note {number}" for number in range(1, 501)}
    assert pipelines.get(cluster.connection, pipeline.id).verification.verdict == "equal"


@pytest.mark.parametrize("mapping", [{"type": "keyword"}, {"type": "integer", "doc_values": False}])
def test_documents_are_found_by_a_key_that_the_cluster_sorts_in_another_way_or_not_at_all(
    cluster: Cluster, mapping: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As keywords, 10 comes before 9."""
    monkeypatch.setattr(digests, "ROWS_PER_PART", 50)
    cluster.fill(1, 300)
    pipeline = cluster.create(options={"index": {"mappings": {"properties": {"id": mapping}}}})
    succeed(cluster.connection, cluster.settings, pipeline)
    assert keys(report(cluster.connection, cluster.settings, pipeline)) == NOTHING
    name, ask = cluster.name, cluster.search.ask
    ask("POST", f"{name}/_update/17", {"doc": {"note": "changed by hand"}})
    ask("DELETE", f"{name}/_doc/42?refresh=true")
    cluster.connection.execute("DELETE FROM content.numbers WHERE id = 35")
    found = report(cluster.connection, cluster.settings, pipeline)
    assert keys(found) == {"missing": ["42"], "extra": ["35"], "different": ["17"]}
    assert keys(report(cluster.connection, cluster.settings, pipeline, repair=True)) == NOTHING


@pytest.mark.promise("R2", "R8")
def test_changes_that_wait_for_the_next_run_are_not_reported(cluster: Cluster) -> None:
    cluster.fill(1, 100)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.connection.execute("UPDATE content.numbers SET note = 'newer', modified = clock_timestamp() WHERE id = 5")
    cluster.fill(101, 110)
    found = report(cluster.connection, cluster.settings, pipeline)
    assert (keys(found), found["equal"], found["waiting"]) == (NOTHING, True, 11)


def test_a_view_that_the_cluster_has_closed_is_not_a_missing_index(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a restart."""
    monkeypatch.setattr(read, "Scan", partial(Scan, page=10))
    cluster.fill(1, 30)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)

    def close(request: Request) -> Reply | None:
        if request.path.startswith("/_search") and "search_after" in (body := json.loads(request.plain_body())):
            cluster.search.ask("DELETE", "_pit", {"id": body["pit"]["id"]}, missing={})
        return None

    with cluster.proxy.following(close), pytest.raises(TransientError, match="has closed a view of the index"):
        reconcile.compare(pipeline.definition, cluster.settings)
    assert reconcile.compare(pipeline.definition, cluster.settings).equal


def test_pages_of_wide_documents_are_small(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster builds a page in its memory."""
    monkeypatch.setattr(read, "PAGE_BYTES", 100_000)
    cluster.fill(1, 400)
    cluster.connection.execute("UPDATE content.numbers SET note = repeat('x', 5000) WHERE id > 100")
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    asked: list[int] = []

    def note(request: Request) -> None:
        if request.path.startswith("/_search"):
            asked.append(json.loads(request.plain_body())["size"])

    with cluster.proxy.following(note):
        assert reconcile.compare(pipeline.definition, cluster.settings).equal
    assert asked[:2] == [20, 200]
    assert max(asked[2:]) <= 40
