"""Keys of numbers in a search index: an id is the text that the source has, and equal numbers have several texts."""

from typing import Any

import pytest

from tests.helpers.reconciling import NOTHING, keys, report
from tests.helpers.running import succeed
from tests.helpers.search_cluster import Cluster
from vitrine.connectors.elasticsearch import read
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import changes
from vitrine.postgres import raw

PRICES = "SELECT price, shop, id FROM content.prices"


def create(cluster: Cluster, kind: str, **fields: Any) -> Pipeline:
    """A source of the prices 0.5 to 10, and an index of them."""
    cluster.connection.execute(raw(f"CREATE TABLE content.prices (price {kind}, shop text, id integer)"))
    cluster.connection.execute("INSERT INTO content.prices SELECT n / 2.0, 'a|b', n FROM generate_series(1, 20) n")
    pipeline = cluster.create(PRICES, **{"key_columns": ["price"]} | fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    return pipeline


DECIMAL, FLOAT = "numeric(6,2)", "double precision"
AS_KEYWORD = {"index": {"mappings": {"properties": {"price": {"type": "keyword"}}}}}


@pytest.mark.promise("R5", "R8")
@pytest.mark.parametrize(
    ("kind", "fields", "ids"),
    [
        (DECIMAL, {}, {"1.50", "2.00"}),
        (DECIMAL, {"options": AS_KEYWORD}, {"1.50", "2.00"}),  # the cluster cannot find it by its value
        (FLOAT, {"key_columns": ["shop", "price"]}, {"a\\|b|1.5", "a\\|b|2"}),
    ],
)
def test_documents_that_the_source_lacks_are_deleted(
    cluster: Cluster, kind: str, fields: dict[str, Any], ids: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "KEYS_PER_QUERY", 1)
    pipeline = create(cluster, kind, **fields)
    before = set(cluster.search.documents(cluster.name))
    assert before >= ids
    cluster.connection.execute("DELETE FROM content.prices WHERE id IN (3, 4)")
    repaired = report(cluster.connection, cluster.settings, pipeline, repair=True)
    assert (repaired["equal"], repaired["repaired"]["extra"]["count"]) == (True, 2)
    assert set(cluster.search.documents(cluster.name)) == before - ids


@pytest.mark.promise("R5", "R8")
def test_documents_that_were_stored_by_hand_are_deleted_if_their_id_is_a_text_of_their_key(cluster: Cluster) -> None:
    pipeline = create(cluster, DECIMAL)
    for document_id, price in (("77.5", 77.50), ("78.50", 78.5), ("by-hand", 79.5)):
        cluster.search.ask("PUT", f"{cluster.name}/_doc/{document_id}", {"price": price, "id": 1})
    cluster.search.ask("POST", f"{cluster.name}/_update/1.50?refresh=true", {"doc": {"id": 99}})
    found = report(cluster.connection, cluster.settings, pipeline)
    assert keys(found) == {"missing": [], "extra": ["77.5", "78.5", "79.5"], "different": ["1.5"]}
    repaired = report(cluster.connection, cluster.settings, pipeline, repair=True)
    assert keys(repaired) == NOTHING | {"extra": ["79.5"]}
    assert "by-hand" in cluster.search.documents(cluster.name)


@pytest.mark.promise("I10")
def test_rows_that_vanished_are_deleted_by_a_run_that_compares_the_keys(cluster: Cluster) -> None:
    pipeline = create(cluster, DECIMAL, mode="incremental", incremental_key="id", incremental_id_key="price")
    cluster.connection.execute("DELETE FROM content.prices WHERE id IN (3, 4)")
    options = {"delete_mode": "reconcile_keys"}
    pipeline = changes.change(cluster.connection, cluster.settings, pipeline.id, {"options": options})
    assert succeed(cluster.connection, cluster.settings, pipeline).counts.deleted == 2
    assert not {"1.50", "2.00"} & set(cluster.search.documents(cluster.name))
