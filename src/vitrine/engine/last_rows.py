"""Of several rows with one key, the one that a run keeps with `on_duplicate_key: last`."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from vitrine.engine.digests import fields_of, lines_of
from vitrine.flow.comparison import canonical
from vitrine.flow.keys import Rank, rank
from vitrine.flow.rows import Batch, Column, Compare, Key, Position, TextRows

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
