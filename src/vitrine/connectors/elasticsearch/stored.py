"""Documents of an index as rows, in the order of their key."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitrine.connectors.elasticsearch.decoding import MISSING, text_of_value
from vitrine.connectors.elasticsearch.generations import StoredIndex
from vitrine.connectors.elasticsearch.ids import id_of
from vitrine.connectors.elasticsearch.number_keys import NumberKeys, have_several_texts, is_searched
from vitrine.connectors.elasticsearch.requests import Requests
from vitrine.connectors.elasticsearch.scan import ANY_ORDER, Hits, Scan, chunks
from vitrine.copytext import values
from vitrine.flow.keys import is_within, rank
from vitrine.flow.rows import ALL_KEYS, NUMBERS, Batch, Column, Key, KeyRange, Kind, Position, Selection, TextRows

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
