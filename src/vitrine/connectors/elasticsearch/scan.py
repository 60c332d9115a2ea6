"""Reads all documents of an index, some at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vitrine.connectors.elasticsearch.requests import Requests
from vitrine.errors import VitrineError

PAGE = 5_000
FIRST_PAGE = 20
"""Documents: their size is not known yet."""

PAGE_BYTES = 16 * 1024 * 1024
"""The cluster builds the whole reply in its memory, and so does the run."""

GROWTH = 10
"""A page has at most so many times the documents of the one before: that may have had small ones by chance."""

KEEP_ALIVE = "2m"
IDS_PER_QUERY = 1_000
ANY_ORDER = [{"_shard_doc": "asc"}]
"""The fastest one."""

Hits = list[dict[str, Any]]


class Scan:
    """A view of an index as it is when the scan starts."""

    def __init__(self, requests: Requests, index: str, page: int = PAGE) -> None:
        self._requests = requests
        self._index = index
        self._page = page

    def versions(self) -> Iterator[Hits]:
        """Ids and versions, in any order."""
        return self._pages({"match_all": {}}, ANY_ORDER, source=False)

    def documents(self, query: Mapping[str, Any], sort: Sequence[Mapping[str, Any]]) -> Iterator[Hits]:
        """Whole documents in an order.

        Whole, because the cluster rounds the numbers of a document from which it selects fields.
        """
        return self._pages(query, sort, source=True)

    def _pages(self, query: Mapping[str, Any], sort: Sequence[Mapping[str, Any]], *, source: bool) -> Iterator[Hits]:
        call = self._requests.call
        opened = call(lambda client: client.open_point_in_time(index=self._index, keep_alive=KEEP_ALIVE).body)
        view: str = self._requests.member(opened, "id")
        after: list[Any] | None = None
        count = min(self._page, FIRST_PAGE) if source else self._page
        try:
            while True:
                page: dict[str, Any] = {"pit": {"id": view, "keep_alive": KEEP_ALIVE}, "search_after": after}
                found, size = self._requests.measured(
                    lambda client, page=page, count=count: (
                        client.search(
                            size=count,
                            query=query,
                            sort=list(sort),
                            source=source,
                            version=not source,
                            track_total_hits=False,
                            allow_partial_search_results=False,
                            **page,
                        ).body
                    )
                )
                hits: Hits = self._requests.member(found, "hits", "hits")
                if hits:
                    yield hits
                if len(hits) < count:
                    return
                if source:
                    count = max(1, min(self._page, count * GROWTH, PAGE_BYTES * count // max(1, size)))
                after, view = hits[-1]["sort"], found.get("pit_id", view)
        finally:
            self._requests.reopen()
            # the cluster ends it by itself; after a failure, its own error is the one to report
            with suppress(VitrineError):
                call(lambda client: client.close_point_in_time(id=view))


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many as one query takes."""
    return (ids[first : first + IDS_PER_QUERY] for first in range(0, len(ids), IDS_PER_QUERY))
