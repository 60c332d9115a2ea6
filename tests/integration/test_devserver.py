"""The development server of Elasticsearch."""

import httpx2
import pytest


@pytest.fixture
def client(elasticsearch_url: str):
    with httpx2.Client(base_url=elasticsearch_url, trust_env=False, timeout=30) as opened:
        yield opened


@pytest.mark.parametrize("number", range(2))
def test_a_document_is_found_by_another_form_of_a_russian_word(client, index_name: str, number) -> None:
    mapping = {"mappings": {"properties": {"title": {"type": "text", "analyzer": "russian"}}}}
    client.put(f"/{index_name}", json=mapping).raise_for_status()
    client.put(f"/{index_name}/_doc/1", params={"refresh": "true"}, json={"title": "Звёздные войны"}).raise_for_status()

    found = client.post(f"/{index_name}/_search", json={"query": {"match": {"title": "война"}}}).raise_for_status()

    assert [hit["_id"] for hit in found.json()["hits"]["hits"]] == ["1"]
