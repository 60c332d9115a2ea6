"""Digests of streamed rows, for sources and sinks that compute none inside their system."""

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from vitrine.core.copytext import text_of, values
from vitrine.core.keys import Rank, canonical, rank, row_hash
from vitrine.core.rows import ALL_KEYS, Batch, Column, Compare, Digest, Key, KeyRange, Position, TextRows

ROWS_PER_PART = 2_000
SAMPLE_PER_PART = 20
"""Keys that are kept for each part while rows without an order are cut."""

Texts = dict[str, str | None]


def digest_rows(batches: Iterable[Batch], compare: Compare) -> list[Digest]:
    """One digest per range of the comparison, or per key."""
    if compare.by_key:
        return _digest_keys(batches, compare)
    totals = _Totals(compare)
    for key, texts in rows_of(batches, compare):
        totals.add(key, texts)
    return totals.digests()


def digest_ordered(batches: Iterable[Batch], compare: Compare, rows_per_part: int | None = None) -> list[Digest]:
    """The digests of parts of similar size, for rows in the order of their key and a comparison of one range."""
    (whole,) = compare.ranges
    rows_per_part = rows_per_part or ROWS_PER_PART
    lows: list[Key] = []
    ranks: list[Rank] = []
    parts = [_Total(compare)]
    highest: Rank | None = None
    for key, texts in rows_of(batches, compare):
        place = rank(key, compare.key)
        # a part begins only above every key so far, so that no row before it can belong to it
        if parts[-1].rows >= rows_per_part and highest is not None and place > highest:
            lows.append(key)
            ranks.append(place)
            parts.append(_Total(compare))
        highest = place if highest is None or place > highest else highest
        parts[bisect_right(ranks, place)].add(texts)
    ends = zip([whole.low, *lows], [*lows, whole.high], strict=True)
    return [part.digest(KeyRange(*end)) for part, end in zip(parts, ends, strict=True)]


def cut_rows(batches: Iterable[Batch], compare: Compare) -> tuple[KeyRange, ...]:
    """The one range of the comparison in parts of similar size, from a sample of rows that have no order."""
    (whole,) = compare.ranges
    size, kept = compare.parts * SAMPLE_PER_PART, list[Key]()
    choose = random.Random(0)  # noqa: S311  no secret
    for number, (key, _) in enumerate(rows_of(batches, compare)):
        if number < size:
            kept.append(key)
        elif (place := choose.randrange(number + 1)) < size:
            kept[place] = key
    kept.sort(key=lambda key: rank(key, compare.key))
    step = max(1, len(kept) // compare.parts)
    firsts = list(dict.fromkeys(kept[step::step]))
    ends = zip([whole.low, *firsts], [*firsts, whole.high], strict=True)
    return tuple(KeyRange(low, high) for low, high in ends)


def rows_of(batches: Iterable[Batch], compare: Compare) -> Iterator[tuple[Key, Texts]]:
    """Keys and texts of the rows that the comparison covers, in its forms."""
    skipped = frozenset(compare.skipped)
    only = None if compare.only is None else frozenset(compare.only)
    is_within = _Ranges(compare)
    for batch in batches:
        for texts in _rows(batch, compare):
            key = tuple(texts[column.name] or "" for column in compare.key)
            if key not in skipped and (only is None or key in only) and is_within.index(key) is not None:
                yield key, texts


def _rows(batch: Batch, compare: Compare) -> Iterator[Texts]:
    """The texts of each row, in the forms of the comparison."""
    names = [column.name for column in batch.columns]
    forms = [compare.form_of(column) for column in batch.columns]
    for line in lines_of(batch):
        texts = (canonical(text, form) for text, form in zip(fields_of(line), forms, strict=True))
        yield dict(zip(names, texts, strict=True))


def lines_of(batch: Batch) -> list[str]:
    """The rows of a batch in the text format, without the line breaks."""
    return bytes(text_of(batch)).decode().split("\n")[:-1]


def fields_of(line: str) -> Iterator[str | None]:
    """The values of a row in the text format; None is NULL."""
    return (None if field == values.NULL else values.unescape(field) for field in line.split("\t"))


def _digest_keys(batches: Iterable[Batch], compare: Compare) -> list[Digest]:
    found: dict[Key, Digest] = {}
    for key, texts in rows_of(batches, compare):
        row = [texts[column.name] for column in compare.columns]
        images = tuple(row_hash([text]) for text in row)
        one = Digest(KeyRange(key), 1, row_hash(row), columns=images)
        if (other := found.get(key)) is not None:
            sums = tuple(ours + theirs for ours, theirs in zip(other.columns, images, strict=True))
            one = replace(one, rows=other.rows + 1, hash=other.hash + one.hash, columns=sums)
        found[key] = one
    return list(found.values())


class _Ranges:
    """Finds the range of a key."""

    def __init__(self, compare: Compare) -> None:
        self._key = compare.key
        self._is_everything = compare.ranges == (ALL_KEYS,)
        places = {at: rank(keys.low, compare.key) for at, keys in enumerate(compare.ranges) if keys.low is not None}
        self._first = next((at for at, keys in enumerate(compare.ranges) if keys.low is None), None)
        self._order = sorted(places, key=places.__getitem__)
        self._lows = [places[at] for at in self._order]
        self._highs = [None if keys.high is None else rank(keys.high, compare.key) for keys in compare.ranges]

    def index(self, key: Key) -> int | None:
        if self._is_everything:
            return 0
        place = rank(key, self._key)
        before = bisect_right(self._lows, place)
        at = self._order[before - 1] if before else self._first
        if at is None:
            return None
        high = self._highs[at]
        return at if high is None or place < high else None


class _Totals:
    """The digests of every range."""

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._ranges = _Ranges(compare)
        self._totals = [_Total(compare) for _ in compare.ranges]

    def add(self, key: Key, texts: Texts) -> None:
        at = self._ranges.index(key)
        if at is not None:
            self._totals[at].add(texts)

    def digests(self) -> list[Digest]:
        return [total.digest(keys) for total, keys in zip(self._totals, self._compare.ranges, strict=True)]


class _Total:
    def __init__(self, compare: Compare) -> None:
        self.rows = 0
        self._names: Sequence[str] = [column.name for column in compare.columns]
        self._control = compare.control
        self._hash = 0
        self._lowest: str | None = None
        self._highest: str | None = None

    def add(self, texts: Texts) -> None:
        self.rows += 1
        self._hash += row_hash([texts[name] for name in self._names])
        column = self._control
        control = texts[column.name] if column else None
        if column is None or control is None:
            return
        place = rank((control,), (column,))
        if self._lowest is None or place < rank((self._lowest,), (column,)):
            self._lowest = control
        if self._highest is None or place > rank((self._highest,), (column,)):
            self._highest = control

    def digest(self, keys: KeyRange) -> Digest:
        return Digest(keys, self.rows, self._hash, self._lowest, self._highest)


Place = tuple[tuple[bool, Rank], ...]
"""Of a row among those with its key; NULL is before every value."""


@dataclass(frozen=True)
class _Kept:
    place: Place
    columns: tuple[Column, ...]
    line: str  # in the text format


class LastRows:
    """The last row of each key: by the columns `newest_by`, then as read."""

    def __init__(self, wanted: Compare, newest_by: Sequence[str]) -> None:
        self._wanted = wanted
        self._newest_by = newest_by
        self._kept: dict[Key, _Kept] = {}

    def add(self, batch: Batch, only: Collection[Key] | None = None) -> None:
        forms = [self._wanted.form_of(column) for column in batch.columns]
        names = [column.name for column in batch.columns]
        order = [column for name in self._newest_by for column in batch.columns if column.name == name]
        for line in lines_of(batch):
            texts = dict(zip(names, fields_of(line), strict=True))
            in_forms = {name: canonical(texts[name], form) for name, form in zip(names, forms, strict=True)}
            key = tuple(in_forms[column.name] or "" for column in self._wanted.key)
            if only is not None and key not in only:
                continue
            place = tuple(_place(texts[column.name], column) for column in order)
            if (before := self._kept.get(key)) is None or place >= before.place:
                self._kept[key] = _Kept(place, batch.columns, line)

    def batches(self) -> Iterator[Batch]:
        for columns, kept in groupby(self._kept.values(), key=lambda one: one.columns):
            lines = [one.line + "\n" for one in kept]
            yield Batch(TextRows("".join(lines).encode(), len(lines)), columns, None, Position())


def _place(text: str | None, column: Column) -> tuple[bool, Rank]:
    return (False, ()) if text is None else (True, rank((text,), (column,)))
