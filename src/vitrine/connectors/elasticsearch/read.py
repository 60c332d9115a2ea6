"""Reads the documents of an index: all of them, or in the order of their key."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vitrine.connectors.elasticsearch.client import Requests
from vitrine.connectors.elasticsearch.documents import id_of, key_of
from vitrine.connectors.elasticsearch.encoding import MISSING, text_of_value
from vitrine.connectors.elasticsearch.index import StoredIndex
from vitrine.core import keys
from vitrine.core.copytext import values
from vitrine.core.keys import canonical, is_within, rank
from vitrine.core.rows import (
    ALL_KEYS,
    NUMBERS,
    Batch,
    Column,
    CommonForm,
    Key,
    KeyRange,
    Kind,
    Position,
    Selection,
    TextRows,
)
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


KEYS_PER_QUERY = 200
"""Each is a condition per column, and the cluster limits the conditions of a query."""

_SEVERAL_TEXTS = frozenset({Kind.DECIMAL, Kind.FLOAT})
_SEARCHED = frozenset({"double", "scaled_float"})
"""Mappings by which the cluster finds a number with a fraction; it rounds them, and may find some that are near."""

Search = Callable[[Mapping[str, Any]], Iterator[Hits]]


def have_several_texts(key: Sequence[Column]) -> bool:
    return any(column.kind in _SEVERAL_TEXTS for column in key)


def is_searched(column: Column, mapping: Mapping[str, Any]) -> bool:
    """Whether the cluster finds a column with several texts by its value."""
    return column.kind in _SEVERAL_TEXTS and mapping.get("type") in _SEARCHED and mapping.get("index") is not False


class NumberKeys:
    """The keys of one index."""

    def __init__(self, key: Sequence[Column], searched: Sequence[Column], search: Search) -> None:
        self._key = tuple(key)
        self._searched = tuple(searched)  # those of the key by which the cluster finds documents
        self._search = search

    def find(self, wanted: Sequence[Key]) -> Iterator[Hits]:
        """The documents whose fields have these keys, in any text; in the order of the keys."""
        stored = sorted(filter(self._can_be_stored, wanted), key=self._rank)
        # without a condition every document is read, so once for all keys
        for some in keys.chunks(stored, KEYS_PER_QUERY if self._searched else max(1, len(stored))):
            values = set(map(self._values, some))
            found = [hit for hits in self._search(self._query(some)) for hit in hits if self._of(hit) in values]
            if found:
                yield sorted(found, key=lambda hit: self._rank(self._fields(hit)))

    def ids_of(self, wanted: Sequence[Key]) -> Iterator[str]:
        """The ids of these documents; not of one that another program stored with an id of its own."""
        return (hit["_id"] for hits in self.find(wanted) for hit in hits if self._has_own_id(hit))

    def _query(self, wanted: Sequence[Key]) -> dict[str, Any]:
        if not self._searched:
            return {"match_all": {}}
        places = [(self._key.index(column), column.name) for column in self._searched]
        terms = ([{"term": {name: key[place]}} for place, name in places] for key in wanted)
        return {"bool": {"should": [{"bool": {"filter": one}} for one in terms], "minimum_should_match": 1}}

    def _has_own_id(self, hit: Mapping[str, Any]) -> bool:
        try:
            key = key_of(hit["_id"], len(self._key))
        except ValueError:
            return False
        return self._values(key) == self._of(hit)

    def _of(self, hit: Mapping[str, Any]) -> Key:
        return self._values(self._fields(hit))

    def _fields(self, hit: Mapping[str, Any]) -> Key:
        source = hit["_source"]
        return tuple(text_of_value(source.get(column.name, MISSING), column) or "" for column in self._key)

    def _values(self, key: Key) -> Key:
        """The key in one text of its values."""
        pairs = zip(key, self._key, strict=True)
        return tuple(canonical(text, _form_of(column)) or "" for text, column in pairs)

    def _rank(self, key: Key) -> keys.Rank:
        return keys.rank(key, self._key)

    def _can_be_stored(self, key: Key) -> bool:
        """The cluster refuses a search for a number that no document can have."""
        numbers = (text for text, column in zip(key, self._key, strict=True) if column.kind in NUMBERS)
        return all(map(_is_finite, numbers))


def _form_of(column: Column) -> CommonForm:
    if column.kind in NUMBERS:
        return CommonForm.FLOAT if column.kind is Kind.FLOAT else CommonForm.NUMBER
    return CommonForm.SAME


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


_WHOLE_NUMBERS = frozenset({"long", "integer", "short", "byte"})

Texts = list[str | None]


class StoredRows:
    """The documents of one index."""

    def __init__(self, requests: Requests, index: StoredIndex, key: Sequence[str]) -> None:
        self._requests = requests
        self._index = index
        types = {column.name: column for column in index.columns}
        self._key = tuple(types[name] for name in key if name in types)

    def ids_of(self, wanted: Sequence[Key]) -> Sequence[str]:
        """The ids of the documents with these keys, also of some that are not stored."""
        ids = dict.fromkeys(map(id_of, wanted))
        if have_several_texts(self._key):
            self._refresh()
            ids |= dict.fromkeys(self._numbers().ids_of(wanted))
        return list(ids)

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        self._refresh()
        if not isinstance(only, KeyRange) and have_several_texts(self._key):
            for hits in self._numbers().find(only):
                yield _batch([_row(hit, columns) for hit in hits], columns)
        elif not isinstance(only, KeyRange):
            yield from self._by_keys(only, columns)
        elif self._is_sortable:
            for hits in self._scan(_query_of(only, self._key), self._order()):
                yield _batch([_row(hit, columns) for hit in hits], columns)
        else:
            yield from self._sorted(only, columns)

    def _by_keys(self, wanted: Sequence[Key], columns: Sequence[Column]) -> Iterator[Batch]:
        ordered = sorted(wanted, key=lambda key: rank(key, self._key))
        for some in chunks([id_of(key) for key in ordered]):
            found = {
                hit["_id"]: _row(hit, columns)
                for hits in self._scan({"ids": {"values": list(some)}}, ANY_ORDER)
                for hit in hits
            }
            if found:
                yield _batch([found[one] for one in some if one in found], columns)

    def _sorted(self, only: KeyRange, columns: Sequence[Column]) -> Iterator[Batch]:
        """For a key that the cluster cannot sort as Vitrine does: all rows in memory."""
        rows: list[tuple[Key, Texts]] = []
        for hits in self._scan({"match_all": {}}, ANY_ORDER):
            for hit in hits:
                key = tuple(_text(hit["_source"], column) or "" for column in self._key)
                if only == ALL_KEYS or is_within(key, only, self._key):
                    rows.append((key, _row(hit, columns)))
        rows.sort(key=lambda one: rank(one[0], self._key))
        if rows:
            yield _batch([texts for _, texts in rows], columns)

    def _refresh(self) -> None:
        self._requests.call(lambda client: client.indices.refresh(index=self._index.name))

    def _numbers(self) -> NumberKeys:
        searched = [column for column in self._key if self._is_found(column)]
        return NumberKeys(self._key, searched, lambda query: self._scan(query, ANY_ORDER))

    def _is_found(self, column: Column) -> bool:
        """Whether the cluster finds a key by the value in this column."""
        mapping = self._index.properties.get(column.name, {})
        return is_searched(column, mapping) or _is_ordered(column, mapping)

    def _scan(self, query: Mapping[str, Any], sort: Sequence[Mapping[str, Any]]) -> Iterator[Hits]:
        return Scan(self._requests, self._index.name).documents(query, sort)

    @property
    def _is_sortable(self) -> bool:
        """Whether the cluster orders the key as Vitrine does."""
        return all(_is_ordered(column, self._index.properties.get(column.name, {})) for column in self._key)

    def _order(self) -> list[dict[str, Any]]:
        return [{column.name: "asc"} for column in self._key]


def _is_ordered(column: Column, mapping: Mapping[str, Any]) -> bool:
    """Whether the cluster can search and sort the values of a column: whole numbers by value, texts by their bytes."""
    if mapping.get("index") is False or mapping.get("doc_values") is False:
        return False
    if column.kind in NUMBERS:
        return column.kind is Kind.INTEGER and mapping.get("type") in _WHOLE_NUMBERS
    return mapping.get("type") == "keyword" and "normalizer" not in mapping and "ignore_above" not in mapping


def _text(source: Mapping[str, Any], column: Column) -> str | None:
    return text_of_value(source.get(column.name, MISSING), column)


def _row(hit: Mapping[str, Any], columns: Sequence[Column]) -> Texts:
    return [_text(hit["_source"], column) for column in columns]


def _batch(rows: Sequence[Texts], columns: Sequence[Column]) -> Batch:
    lines = ["\t".join(values.NULL if text is None else values.escape(text) for text in row) + "\n" for row in rows]
    return Batch(TextRows("".join(lines).encode(), len(lines)), tuple(columns), None, Position())


def _query_of(only: KeyRange, key: Sequence[Column]) -> dict[str, Any]:
    """Keys from the low one to the high one, compared column by column."""
    parts: list[dict[str, Any]] = []
    if only.low is not None:
        parts.append(_bound(only.low, key, "gt", "gte"))
    if only.high is not None:
        parts.append(_bound(only.high, key, "lt", "lt"))
    return {"bool": {"filter": parts}} if parts else {"match_all": {}}


def _bound(bound: Key, key: Sequence[Column], strictly: str, finally_: str) -> dict[str, Any]:
    """Some column is beyond the bound, and all before it are equal to it."""
    choices: list[dict[str, Any]] = []
    for place, column in enumerate(key):
        operator = finally_ if place == len(key) - 1 else strictly
        equal = [{"term": {one.name: bound[at]}} for at, one in enumerate(key[:place])]
        choices.append({"bool": {"filter": [*equal, {"range": {column.name: {operator: bound[place]}}}]}})
    return {"bool": {"should": choices, "minimum_should_match": 1}}
