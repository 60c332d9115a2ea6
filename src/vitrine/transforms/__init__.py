"""Registered transforms, one file each; and how one becomes a step of the loop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from vitrine.errors import DataError
from vitrine.flow import Batch, Column, Decoded
from vitrine.model import Row
from vitrine.registry import RowTransform

# Types for columns that a transform adds, needed only where the target is created
_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    Decimal: "numeric",
    str: "text",
    bytes: "bytea",
    UUID: "uuid",
    datetime: "timestamp with time zone",
    date: "date",
    time: "time without time zone",
    timedelta: "interval",
    dict: "jsonb",
}


@dataclass(frozen=True)
class TransformStep:
    """A Transformer around a registered function: calls it, and checks what it gives back."""

    name: str
    function: RowTransform
    key: tuple[str, ...]

    def __call__(self, batch: Batch) -> Batch:
        if not isinstance(batch.payload, Decoded):
            raise TypeError("a transform needs decoded rows")
        rows = self._transformed(batch.payload.rows)
        if not rows:
            return Batch(Decoded([]), batch.columns, batch.position)
        names = tuple(rows[0])
        self._check_shape(rows, names)
        return Batch(Decoded(rows), _columns(names, rows, batch.columns), batch.position)

    def _transformed(self, rows: Sequence[Row]) -> Sequence[Row]:
        if not rows:
            return []
        try:
            return list(self.function(rows))
        except Exception as exc:
            # the exception's own text may quote row values
            raise DataError(
                f"transform '{self.name}' raised {type(exc).__name__} on a batch of {len(rows)} row(s) from key"
                f" {self._key_of(rows[0])}; nothing of the batch was written",
                code="TRANSFORM_ERROR",
            ) from exc

    def _check_shape(self, rows: Sequence[Row], names: tuple[str, ...]) -> None:
        if missing := [name for name in self.key if name not in names]:
            raise DataError(f"transform '{self.name}' dropped the key column '{missing[0]}'", code="TRANSFORM_ERROR")
        expected = frozenset(names)
        for row in rows:
            if row.keys() != expected:
                odd = ", ".join(sorted(expected.symmetric_difference(row)))
                raise DataError(
                    f"transform '{self.name}' gave rows of different shape: column(s) {odd} are not in every row, see"
                    f" key {self._key_of(row)}",
                    code="TRANSFORM_ERROR",
                )

    def _key_of(self, row: Row) -> str:
        return "/".join(str(row.get(name)) for name in self.key)


def _columns(names: Iterable[str], rows: Sequence[Row], known: Sequence[Column]) -> tuple[Column, ...]:
    types = {column.name: column.type_name for column in known}
    return tuple(Column(name, types.get(name) or _type_name(row[name] for row in rows)) for name in names)


def _type_name(values: Iterable[Any]) -> str:
    """Of the first value that is there; of lists, of the first element that any of them has."""
    there = [value for value in values if value is not None]
    if there and isinstance(there[0], list):
        return f"{_type_name(element for value in cast(list[list[Any]], there) for element in value)}[]"
    return next((name for kind, name in _TYPE_NAMES.items() if there and isinstance(there[0], kind)), "text")
