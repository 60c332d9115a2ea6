"""Digests of streamed rows, for sinks that compute none inside their system."""

from collections.abc import Iterable, Iterator

from vitrine.copytext import text_of, values
from vitrine.flow.comparison import canonical
from vitrine.flow.keys import is_within, rank, row_hash
from vitrine.flow.rows import Batch, Compare, Digest, KeyRange


def digest_rows(batches: Iterable[Batch], compare: Compare) -> list[Digest]:
    """One digest per range of the comparison; each row is counted in the first range that has its key."""
    totals = [_Total(keys) for keys in compare.ranges]
    skipped = frozenset(compare.skipped)
    for batch in batches:
        for texts in _rows(batch, compare):
            key = tuple(texts[column.name] or "" for column in compare.key)
            total = next((one for one in totals if is_within(key, one.range, compare.key)), None)
            if total is not None and key not in skipped:
                control = texts[compare.control.name] if compare.control else None
                total.add([texts[column.name] for column in compare.columns], control, compare)
    return [total.digest() for total in totals]


def _rows(batch: Batch, compare: Compare) -> Iterator[dict[str, str | None]]:
    """The texts of each row, in the forms of the comparison."""
    names = [column.name for column in batch.columns]
    forms = [compare.form_of(column) for column in batch.columns]
    for line in bytes(text_of(batch)).decode().split("\n")[:-1]:
        fields = (None if field == values.NULL else values.unescape(field) for field in line.split("\t"))
        texts = (canonical(text, form) for text, form in zip(fields, forms, strict=True))
        yield dict(zip(names, texts, strict=True))


class _Total:
    def __init__(self, keys: KeyRange) -> None:
        self.range = keys
        self._rows = 0
        self._hash = 0
        self._lowest: str | None = None
        self._highest: str | None = None

    def add(self, texts: list[str | None], control: str | None, compare: Compare) -> None:
        self._rows += 1
        self._hash += row_hash(texts)
        if control is None or compare.control is None:
            return
        place = rank((control,), (compare.control,))
        if self._lowest is None or place < rank((self._lowest,), (compare.control,)):
            self._lowest = control
        if self._highest is None or place > rank((self._highest,), (compare.control,)):
            self._highest = control

    def digest(self) -> Digest:
        return Digest(self.range, self._rows, self._hash, self._lowest, self._highest)
