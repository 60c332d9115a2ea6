"""Finds documents by keys with fractions: equal numbers have several texts, and the id of a document is one of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vitrine.connectors.elasticsearch.decoding import MISSING, text_of_value
from vitrine.connectors.elasticsearch.ids import key_of
from vitrine.connectors.elasticsearch.scan import Hits
from vitrine.flow import keys
from vitrine.flow.comparison import canonical
from vitrine.flow.rows import NUMBERS, Column, CommonForm, Key, Kind

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
