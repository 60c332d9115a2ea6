"""Documents of rejected rows, copied from the generation that readers see to the one that replaces it."""

from collections.abc import Collection

from vitrine.connectors.elasticsearch import exact_json
from vitrine.connectors.elasticsearch.bulk import Action, Bulk, Operations
from vitrine.connectors.elasticsearch.generations import StoredIndex
from vitrine.connectors.elasticsearch.ids import id_of
from vitrine.connectors.elasticsearch.requests import Requests
from vitrine.connectors.elasticsearch.scan import ANY_ORDER, Hits, Scan, chunks
from vitrine.flow import keys


def keep_last_good(
    requests: Requests, seen: StoredIndex, index: StoredIndex, rejected: Collection[str], bulk: Bulk, version: int
) -> None:
    """Copy what `index` lacks of the documents with these keys; both indexes are refreshed.

    One that the mappings of `index` refuse is left out: its row is in quarantine already.
    """
    if seen.mark is None or index.mark is None or seen.mark.key != index.mark.key:
        return  # with another key, an id means another row

    def found(place: StoredIndex, ids: Collection[str]) -> Hits:
        query = {"ids": {"values": list(ids)}}
        return [hit for hits in Scan(requests, place.name).documents(query, ANY_ORDER) for hit in hits]

    for some in chunks([id_of(keys.from_text(text)) for text in sorted(rejected)]):
        lacking = set(some) - {hit["_id"] for hit in found(index, some)}
        kept = found(seen, lacking)
        sources = [exact_json.dumps(hit["_source"]).encode() for hit in kept]
        bulk.send(Operations(Action.INDEX, [hit["_id"] for hit in kept], sources, version))
    bulk.finish()
