"""Traces of documents in a search index."""

import pytest

from tests.helpers.running import succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from tests.helpers.tracing import differing, resend, trace


@pytest.mark.promise("R9", "R10")
def test_each_document_has_its_standing_and_is_corrected_by_a_resend(cluster: Cluster) -> None:
    cluster.fill(1, 50)
    pipeline = cluster.create(**INCREMENTAL)
    assert trace(cluster.settings, pipeline, "17").standing == "waiting"
    succeed(cluster.connection, cluster.settings, pipeline)
    name, ask = cluster.name, cluster.search.ask
    ask("POST", f"{name}/_update/17", {"doc": {"note": "changed by hand"}})
    ask("DELETE", f"{name}/_doc/42")
    ask("PUT", f"{name}/_doc/900", {"id": 900, "note": "by hand"})
    cluster.connection.execute("UPDATE content.numbers SET note = 'newer', modified = clock_timestamp() WHERE id = 5")
    cluster.connection.execute("DELETE FROM content.numbers WHERE id = 6")
    expected = {
        "1": "equal",
        "5": "waiting",
        "6": "deleted_at_source",
        "17": "cursor_not_moved",
        "42": "missing",
        "900": "deleted_at_source",
        "901": "not_found",
    }
    for key, standing in expected.items():
        assert trace(cluster.settings, pipeline, key).standing == standing, key
    found = trace(cluster.settings, pipeline, "17")
    assert (differing(found), found.target_rows[0]["note"]) == (["note"], "changed by hand")
    for key in ("17", "42"):
        assert resend(cluster.connection, cluster.settings, pipeline, key).error is None
        assert trace(cluster.settings, pipeline, key).standing == "equal"
    for key in ("6", "900"):
        assert resend(cluster.connection, cluster.settings, pipeline, key, delete=True).error is None
        assert trace(cluster.settings, pipeline, key).standing == "not_found"
